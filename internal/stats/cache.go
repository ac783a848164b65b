package stats

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Cache keeps a V for each K. It finds an existing V without a lock and without an
// allocation.
type Cache[K comparable, V any] struct {
	Create   func(K) V
	Max      int // most Ks besides Overflow
	Overflow K   // replaces all later Ks

	values atomic.Pointer[map[K]V]
	mu     sync.Mutex // held to change values
}

// Get returns the V of k, or of Others if there are too many.
func (c *Cache[K, V]) Get(k K) V {
	values := c.Values()
	if v, ok := values[k]; ok {
		return v
	}
	if len(values) > c.Max {
		return values[c.Overflow] // it came last
	}
	return c.add(k)
}

func (c *Cache[K, V]) add(k K) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.Values()
	if v, ok := old[k]; ok {
		return v
	}
	values := make(map[K]V, len(old)+1)
	maps.Copy(values, old)
	if len(values) >= c.Max {
		k = c.Overflow
	}
	if _, ok := values[k]; !ok {
		values[k] = c.Create(k)
	}
	c.values.Store(&values)
	return values[k]
}

// Values returns the existing Vs. The caller must not change the map.
func (c *Cache[K, V]) Values() map[K]V {
	if values := c.values.Load(); values != nil {
		return *values
	}
	return nil
}

// Drop forgets the V of k, which may still be in use, if match reports true for it.
func (c *Cache[K, V]) Drop(k K, match func(V) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	values := maps.Clone(c.Values())
	if v, ok := values[k]; ok && match(v) {
		delete(values, k)
		c.values.Store(&values)
	}
}
