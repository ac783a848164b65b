package weirotel_test

import (
	"testing"

	"go.opentelemetry.io/otel/sdk/metric"

	weirotel "github.com/weir-go/weir/observe/otel"
)

func TestStats(t *testing.T) {
	type numbers struct {
		Held  int64            `json:"held" metric:"gauge"`
		Lost  int64            `json:"lost"`
		Moved map[string]int64 `json:"moved"`
	}
	o := &observed{reader: metric.NewManualReader()}
	n := numbers{} // the map is empty when the metrics are made
	registration, err := weirotel.RegisterStats(metric.NewMeterProvider(metric.WithReader(o.reader)), "fallback", func() any { return n })
	if err != nil {
		t.Fatal(err)
	}
	n = numbers{2, 3, map[string]int64{"a": 4, "b": 5}}
	o.want(t, "weir.fallback.held [] : 2", "weir.fallback.lost [] : 3", "weir.fallback.moved [name:a] : 4", "weir.fallback.moved [name:b] : 5")
	if err := registration.Unregister(); err != nil {
		t.Error(err)
	}
	o.want(t)
}

func TestStatsOfNoStruct(t *testing.T) {
	defer func() {
		const want = "weirotel: RegisterStats: the function returns a <nil>; it must return a struct, such as what a backend's Stats returns"
		if got := recover(); got != want {
			t.Errorf("it panics with %v; want %q", got, want)
		}
	}()
	_, _ = weirotel.RegisterStats(nil, "fallback", func() any { return nil })
}
