package busy

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	steps   = 5                // of a Context's time
	maxMore = 2 * time.Second  // how much longer a Context may last because the process was late
	leastOf = time.Millisecond // the shortest step
)

// Context is a context that ends with its time alone, which runs only while goroutines of
// this process do not wait for a processor: it ends at its deadline, or as much later as
// this process was late, up to some seconds. Its time is counted in steps. A step does not
// count if a timer, or a goroutine that yields, was late by half of it.
//
// A Context that was stopped may be started again.
type Context struct {
	context.Context // for its values
	end             time.Time
	done            chan struct{}
	timer           *time.Timer

	mu         sync.Mutex // guards the fields below
	step, left time.Duration
	due        time.Time // when the step ends
	stopped    bool
}

// NewContext returns a Context that is not started.
func NewContext() *Context {
	c := &Context{done: make(chan struct{})}
	c.timer = time.AfterFunc(time.Hour, c.tick)
	return c
}

// Start starts c with values, a context. An end that has passed, or nearly has, is moved to
// LeastTime from now: a call that begins late has sent nothing yet.
func (c *Context) Start(values context.Context, end time.Time) {
	c.StartWithin(values, Fair(end, LeastTime))
}

// StartWithin starts c as Start does, but with no more time than is left until end.
func (c *Context) StartWithin(values context.Context, end time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.Context, c.end = values, end
	c.left = max(end.Sub(now), 0)
	c.step = max(c.left/steps, leastOf)
	c.arm(now)
}

func (c *Context) arm(now time.Time) {
	next := min(c.step, c.left)
	c.due = now.Add(next)
	c.timer.Reset(next)
}

// tick ends a step.
func (c *Context) tick() {
	runtime.Gosched() // behind all waiting goroutines
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.stopped {
		return
	}
	if late := now.Sub(c.due); late < c.step/2 || now.Sub(c.end) > maxMore {
		if c.left -= c.step; c.left <= 0 {
			close(c.done)
			return
		}
	}
	c.arm(now)
}

// Stop stops the time of c. It reports whether c may be started again: then c has not ended,
// and never will.
func (c *Context) Stop() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.timer.Stop() { // it has ended, or a step has
		c.stopped = true
		return false
	}
	c.Context = nil
	return true
}

// Late reports whether this process, which has just noticed that end has passed, is late, so
// that it can't know whether a server was.
func Late(end time.Time) bool { return time.Since(end) > LeastTime/2 }

// Deadline implements context.Context.
func (c *Context) Deadline() (time.Time, bool) { return c.end, true }

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} { return c.done }

// Err implements context.Context.
func (c *Context) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
