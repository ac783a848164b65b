package fallback_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// In an outage, a pause that was seen before holds until its own end, not until the window's.
// Then the share of the remaining units is allowed.
func TestPauseInAnOutage(t *testing.T) {
	for _, algorithm := range []quota.Algorithm{throttler.FixedWindow, throttler.SlidingWindow, throttler.SlidingLog, throttler.TokenBucket} {
		limit := throttler.Limit{Quota: 20, Window: 1000 * time.Hour, Algorithm: algorithm}
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			f := newFixture(t, 2, fallback.Options{OnFailure: fallback.Local})
			p := policy("api", limit)
			f.takes(0, 4, p, "alice")
			until := f.clock.Now().Add(20 * time.Second)
			if err := f.processes[0].Pause(t.Context(), until, p.Charge("alice")); err != nil {
				t.Fatal(err)
			}
			f.takes(1, 1, p, "alice")
			f.fail(down)
			for i := range f.processes {
				if d := f.take(i, p.Charge("alice")); d.Allowed || !d.RetryAt().Equal(until.Truncate(time.Millisecond)) {
					t.Errorf("process %d: allowed %v, to be retried at %v, want the pause's end, %v", i, d.Allowed, d.RetryAt(), until)
				}
			}
			f.clock.Advance(20 * time.Second)
			for i := range f.processes {
				if got := f.takes(i, 20, p, "alice"); got != 8 {
					t.Errorf("process %d allowed %d after the pause, want half of the 16 that were left", i, got)
				}
			}
			f.recover()
			if got := f.used(p, "alice"); got != 20 {
				t.Errorf("%d units are charged, want 20", got)
			}
		})
	}
}
