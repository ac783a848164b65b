package busy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewContext()
		for range 2 { // the second time for another call
			c.Start(context.WithValue(t.Context(), valueKey{}, "alice"), time.Now().Add(50*time.Millisecond), 0)
			time.Sleep(25 * time.Millisecond)
			if c.Err() != nil || c.Value(valueKey{}) != "alice" {
				t.Errorf("before its end: %v, with the value %v", c.Err(), c.Value(valueKey{}))
			}
			if !c.Stop() {
				t.Fatal("it cannot be started again")
			}
		}
		began := time.Now()
		c.Start(t.Context(), began.Add(50*time.Millisecond), 0)
		<-c.Done()
		if took := time.Since(began); took != 50*time.Millisecond || !errors.Is(c.Err(), context.DeadlineExceeded) || c.Stop() {
			t.Errorf("it ended after %v with %v; want 50ms, and that it is not used again", took, c.Err())
		}
	})
}

type valueKey struct{}

// A process that is stopped loses at most one step, however long the stop is.
func TestStepsThatCameLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c := NewContext()
		c.Start(t.Context(), began.Add(50*time.Millisecond), 0)
		for range 10 {
			c.mu.Lock()
			c.stepEnd = time.Now().Add(-40 * time.Millisecond) // as if the process had been stopped
			c.mu.Unlock()
			c.tick()
		}
		<-c.Done()
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("it ended after %v; want 50ms in which the process ran", took)
		}
	})
}

// A call that begins after its deadline, because this process was late, has LeastTime.
func TestNoTimeLeft(t *testing.T) {
	for _, left := range []time.Duration{-time.Second, 0, soon - 1} {
		synctest.Test(t, func(t *testing.T) {
			c := NewContext()
			began := time.Now()
			c.Start(t.Context(), began.Add(left), 0)
			end, _ := c.Deadline()
			<-c.Done()
			if took := time.Since(began); took != LeastTime || end.Sub(began) != LeastTime {
				t.Errorf("with %v left it ended after %v, and said %v; want %v", left, took, end.Sub(began), LeastTime)
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAnswers()
		check := func(what string, then time.Time, answered, silent bool) {
			t.Helper()
			if got := a.AnsweredSince(then); got != answered {
				t.Errorf("%s: answered %v, want %v", what, got, answered)
			}
			if got := a.SilentSince(then); got != silent {
				t.Errorf("%s: silent %v, want %v", what, got, silent)
			}
		}
		pass := func() time.Time { time.Sleep(time.Millisecond); return time.Now() }
		first := pass()
		check("nothing is known", first, false, false)
		a.Answered(first)
		second := pass()
		check("before it was asked", second, false, false)
		a.Silent()
		check("silent", second, false, true)
		check("answered, and then silent", first, true, false)
		third := pass()
		check("silent before", third, false, false)
		a.Answered(third)
		check("answered again", second, true, false)
		a.Answered(first) // by a goroutine that was late
		check("an old answer", third, true, false)
	})
}

// The time begins again when the request is sent, and lasts as long as the caller wanted.
func TestConnecting(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name       string
		connecting time.Duration
		sent       []time.Duration // since the start
		want       time.Duration
	}{
		{"at once", 250 * ms, []time.Duration{0}, 50 * ms},
		{"never", 250 * ms, nil, 300 * ms},
		{"after a while", 250 * ms, []time.Duration{30 * ms}, 80 * ms},
		{"after the time", 250 * ms, []time.Duration{200 * ms}, 250 * ms},
		{"again", 250 * ms, []time.Duration{0, 40 * ms}, 90 * ms},
		{"no time to connect", 0, []time.Duration{30 * ms}, 50 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, began := NewContext(), time.Now()
			c.Start(t.Context(), began.Add(50*ms), test.connecting)
			for _, at := range test.sent {
				time.Sleep(time.Until(began.Add(at)))
				c.Sent()
			}
			end, _ := c.Deadline()
			<-c.Done()
			if took := time.Since(began); took != test.want || end.Sub(began) != test.want {
				t.Errorf("%s: ended after %v, with a deadline after %v; want %v", test.name, took, end.Sub(began), test.want)
			}
		})
	}
}
