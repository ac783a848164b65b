package division

import (
	"cmp"
	"slices"
)

// pool contains the reports of a round, and determines the units that its members may divide.
type pool struct {
	reports []*message // in the order of members
	ledger  *ledger    // of the other processes
	all     bool       // every member of the list is in
	full    bool       // they divide the quota, less the most that others may hold
}

// newPool returns the pool of the reports of members of a list.
func newPool(reports []*message, list *List) *pool {
	p := &pool{reports: reports, ledger: newLedger(reports, list), all: len(reports) == len(list.Members)}
	slices.SortFunc(p.reports, func(a, b *message) int { return a.From.compare(b.From) })
	informed, whole := 0, true
	for _, m := range p.reports {
		whole = whole && m.Report.Whole
		if m.Report.Informed {
			informed++
		}
	}
	p.full = whole && (p.all || 2*informed > len(list.Members) && !p.ledger.lost)
	return p
}

// divide returns the division that ends a round, or nil if there is nothing to divide.
func (p *pool) divide(id roundID, keys int) *division {
	d := &division{ID: id, Full: p.full, Lost: p.ledger.lost}
	for _, m := range p.reports {
		d.Members = append(d.Members, row{process: m.From})
	}
	useful := false
	for _, quota := range p.quotas() {
		group := p.add(d, vectorID{Quota: quota})
		useful = useful || d.sum(group) > 0
		for _, key := range p.keys(quota, keys) {
			v := p.add(d, vectorID{quota, key.key})
			if key.wanted || d.sum(v) < d.sum(group) {
				continue
			}
			d.Vectors[v].Ends = true
			for i := range d.Members {
				d.Members[i].Shares[v] = d.Members[i].Shares[group]
			}
		}
	}
	if !useful || len(d.Vectors) > maxVectors {
		return nil
	}
	d.Others = p.ledger.rows(d.Vectors)
	return d
}

// find returns the item of id in r, or nil.
func (r *report) find(id vectorID) *item {
	if i, ok := slices.BinarySearchFunc(r.Items, id, func(it item, id vectorID) int { return it.compare(id) }); ok {
		return &r.Items[i]
	}
	return nil
}

// quotas returns the quotas that a member knows, or that another process may hold, in
// order.
func (p *pool) quotas() []uint64 {
	var all []uint64
	for _, m := range p.reports {
		for _, it := range m.Report.Items {
			all = append(all, it.Quota)
		}
	}
	for holder, entries := range p.ledger.known {
		for _, e := range entries {
			for _, v := range e.Vectors {
				if v.Key == 0 && p.ledger.most(holder, v.vectorID) > 0 {
					all = append(all, v.Quota)
				}
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
	own    bool // it has one now
	wanted bool
}

// keys returns the keys of a quota that need a vector, in order: keys that have one, and the
// most demanded of the others as far as there is room.
func (p *pool) keys(quota uint64, most int) []candidate {
	all := p.candidates(quota)
	// A key keeps its division until another has 1.5 times its demand: two keys that
	// are equally busy don't change places in every round.
	rank := func(k candidate) float64 {
		if k.own {
			return 1.5 * k.demand
		}
		return k.demand
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a.key, b.key))
	})
	room := 2 * most
	for _, k := range all {
		if k.own {
			room--
		}
	}
	needed := all[:0]
	for i, k := range all {
		k.wanted = i < most && k.demand > 0
		if !k.own && k.wanted {
			if room <= 0 {
				continue // the old ones end first
			}
			room--
		}
		if k.own || k.wanted {
			needed = append(needed, k)
		}
	}
	slices.SortFunc(needed, func(a, b candidate) int { return cmp.Compare(a.key, b.key) })
	return needed
}

// candidates returns the keys of a quota that are demanded, or have their own division.
func (p *pool) candidates(quota uint64) []candidate {
	byKey := make(map[uint64]candidate)
	for _, m := range p.reports {
		for _, it := range m.Report.Items {
			if k := byKey[it.Key]; it.Quota == quota && it.Key != 0 {
				byKey[it.Key] = candidate{key: it.Key, demand: k.demand + float64(it.Demand), own: k.own || it.Own}
			}
		}
	}
	for _, key := range p.ledger.large(quota) {
		byKey[key] = candidate{key: key, demand: byKey[key].demand, own: true}
	}
	all := make([]candidate, 0, len(byKey))
	for _, k := range byKey {
		all = append(all, k)
	}
	return all
}

// add divides the units of id that the members may hold, and adds the vector to d. It returns
// the vector's index. If their totals differ, as they do while a new configuration is rolled
// out, it divides the lowest.
func (p *pool) add(d *division, id vectorID) int {
	v := vector{vectorID: id}
	var low, sum int64
	var knows []int // the members that know the quota
	var held []int64
	var demand []float64
	for i, m := range p.reports {
		r := &d.Members[i]
		r.Most, r.Shares, r.Demand = append(r.Most, 0), append(r.Shares, 0), append(r.Demand, 0)
		group := m.Report.find(vectorID{Quota: id.Quota})
		if group == nil {
			continue
		}
		if len(knows) == 0 || group.Total < v.Total {
			v.Total = group.Total
		}
		low = max(low, group.Low)
		of := group
		if id.Key != 0 {
			if of = m.Report.find(id); of == nil {
				of = &item{Held: group.Held} // its quota's share, for a key that it does not name
			}
		}
		knows, held, demand = append(knows, i), append(held, of.Held), append(demand, float64(of.Demand))
		sum += of.Held
		r.Most[len(d.Vectors)], r.Demand[len(d.Vectors)] = of.Held, of.Demand
	}
	if len(knows) > 0 {
		for k, units := range apportion(p.total(v, sum), low, demand, held) {
			d.Members[knows[k]].Shares[len(d.Vectors)] = units
		}
	}
	d.Vectors = append(d.Vectors, v)
	return len(d.Vectors) - 1
}

// total returns the units of v that the members, which hold sum, divide.
func (p *pool) total(v vector, sum int64) int64 {
	switch {
	case p.all && p.full:
		sum = v.Total
	case p.full:
		sum = max(sum, v.Total-p.ledger.sum(v.vectorID))
	}
	return min(sum, v.Total)
}
