package synced

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weir-go/weir/internal/rendezvous"
)

// group is a set of roots that keep the same counters.
type group struct {
	servers []server
	first   int    // index of its first aggregator
	roots   uint64 // a bit for each root

	mu     sync.Mutex
	silent int          // roots that did not answer their last call
	alone  atomic.Int64 // ms: since when no root answers; 0 if one does
}

// groups contains all groups. Each counter belongs to one.
type groups struct {
	groups []*group
	ring   *rendezvous.Ring
	roots  int // of all groups
}

// groupsOf returns the groups of servers, in the order of their first servers.
func groupsOf(servers []server) *groups {
	divided := &groups{roots: len(servers)}
	var names []string
	for _, s := range servers {
		i := slices.Index(names, s.groupName())
		if i < 0 {
			i = len(names)
			names, divided.groups = append(names, s.groupName()), append(divided.groups, new(group))
		}
		divided.groups[i].servers = append(divided.groups[i].servers, s)
	}
	first := 0
	for _, g := range divided.groups {
		n := len(g.servers)
		g.first, g.roots = first, ^uint64(0)>>(64-min(n, MaxRoots))
		first += n
	}
	divided.ring = rendezvous.New(0, names) // it hashes names, which no client can choose
	return divided
}

// choose returns the group that keeps the counters of a name.
func (g *groups) choose(name string) *group { return g.groups[g.ring.Choose(name)] }

// isSilent reports whether no root of g answered its last call.
func (g *group) isSilent() bool { return g.alone.Load() != 0 }

// changed notes that a root of g stopped answering at now, or answers again. It reports whether
// it was the last.
func (g *group) changed(silent bool, now int64) (last bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !silent {
		g.silent--
		g.alone.Store(0)
		return false
	}
	if g.silent++; g.silent < len(g.servers) {
		return false
	}
	g.alone.Store(now)
	return true
}
