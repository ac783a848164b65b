package stats

import "sync"

// Counts guards S, a struct of numbers. The zero value contains the zero S.
type Counts[S any] struct {
	mu  sync.Mutex
	now S
}

// Change changes the numbers. It must not call c.
func (c *Counts[S]) Change(change func(*S)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.now)
}

// Now returns the numbers.
func (c *Counts[S]) Now() S {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}
