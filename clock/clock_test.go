package clock_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
)

func TestManual(t *testing.T) {
	t0 := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	c := clock.NewManual(t0)
	if got := c.Advance(time.Minute); !got.Equal(t0.Add(time.Minute)) || !c.Now().Equal(got) {
		t.Errorf("after Advance(1m): %v, Now %v", got, c.Now())
	}
	if got := c.Advance(-time.Hour); !got.Equal(t0.Add(-59 * time.Minute)) {
		t.Errorf("a manual clock must step back: %v", got)
	}
	c.Set(t0)
	if !c.Now().Equal(t0) {
		t.Errorf("after Set: %v, want %v", c.Now(), t0)
	}
	var zero clock.Manual
	if !zero.Now().Equal(time.Unix(0, 0)) {
		t.Errorf("zero value stands at %v", zero.Now())
	}
}

func TestSystem(t *testing.T) {
	before := time.Now()
	if got := (clock.System{}).Now(); got.Before(before) {
		t.Errorf("System.Now() = %v, before %v", got, before)
	}
}
