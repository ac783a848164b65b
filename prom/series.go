package weirprom

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// series keeps the series of each K. Those that exist are found without a lock and
// without an allocation.
type series[K comparable, V any] struct {
	all atomic.Pointer[map[K]V]

	mu     sync.Mutex // to add one
	create func(K) V
	max    int // how many there may be besides others
	others K   // for all that come later
}

func (s *series[K, V]) of(k K) V {
	if all := s.all.Load(); all != nil {
		if v, ok := (*all)[k]; ok {
			return v
		}
		if len(*all) > s.max {
			return (*all)[s.others] // others came last
		}
	}
	return s.add(k)
}

func (s *series[K, V]) add(k K) V {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[K]V)
	if old := s.all.Load(); old != nil {
		if v, ok := (*old)[k]; ok {
			return v
		}
		maps.Copy(all, *old)
	}
	if len(all) >= s.max {
		k = s.others
	}
	if _, ok := all[k]; !ok {
		all[k] = s.create(k)
	}
	s.all.Store(&all)
	return all[k]
}

// label returns s as a label's value. Prometheus panics if it is not UTF-8, which the
// name of a policy that is refused as invalid need not be.
func label(s string) string {
	const longest = 200
	if len(s) > longest {
		s = s[:longest]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
