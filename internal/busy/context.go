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
// The time is for a server's answer to a request. Until the request is sent, c may last longer,
// for a connection to be opened: see Start and Sent.
//
// A Context that was stopped may be started again.
type Context struct {
	context.Context // for its values
	done            chan struct{}
	timer           *time.Timer

	mu              sync.Mutex // guards the fields below
	begun, end      time.Time
	time            time.Duration // for the answer
	connecting      time.Duration // how much later c ends if the request is not sent
	extended        bool          // by connecting
	sent            bool
	step, remaining time.Duration
	stepEnd         time.Time // when the step ends
	stopped         bool
}

// NewContext returns a Context that is not started.
func NewContext() *Context {
	c := &Context{done: make(chan struct{})}
	c.timer = time.AfterFunc(time.Hour, c.tick)
	return c
}

// Start starts c with values, a context. An end that has passed, or nearly has, is moved to
// LeastTime from now: a call that begins late has sent nothing yet. Until Sent, c lasts
// connecting longer.
func (c *Context) Start(values context.Context, end time.Time, connecting time.Duration) {
	c.start(values, Fair(end, LeastTime), connecting)
}

// StartWithin starts c as Start does, but with no more time than is left until end.
func (c *Context) StartWithin(values context.Context, end time.Time) { c.start(values, end, 0) }

func (c *Context) start(values context.Context, end time.Time, connecting time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.Context, c.begun, c.end, c.connecting, c.sent = values, now, end, connecting, false
	c.extended = false
	c.time = max(end.Sub(now), 0)
	c.step, c.remaining = max(c.time/steps, leastOf), c.time
	c.arm(now)
}

// Sent begins the time again, because a request is being sent: connecting took the time until
// now. Without time to connect, it does nothing.
func (c *Context) Sent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, first := time.Now(), !c.sent
	c.sent = true
	if c.connecting == 0 || c.stopped || c.remaining <= 0 || first && now.Sub(c.begun) < leastOf {
		return
	}
	c.end, c.remaining = now.Add(c.time), c.time
	c.arm(now)
}

// IsSent reports whether Sent was called since Start.
func (c *Context) IsSent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

func (c *Context) arm(now time.Time) {
	next := min(c.step, c.remaining)
	c.stepEnd = now.Add(next)
	c.timer.Reset(next)
}

// tick ends a step.
func (c *Context) tick() {
	runtime.Gosched() // behind all waiting goroutines
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.stopped || now.Before(c.stepEnd) { // or Sent came first
		return
	}
	if delay := now.Sub(c.stepEnd); delay < c.step/2 || now.Sub(c.end) > maxMore {
		c.remaining -= c.step
		if end := c.deadline(); c.remaining <= 0 && end.After(c.end) {
			c.end, c.remaining, c.extended = end, c.connecting, true
		}
		if c.remaining <= 0 {
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
func (c *Context) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline(), true
}

func (c *Context) deadline() time.Time {
	if c.sent || c.extended {
		return c.end
	}
	return c.end.Add(c.connecting)
}

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
