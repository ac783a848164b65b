package driver_test

import (
	"context"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// around wraps a backend.
type around struct{ driver.Backend }

func (a around) Unwrap() driver.Backend { return a.Backend }

// healthy is a backend that reports whether it is down.
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

// remembering is a backend that remembers refusals.
type remembering struct{ driver.Backend }

func (remembering) Refused(context.Context, driver.Request) (d driver.Decision, known bool) {
	return d, true
}

// A wrapper that embeds a driver.Backend hides its method Refused, unless it has Unwrap.
func TestRefusedBehindWrappers(t *testing.T) {
	for name, test := range map[string]struct {
		b    driver.Backend
		want bool
	}{
		"its own":          {remembering{}, true},
		"of what it wraps": {around{around{remembering{}}}, true},
		"none":             {around{struct{ driver.Backend }{remembering{}}}, false},
	} {
		if _, known := driver.Refused(t.Context(), test.b, new(driver.Request)); known != test.want {
			t.Errorf("%s: known %v", name, known)
		}
	}
}
