package weirotel

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// cache keeps a V for each K. Those that exist are found without a lock and without an
// allocation.
type cache[K comparable, V any] struct {
	all atomic.Pointer[map[K]V]

	mu     sync.Mutex // to add one
	create func(K) V
	max    int // how many there may be besides others
	others K   // for all that come later
}

func (c *cache[K, V]) of(k K) V {
	if all := c.all.Load(); all != nil {
		if v, ok := (*all)[k]; ok {
			return v
		}
		if len(*all) > c.max {
			return (*all)[c.others] // others came last
		}
	}
	return c.add(k)
}

func (c *cache[K, V]) add(k K) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[K]V)
	if old := c.all.Load(); old != nil {
		if v, ok := (*old)[k]; ok {
			return v
		}
		maps.Copy(all, *old)
	}
	if len(all) >= c.max {
		k = c.others
	}
	if _, ok := all[k]; !ok {
		all[k] = c.create(k)
	}
	c.all.Store(&all)
	return all[k]
}

// value returns s as the value of an attribute: it must be UTF-8, which the name of a
// policy that is refused as invalid need not be.
func value(s string) string {
	const longest = 200
	if len(s) > longest {
		s = s[:longest]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
