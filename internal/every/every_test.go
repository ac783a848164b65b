package every_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/every"
)

// The wait begins after the call: a timer that is due when the call ends can crash the race
// detector.
func TestSlowCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		calls := 0
		every.Do(ctx, 100*time.Millisecond, func() {
			calls++
			time.Sleep(500 * time.Millisecond)
		})
		if calls != 100 { // the first after 100 ms, and then one each 600 ms
			t.Errorf("%d calls in a minute, want 100", calls)
		}
	})
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, d := range []time.Duration{-1, 0, 300 * time.Millisecond, 600 * time.Millisecond} {
			if began := time.Now(); !every.Wait(ctx, d) || time.Since(began) != max(d, 0) {
				t.Errorf("Wait(%v) ended after %v", d, time.Since(began))
			}
		}
		for _, d := range []time.Duration{time.Minute, 0} {
			if every.Wait(ctx, d) {
				t.Errorf("Wait(%v) did not report the end of its context", d)
			}
		}
	})
}
