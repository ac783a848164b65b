package driver_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// around is a backend around another.
type around struct{ driver.Backend }

func (a around) Unwrap() driver.Backend { return a.Backend }

// healthy is a backend that says whether it answers.
type healthy struct{ driver.Backend }

func (healthy) Down(string) (since time.Time, down bool) { return since, true }

func TestHealthOf(t *testing.T) {
	mute := struct{ driver.Backend }{healthy{}}
	for name, test := range map[string]struct {
		b    driver.Backend
		want bool
	}{
		"its own":            {healthy{}, true},
		"of what it wraps":   {around{around{healthy{}}}, true},
		"none":               {mute, false},
		"none of any":        {around{mute}, false},
		"of nothing wrapped": {around{}, false},
	} {
		if got := driver.HealthOf(test.b); (got != nil) != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
