package weirlog

import (
	"log/slog"
	"testing"

	"github.com/weir-go/weir/observe"
)

// metrics is an Observer that does not log.
type metrics struct{ observe.Nothing }

func TestMetricsDoNotSilenceTheLog(t *testing.T) {
	other, quiet := &metrics{}, New(slog.New(slog.DiscardHandler), nil)
	for name, test := range map[string]struct {
		o    observe.Observer
		want []observe.Observer
	}{
		"nil":            {nil, []observe.Observer{Default()}},
		"empty":          {observe.All(), []observe.Observer{Default()}},
		"metrics":        {other, []observe.Observer{other, Default()}},
		"a log":          {quiet, []observe.Observer{quiet}},
		"both":           {observe.All(nil, other, quiet), []observe.Observer{other, quiet}},
		"both, in depth": {observe.All(observe.All(other), observe.All(quiet)), []observe.Observer{other, quiet}},
	} {
		got := observe.Parts(Ensure(test.o))
		if len(got) != len(test.want) {
			t.Errorf("%s: %d observers, want %d", name, len(got), len(test.want))
			continue
		}
		for i := range got {
			if got[i] != test.want[i] {
				t.Errorf("%s: observer %d is %T, want %T", name, i, got[i], test.want[i])
			}
		}
	}
}
