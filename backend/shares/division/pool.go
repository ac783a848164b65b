package division

import (
	"cmp"
	"slices"
)

// pool is what a collection found, and what its members may divide.
type pool struct {
	in      set
	reports []memberReport // in the order of members
	whole   bool           // every member of the list is in, and no other may hold units
	ref     *division
	places  []int // of reports: the place in ref of a member that has taken it in, and nothing since; or -1
	missing []int // places in ref of the other members
	taken   bool  // all members of ref have taken it in
	void    bool  // a member of ref never will: it is in this collection
}

// newPool returns the pool of collection k, by a list of n members, whose highest
// division is ref. seen are the members known to have taken ref in.
func newPool(k *collection, ref *division, seen set, n int) *pool {
	p := &pool{in: newSet(n), reports: slices.Clone(k.reports), ref: ref, whole: len(k.reports) == n}
	slices.SortFunc(p.reports, func(a, b memberReport) int { return cmp.Compare(a.member, b.member) })
	present := make(map[int]bool) // places in ref
	for i := range p.reports {
		r, place := &p.reports[i], -1
		if ref != nil && r.div == ref.id && ref.in.has(r.member) {
			place = ref.place(r.member)
			present[place] = true
		} else if ref != nil && ref.in.has(r.member) && r.born == ref.born[ref.place(r.member)] {
			p.void = true
		}
		p.places = append(p.places, place)
		p.in.add(r.member)
		p.whole = p.whole && r.whole
	}
	if ref != nil {
		for place := range ref.born {
			if !present[place] {
				p.missing = append(p.missing, place)
			}
		}
		p.taken = len(p.missing) == 0 || seen.covers(ref.in)
	}
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

// candidate is a key that may have a division of its own.
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
	if p.ref != nil {
		for _, v := range p.ref.vectors {
			// If the division that ended it is not complete, a member may still hold it.
			if v.id.quota == quota && v.id.key != 0 && (!v.ends || len(p.missing) > 0) {
				of(v.id.key).kept = true
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
	total := max(sum, p.left(id, v))
	if p.whole {
		total = v.total
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

// left returns the units of id that the members of the collection may hold by the
// division ref: its sum, less the most that the missing ones may hold of it, and what
// those hold that came by another way. It raises v.most to what ref entitles members to.
func (p *pool) left(id vectorID, v *vector) int64 {
	if p.ref == nil {
		return 0
	}
	of := p.ref.of(id)
	if of == nil {
		return 0
	}
	units, before := of.sum(), int64(0)
	for _, most := range of.most {
		before += most
	}
	if !p.taken {
		// The missing ones may have another division of ref's collection, and find the
		// units that no member held before in that one.
		units = min(units, before)
	}
	for _, place := range p.missing {
		units -= of.most[place]
		if !p.void { // the member may have the share
			units -= max(of.shares[place]-of.most[place], 0)
		}
	}
	for i, place := range p.places {
		if place >= 0 {
			v.most[i] = max(v.most[i], of.shares[place])
			if p.void {
				v.most[i] = max(v.most[i], of.most[place])
			}
		} else if it := p.item(i, id); it != nil {
			units += it.held
		}
	}
	return units
}

func (v *vector) sum() (units int64) {
	for _, s := range v.shares {
		units += s
	}
	return units
}
