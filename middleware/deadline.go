package middleware

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// deadlineContext is the context of one call to the throttler. It ends after a timeout, and
// not when the client disconnects, so that the outcome of a charge is known and
// the charge can be refunded.
//
// It takes the place of a context.WithTimeout, made when it is needed: a backend
// that does not wait needs no timer. Nor can its answer come too late because the
// machine was busy.
type deadlineContext struct {
	e     *entry
	made  atomic.Pointer[timed] // the context that this takes the place of, if it was needed
	asked atomic.Uint32         // how often Err was called
	over  atomic.Bool           // end was called
}

// idleAsks is how often Err may be called by those that do not wait: the throttler,
// and each of a few backends that wrap one another, ask once before they begin. One
// that asks more often may be waiting for the answer.
const idleAsks = 4

type timed struct {
	context.Context
	cancel context.CancelFunc
}

// end ends the call, for whatever the backend has left running.
func (c *deadlineContext) end() {
	c.over.Store(true)
	if m := c.made.Load(); m != nil {
		m.cancel()
	}
}

// make returns the context that c takes the place of. Its time runs from the first call.
func (c *deadlineContext) make() context.Context {
	if m := c.made.Load(); m != nil {
		return m
	}
	m := new(timed)
	m.Context, m.cancel = driver.WithServerTime(c.values(), c.e.m.Deadline)
	if !c.made.CompareAndSwap(nil, m) {
		m.cancel()
		m = c.made.Load()
	}
	if c.over.Load() {
		m.cancel()
	}
	return m.Context
}

// ServerTime returns when the server's time ends, and a context that does not end, for a
// backend that asks by [driver.ServerTime] and waits with a timer that it has. Unless the
// context was made, each server that is asked has the whole time.
func (c *deadlineContext) ServerTime(now time.Time) (end time.Time, caller context.Context) {
	if m := c.made.Load(); m != nil {
		end, _ = m.Deadline()
		return end, c.values()
	}
	return now.Add(c.e.m.Deadline), c.values()
}

func (c *deadlineContext) Deadline() (time.Time, bool) { return c.make().Deadline() }
func (c *deadlineContext) Done() <-chan struct{}       { return c.make().Done() }

func (c *deadlineContext) Err() error {
	if c.made.Load() == nil && !c.over.Load() && c.asked.Add(1) <= idleAsks {
		return nil
	}
	return c.make().Err()
}

// Value leaves the answer to the context that was made, if there is one: so
// package context links those derived from c without a goroutine for each.
func (c *deadlineContext) Value(key any) any {
	if m := c.made.Load(); m != nil {
		return m.Value(key)
	}
	return c.values().Value(key)
}

func (c *deadlineContext) values() context.Context {
	return context.WithoutCancel(c.e.received.Context())
}
