package fallback_test

import (
	"errors"
	"testing"

	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/throttler"
)

// A reset forgets the units allowed here and not handed over, the known counts of the key, and
// earlier charges. Their refunds do not reduce later charges.
func TestResetInAnOutage(t *testing.T) {
	f := newFixture(t, 2, fallback.Options{OnFailure: fallback.Local})
	hour := policy("hour", throttler.Limit{Quota: 20, Window: 60 * 60e9, Aligned: true})
	f.takes(0, 12, hour, "alice")
	f.fail(down)
	d := f.take(0, hour.Charge("alice"))
	f.takes(0, 3, hour, "alice") // of its share of 8 that were left
	if got := f.takes(0, 1, hour, "alice"); got != 0 {
		t.Fatalf("%d takes are allowed beyond the share", got)
	}
	if err := f.processes[0].Reset(t.Context(), hour.Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("a reset in an outage returns %v, want an error that wraps ErrUnavailable", err)
	}
	if got := f.takes(0, 11, hour, "alice"); got != 10 {
		t.Errorf("after it, %d takes are allowed, want a new share of 10", got)
	}
	if after, err := f.processes[0].Refund(t.Context(), d); err != nil || f.takes(0, 1, hour, "alice") != 0 {
		t.Errorf("a refund of an earlier charge gave back: %v, %v", after, err)
	}
	f.recover()
	if got := f.used(hour, "alice"); got != 12+10 {
		t.Errorf("%d units are charged, want 12 from before the outage, and 10 after the reset", got)
	}
	if err := f.processes[0].Reset(t.Context(), hour.Charge("alice")); err != nil {
		t.Error(err)
	}
	if got := f.used(hour, "alice"); got != 0 {
		t.Errorf("%d units are used after a reset", got)
	}
}
