package fallback_test

import (
	"context"
	"fmt"
	"testing"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/throttler"
)

// BenchmarkTake measures the cost that a take adds to the backend's while the backend answers,
// and the cost of a take in an outage.
func BenchmarkTake(b *testing.B) {
	for _, bench := range []struct {
		name  string
		fails *failure
	}{{"answers", nil}, {"down", down}} {
		b.Run(bench.name, func(b *testing.B) {
			shared := &flaky{Backend: memorybackend.NewDefault()}
			backend := open(b, shared, &fallback.Options{OnFailure: fallback.Local, Processes: 3})
			th := throttler.New(backend, nil)
			shared.fails.Store(bench.fails)
			p := policy("core", throttler.Limit{Quota: 1 << 40, Window: core.Limits[0].Window})
			keys := make([]throttler.Charge, 1024)
			for i := range keys {
				keys[i] = p.Charge(fmt.Sprint("key", i))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := th.Take(context.Background(), keys[i%len(keys)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
