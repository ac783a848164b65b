package middleware

import (
	"context"
	"sync"
	"time"
)

// call is the context of one call to the throttler. It ends at a deadline, and not
// when the client disconnects, so that the outcome of a charge is known and the
// charge can be refunded.
//
// It is context.WithTimeout(context.WithoutCancel(request), timeout), made when it
// is needed: a backend that does not wait needs no channel and no timer.
type call struct {
	request  context.Context
	deadline time.Time

	mu     sync.Mutex
	made   context.Context // nil until somebody may wait for it
	cancel context.CancelFunc
	over   bool
}

// begin begins a call that may take as long as timeout.
func (c *call) begin(request context.Context, timeout time.Duration) {
	c.request, c.deadline = request, time.Now().Add(timeout)
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

// make returns what c stands for.
func (c *call) make() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made, c.cancel = context.WithDeadline(context.WithoutCancel(c.request), c.deadline)
		if c.over {
			c.cancel()
		}
	}
	return c.made
}

func (c *call) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *call) Done() <-chan struct{} { return c.make().Done() }

func (c *call) Err() error {
	c.mu.Lock()
	running := c.made == nil && !c.over
	c.mu.Unlock()
	if running && time.Until(c.deadline) > 0 {
		return nil
	}
	return c.make().Err()
}

// Value asks the context that was made, if there is one: by that, package context
// links contexts derived from c without a goroutine for each.
func (c *call) Value(key any) any {
	c.mu.Lock()
	values := c.made
	c.mu.Unlock()
	if values == nil {
		values = context.WithoutCancel(c.request)
	}
	return values.Value(key)
}
