package middleware

import (
	"context"
	"sync"
	"time"
)

// call is the context of one call to the throttler. It ends after a timeout, and
// not when the client disconnects, so that the outcome of a charge is known and
// the charge can be refunded.
//
// It stands for context.WithTimeout(context.WithoutCancel(request), timeout), which
// is made when it is needed: a backend that asks once whether the call is over, and
// then does not wait, needs no timer. Nor can its answer come too late because
// the machine was busy.
type call struct {
	request context.Context
	timeout time.Duration

	mu     sync.Mutex
	asked  bool            // Err was called
	over   bool            // end was called
	made   context.Context // what this stands for, if it is needed
	cancel context.CancelFunc
}

// end ends the call, for whatever the backend has left running.
func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.cancel != nil {
		c.cancel()
	}
}

// context returns what c stands for. Its time runs from the first call.
func (c *call) context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made, c.cancel = context.WithTimeout(context.WithoutCancel(c.request), c.timeout)
		if c.over {
			c.cancel()
		}
	}
	return c.made
}

func (c *call) Deadline() (time.Time, bool) { return c.context().Deadline() }
func (c *call) Done() <-chan struct{}       { return c.context().Done() }

func (c *call) Err() error {
	c.mu.Lock()
	first := !c.asked && !c.over && c.made == nil
	c.asked = true
	c.mu.Unlock()
	if first {
		return nil
	}
	return c.context().Err()
}

// Value leaves the answer to the context that was made, if there is one: so
// package context links those derived from c without a goroutine for each.
func (c *call) Value(key any) any {
	c.mu.Lock()
	values := c.made
	c.mu.Unlock()
	if values == nil {
		values = context.WithoutCancel(c.request)
	}
	return values.Value(key)
}
