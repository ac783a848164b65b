package division

import (
	"cmp"
	"slices"
)

// pool is what a round found, and what its members may divide.
type pool struct {
	in      set
	reports []memberReport // in the order of members
	all     bool           // every member of the list is in
	full    bool           // they divide the quota less what others may hold
	absent  *ledger        // of the other processes
}

// newPool returns the pool of round k, by a list of n members, whose highest
// division is ref. seen are the members known to have taken ref in.
func newPool(k *round, ref *division, seen set, n int) *pool {
	p := &pool{in: newSet(n), reports: slices.Clone(k.reports), all: len(k.reports) == n, absent: k.absent}
	slices.SortFunc(p.reports, func(a, b memberReport) int { return cmp.Compare(a.member, b.member) })
	informed, whole := 0, true
	for _, r := range p.reports {
		p.in.add(r.member)
		whole = whole && r.whole
		if r.informed {
			informed++
		}
	}
	if ref != nil {
		p.absent = merge(n, ref.knows(seen, n), k.absent)
	}
	p.absent = p.absent.without(func(e *entry) bool { return k.has(e.holder) })
	p.full = whole && (p.all || 2*informed > n && !p.absent.lost)
	return p
}

// item returns what the member of report i said of id: of a key that it did not name,
// that it holds its quota's share. It returns nil if the member does not know the quota.
func (p *pool) item(i int, id vectorID) *item {
	items := p.reports[i].items
	search := func(id vectorID) *item {
		if at, ok := slices.BinarySearchFunc(items, id, func(it item, id vectorID) int { return it.id.compare(id) }); ok {
			return &items[at]
		}
		return nil
	}
	it := search(id)
	if it == nil && id.key != 0 {
		if group := search(vectorID{quota: id.quota}); group != nil {
			it = &item{id: id, total: group.total, held: group.held}
		}
	}
	return it
}

// quotas returns the quotas that a member knows.
func (p *pool) quotas() []uint64 {
	var all []uint64
	for _, r := range p.reports {
		for _, it := range r.items {
			if it.id.key == 0 {
				all = append(all, it.id.quota)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// candidate is a key that may have its own division.
type candidate struct {
	key    uint64
	demand float64
	kept   bool // it has one now
	wanted bool
}

// keys returns the keys of a quota that need a vector: those that have one, and the
// most demanded of the others as far as there is room.
func (p *pool) keys(quota uint64, most int) []candidate {
	byKey := make(map[uint64]*candidate)
	of := func(key uint64) *candidate {
		if byKey[key] == nil {
			byKey[key] = &candidate{key: key}
		}
		return byKey[key]
	}
	for _, r := range p.reports {
		for _, it := range r.items {
			if it.id.quota == quota && it.id.key != 0 {
				k := of(it.id.key)
				k.demand += float64(it.demand)
				k.kept = k.kept || it.kept
			}
		}
	}
	if p.full && !p.all {
		for _, id := range p.absent.ids {
			if id.quota == quota && id.key != 0 && p.absent.large(id) {
				of(id.key).kept = true
			}
		}
	}
	var all []candidate
	kept := 0
	for _, k := range byKey {
		all = append(all, *k)
		if k.kept {
			kept++
		}
	}
	// A key keeps its division until another is asked for half as much again: two keys
	// that are equally busy do not change places in every round.
	rank := func(k candidate) float64 {
		if k.kept {
			return 1.5 * k.demand
		}
		return k.demand
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a.key, b.key))
	})
	needed := all[:0]
	for i, k := range all {
		k.wanted = i < most && k.demand > 0
		if !k.kept && k.wanted {
			if kept == 2*most {
				continue // the old ones end first
			}
			kept++
		}
		if k.kept || k.wanted {
			needed = append(needed, k)
		}
	}
	return needed
}

// vector divides what the members may hold of id. Where their totals differ, which is
// while a new configuration is rolled out, it divides the lowest.
func (p *pool) vector(id vectorID, divide Divide) *vector {
	v := &vector{id: id}
	n := len(p.reports)
	var low, sum int64
	var knows []int // the reports of members that know the quota
	v.most, v.shares, v.demand = make([]int64, n), make([]int64, n), make([]float32, n)
	var held []int64
	var reports []Report
	for i := range p.reports {
		it := p.item(i, id)
		if it == nil {
			continue
		}
		if v.total == 0 || it.total < v.total {
			v.total = it.total
		}
		if group := p.item(i, vectorID{quota: id.quota}); group != nil {
			low = max(low, group.low)
		}
		knows = append(knows, i)
		held = append(held, it.held)
		sum += it.held
		reports = append(reports, Report{it.held, float64(it.demand), float64(it.largest)})
		v.demand[i], v.most[i] = it.demand, it.held
	}
	if id.key != 0 {
		v.demand = nil
	}
	total := sum
	switch {
	case p.all && p.full:
		total = v.total
	case p.full:
		total = max(sum, v.total-p.absent.sum(id))
	}
	total = min(total, v.total)
	weights := divide(total, reports)
	if len(weights) != len(reports) {
		weights = make([]float64, len(reports)) // of no use, but no reason to crash
	}
	shares := apportion(total, low, weights, held)
	for k, i := range knows {
		v.shares[i] = shares[k]
	}
	return v
}

func (v *vector) sum() (units int64) {
	for _, s := range v.shares {
		units += s
	}
	return units
}
