package driver

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type userKey struct{}

// newCall returns a call with a timeout of a second, for a client that can leave.
func newCall(t *testing.T) (c *Detached, leave context.CancelCauseFunc) {
	ctx, leave := context.WithCancelCause(context.WithValue(t.Context(), userKey{}, "alice"))
	c = new(Detached)
	c.Begin(ctx, time.Second)
	return c, leave
}

// A call without a waiter works as a context.
func TestACallNeedsNoTimerUntilSomebodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leave := newCall(t)
		leave(errors.New("gone"))
		time.Sleep(time.Hour) // the machine is busy
		for range idleAsks {
			if err := c.Err(); err != nil || c.timed != nil {
				t.Errorf("got %v and the context %v, want none", err, c.timed)
			}
		}
		if c.Value(userKey{}) != "alice" || c.timed != nil {
			t.Error("the client's values are not there, or needed a timer")
		}
		c.End()
		if err := c.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("after its end, got %v, want context.Canceled", err)
		}
		<-c.Done()
	})
}

// A backend that waits by itself learns when the server's time ends, without a timer of the
// call. A call to Done does not extend that time.
func TestACallTellsTheServersTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leave := newCall(t)
		defer leave(nil)
		defer c.End()
		want := time.Now().Add(time.Second)
		end, caller, ok := ServerTime(c, time.Now())
		if !ok || !end.Equal(want) || caller.Done() != nil || caller.Value(userKey{}) != "alice" || c.timed != nil {
			t.Errorf("ends at %v, %v; want %v, and no timer", end, ok, want)
		}
		c.Done()
		time.Sleep(300 * time.Millisecond)
		if end, _, _ := ServerTime(c, time.Now()); !end.Equal(want) {
			t.Errorf("then ends at %v, want %v", end, want)
		}
	})
}

// Whichever method a backend uses first, the call ends after its timeout, and not with the
// client.
func TestACallEndsAfterItsTimeout(t *testing.T) {
	for name, ask := range map[string]func(c *Detached){
		"Done":     func(c *Detached) { c.Done() },
		"Deadline": func(c *Detached) { c.Deadline() },
		"a child":  func(c *Detached) { _, cancel := context.WithCancel(c); cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, leave := newCall(t)
				defer c.End()
				time.Sleep(time.Minute)
				ask(c)
				leave(errors.New("gone"))
				began := time.Now()
				if at, ok := c.Deadline(); !ok || !at.Equal(began.Add(time.Second)) {
					t.Errorf("deadline %v, %v, want a second after %v", at, ok, began)
				}
				time.Sleep(time.Second - 1)
				if err := c.Err(); err != nil {
					t.Errorf("before the deadline: %v", err)
				}
				<-c.Done()
				if took := time.Since(began); took != time.Second {
					t.Errorf("it took %v, want a second", took)
				}
				if !errors.Is(c.Err(), context.DeadlineExceeded) || !errors.Is(context.Cause(c), context.DeadlineExceeded) || c.Value(userKey{}) != "alice" {
					t.Errorf("got %v, because of %v, with the value %v", c.Err(), context.Cause(c), c.Value(userKey{}))
				}
			})
		})
	}
}

// A backend that polls Err learns that the call has ended.
func TestABackendMayPollACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCall(t)
		defer c.End()
		for polls := 0; c.Err() == nil; polls++ {
			if polls > 100 {
				t.Fatal("the call goes on")
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

// Contexts derived from a call end with it, without a goroutine for each.
func TestContextsDerivedFromACall(t *testing.T) {
	c, leave := newCall(t)
	defer leave(nil)
	before := runtime.NumGoroutine()
	var children []context.Context
	for range 100 {
		child, cancel := context.WithCancel(c)
		defer cancel()
		children = append(children, child)
	}
	if n := runtime.NumGoroutine(); n > before+50 { // others come and go
		t.Errorf("%d goroutines, and %d before", n, before)
	}
	c.End()
	for _, child := range children {
		<-child.Done()
	}
}

// Goroutines that a backend has left behind use the call while it ends.
func TestACallEndsForAllThatAsk(t *testing.T) {
	for range 1000 {
		c, leave := newCall(t)
		var asking sync.WaitGroup
		for range 3 {
			asking.Go(func() {
				_ = c.Err()
				<-c.Done()
				if c.Err() == nil {
					t.Error("it is done and not over")
				}
			})
		}
		c.End()
		asking.Wait()
		leave(nil)
	}
}
