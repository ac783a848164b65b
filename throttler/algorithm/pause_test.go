package algorithm_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A pause has a place in a state that has as many records as it keeps, and that state can be
// stored.
func TestPauseOfAFullState(t *testing.T) {
	var s algorithm.State
	var results [1]driver.Result
	var limits []quota.Limit
	for hours := range 2 * quota.MaxLimits {
		limits = []quota.Limit{{Quota: 100, Window: time.Duration(hours+1) * time.Hour}}
		s.Charge(limits, 1, day, results[:])
	}
	s.Pause(day+1000, day)
	stored, err := algorithm.Parse(s.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, window := range []time.Duration{time.Hour, 32 * time.Hour, 33 * time.Hour} {
		limits[0].Window = window
		if stored.Evaluate(limits, 1, day, results[:]) {
			t.Errorf("a window of %v: a paused state has room: %+v", window, results[0])
		}
	}
	stored.Charge(limits, 1, day, results[:])
	if stored.Evaluate(limits, 1, day, results[:]) {
		t.Errorf("a paused state that was charged has room: %+v", results[0])
	}
}
