package breaker

import (
	"sync"
	"time"
)

// counts counts the calls of the last window, step by step. The zero value is empty.
type counts struct {
	mu    sync.Mutex
	steps [window / step]struct {
		n             int64 // number of the step, from the first on
		calls, failed int
	}
}

// add counts a call that ended at now, a time since the breaker was started.
func (c *counts) add(now time.Duration, err error) {
	n := int64(now / step)
	c.mu.Lock()
	s := &c.steps[n%int64(len(c.steps))]
	if s.n < n { // s is a step that the window has left
		s.n, s.calls, s.failed = n, 0, 0
	}
	s.calls++
	if err != nil {
		s.failed++
	}
	c.mu.Unlock()
}

// sum returns the number of calls in the window that ends now, and how many of them failed.
func (c *counts) sum(now time.Duration) (calls, failed int) {
	n := int64(now / step)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.steps {
		if s := &c.steps[i]; n-s.n < int64(len(c.steps)) {
			calls += s.calls
			failed += s.failed
		}
	}
	return calls, failed
}
