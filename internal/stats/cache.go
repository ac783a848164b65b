package stats

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Cache keeps a V for each K. It finds an existing V without a lock and without an
// allocation.
type Cache[K comparable, V any] struct {
	Create func(K) V
	Max    int // most Ks besides Others
	Others K   // replaces all later Ks

	all atomic.Pointer[map[K]V]
	mu  sync.Mutex // held to change all
}

// Of returns the V of k, or of Others if there are too many.
func (c *Cache[K, V]) Of(k K) V {
	all := c.All()
	if v, ok := all[k]; ok {
		return v
	}
	if len(all) > c.Max {
		return all[c.Others] // it came last
	}
	return c.add(k)
}

func (c *Cache[K, V]) add(k K) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.All()
	if v, ok := old[k]; ok {
		return v
	}
	all := make(map[K]V, len(old)+1)
	maps.Copy(all, old)
	if len(all) >= c.Max {
		k = c.Others
	}
	if _, ok := all[k]; !ok {
		all[k] = c.Create(k)
	}
	c.all.Store(&all)
	return all[k]
}

// All returns the existing Vs. The caller must not change the map.
func (c *Cache[K, V]) All() map[K]V {
	if all := c.all.Load(); all != nil {
		return *all
	}
	return nil
}

// Drop forgets the V of k, which may still be in use, if is reports true for it.
func (c *Cache[K, V]) Drop(k K, is func(V) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(c.All())
	if v, ok := all[k]; ok && is(v) {
		delete(all, k)
		c.all.Store(&all)
	}
}
