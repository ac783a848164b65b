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
		t.Errorf("zero value is at %v", zero.Now())
	}
}

func TestSystem(t *testing.T) {
	before := time.Now()
	if got := (clock.System{}).Now(); got.Before(before) {
		t.Errorf("System.Now() = %v, before %v", got, before)
	}
}

func TestAfterFunc(t *testing.T) {
	t0 := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	c := clock.NewManual(t0)
	called := make(chan string, 8)
	at := func(d time.Duration, name string) (stop func() bool) {
		return clock.AfterFunc(c, d, func() { called <- name })
	}
	if stop := at(0, "at once"); <-called != "at once" || stop() {
		t.Error("a function for a time that was reached must be called at once, and cannot be stopped")
	}
	stopped := at(time.Second, "stopped")
	first := at(time.Minute, "first")
	c.BlockUntil(2)
	at(time.Hour, "second")
	if !stopped() || stopped() {
		t.Error("stop must return true once, and false after it")
	}
	c.Advance(-time.Hour)
	c.Set(t0.Add(time.Minute))
	if got := <-called; got != "first" || first() {
		t.Errorf("at its time: %s", got)
	}
	c.Advance(24 * time.Hour)
	if got := <-called; got != "second" {
		t.Errorf("past its time: %s", got)
	}
	select {
	case name := <-called:
		t.Errorf("%s was called too", name)
	default:
	}
}

func TestBlockUntil(t *testing.T) {
	var c clock.Manual
	done := make(chan struct{})
	go func() { defer close(done); c.BlockUntil(2) }()
	for range 2 {
		c.AfterFunc(time.Second, func() {})
	}
	<-done
}

// ahead is a clock that is an hour ahead, and not a Timer: a wait takes as long as
// on the system's clock.
type ahead struct{}

func (ahead) Now() time.Time { return time.Now().Add(time.Hour) }

func TestAfterFuncOfOtherClocks(t *testing.T) {
	for _, c := range []clock.Clock{clock.System{}, ahead{}} {
		called := make(chan struct{})
		clock.AfterFunc(c, -time.Hour, func() { close(called) })
		<-called
		if stop := clock.AfterFunc(c, time.Hour, func() { t.Error("called an hour early") }); !stop() {
			t.Errorf("%T: a function that waits must be stopped", c)
		}
	}
}

func TestManualInDistantYears(t *testing.T) {
	for _, year := range []int{1, 1600, 2262, 2263, 9999} {
		at := time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC)
		if got := clock.NewManual(at).Now(); !got.Equal(at) {
			t.Errorf("set to %v, the clock is at %v", at, got)
		}
	}
}
