package synced

import (
	"slices"

	"github.com/weir-go/weir/internal/rendezvous"
)

// group is a set of roots that keep the same counters.
type group struct {
	servers []server
	first   int    // index of its first aggregator
	every   uint64 // a bit for each root
}

// groups contains all groups. Each counter belongs to one.
type groups struct {
	groups []*group
	ring   *rendezvous.Ring
	roots  int // of all groups
}

// groupsOf returns the groups of servers, in the order of their first servers.
func groupsOf(servers []server) *groups {
	all := &groups{roots: len(servers)}
	var names []string
	for _, s := range servers {
		i := slices.Index(names, s.groupName())
		if i < 0 {
			i = len(names)
			names, all.groups = append(names, s.groupName()), append(all.groups, new(group))
		}
		all.groups[i].servers = append(all.groups[i].servers, s)
	}
	first := 0
	for _, g := range all.groups {
		n := len(g.servers)
		g.first, g.every = first, ^uint64(0)>>(64-min(n, MaxRoots))
		first += n
	}
	all.ring = rendezvous.New(0, names) // it hashes root names, which no client can choose
	return all
}

// of returns the group that keeps the counters of a root name.
func (all *groups) of(root string) *group { return all.groups[all.ring.Choose(root)] }
