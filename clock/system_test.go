package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

// UnixMilli returns the same time as time.Now, inside a bubble and outside it.
func TestSystemInABubble(t *testing.T) {
	check := func(t *testing.T) {
		t.Helper()
		for range 3 {
			before := time.Now().UnixMilli()
			got := System{}.UnixMilli()
			if after := time.Now().UnixMilli(); got < before-1 || got > after+1 {
				t.Errorf("got %d between %d and %d", got, before, after)
			}
		}
	}
	check(t)
	synctest.Test(t, func(t *testing.T) {
		check(t)
		for range 100 {
			time.Sleep(7 * time.Millisecond)
			if got, want := (System{}).UnixMilli(), time.Now().UnixMilli(); got != want {
				t.Fatalf("got %d, want %d", got, want)
			}
		}
	})
	check(t)
}

// A reading expires after maxReading, so that a wall clock that was set is noticed.
func TestSystemReadsTheWallClockAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		lastReading.Store(&reading{instant: now, wall: now.Add(time.Hour).UnixNano()}) // as before a step
		if got := (System{}).UnixMilli(); got != now.Add(time.Hour).UnixMilli() {
			t.Fatalf("got %d, want the reading's", got)
		}
		time.Sleep(maxReading)
		if got, want := (System{}).UnixMilli(), time.Now().UnixMilli(); got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	})
}
