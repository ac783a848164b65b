package division

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"time"
)

// id returns the number of a quota in messages.
func (q *Quota) id() uint64 {
	sum := sha256.Sum256([]byte(q.Name))
	return binary.LittleEndian.Uint64(sum[:])
}

// Low returns the minimum units of each of n members, if there are enough.
func (q *Quota) Low(n int) int64 { return max(q.Total/int64(20*n), q.Step, 1) }

// report returns the demand of this member.
func (c *core) report(now time.Time) *report {
	r := &report{Holds: c.valid}
	for i := range c.quotas {
		q := &c.quotas[i]
		v := item{Quota: c.ids[i], Total: q.Total, Low: min(q.Low(len(c.list.Members)), q.Total)}
		if q.Demand != nil {
			d := q.Demand(now, 2*c.keys)
			v.Demand = finite(d.Units)
			for _, k := range d.Keys[:min(len(d.Keys), 2*c.keys)] {
				if k.Key != 0 {
					v.Keys = append(v.Keys, keyDemand{k.Key, finite(k.Units)})
				}
			}
		}
		r.Items = append(r.Items, v)
	}
	return r
}

// finite returns f, or the nearest value that a message may contain.
func finite(f float64) float32 {
	if !(f > 0) {
		return 0
	}
	return float32(min(f, 1e30))
}

// divide returns the division of the reports of all members.
func (c *core) divide() *division {
	d := &division{ID: c.joined, First: true, Members: c.round.processes}
	byQuota := make(map[uint64][]*item) // in the order of members; nil if a member doesn't know the quota
	for i, r := range c.round.reports {
		d.First = d.First && !r.Holds
		for k := range r.Items {
			v := &r.Items[k]
			if byQuota[v.Quota] == nil {
				byQuota[v.Quota] = make([]*item, len(c.round.reports))
			}
			byQuota[v.Quota][i] = v
		}
	}
	for _, id := range slices.Sorted(maps.Keys(byQuota)) {
		c.divideQuota(d, id, byQuota[id])
	}
	return d
}

// divideQuota adds the vectors of a quota to d. If the members' totals differ, as they do while
// a new configuration is rolled out, it divides the lowest. A key with its own vector does not
// count in the demand for the others.
func (c *core) divideQuota(d *division, id uint64, items []*item) {
	group := vector{vectorID: vectorID{Quota: id}, Total: math.MaxInt64, Demand: make([]float32, len(items))}
	var low int64
	demand, byKey := make([]float64, len(items)), make(map[uint64][]float64)
	for i, v := range items {
		if v == nil {
			continue
		}
		group.Total, low = min(group.Total, v.Total), max(low, v.Low)
		group.Demand[i], demand[i] = v.Demand, float64(v.Demand)
		for _, k := range v.Keys {
			if byKey[k.Key] == nil {
				byKey[k.Key] = make([]float64, len(items))
			}
			byKey[k.Key][i] = float64(k.Units)
		}
	}
	keys := c.busiest(id, byKey)
	for _, key := range keys {
		for i, units := range byKey[key] {
			demand[i] = max(demand[i]-units, 0)
		}
	}
	group.Shares = c.apportion(&group, low, items, demand)
	d.Vectors = append(d.Vectors, group)
	for _, key := range keys {
		v := vector{vectorID: vectorID{id, key}, Total: group.Total}
		v.Shares = c.apportion(&v, low, items, byKey[key])
		d.Vectors = append(d.Vectors, v)
	}
}

// busiest returns the keys of a quota with the highest demand, in order.
func (c *core) busiest(quota uint64, demand map[uint64][]float64) []uint64 {
	// A key keeps its division until another has 1.5 times its demand: two keys that
	// are equally busy don't change places in every round.
	rank := make(map[uint64]float64)
	for key, units := range demand {
		for _, u := range units {
			rank[key] += u
		}
		if v := c.div.find(vectorID{quota, key}); v != nil && v.Key == key {
			rank[key] *= 1.5
		}
	}
	keys := slices.Sorted(maps.Keys(rank))
	slices.SortStableFunc(keys, func(a, b uint64) int { return cmp.Compare(rank[b], rank[a]) })
	keys = slices.DeleteFunc(keys[:min(len(keys), c.keys)], func(key uint64) bool { return rank[key] <= 0 })
	slices.Sort(keys)
	return keys
}

// apportion returns the shares of v for the members that know its quota, from their shares in
// the last division on.
func (c *core) apportion(v *vector, low int64, items []*item, demand []float64) []int64 {
	last := c.div.find(v.vectorID)
	var members []int
	var held []int64
	var weights []float64
	for i, v := range items {
		if v == nil {
			continue
		}
		members, weights, held = append(members, i), append(weights, demand[i]), append(held, 0)
		if last != nil {
			held[len(held)-1] = last.Shares[i]
		}
	}
	shares := make([]int64, len(items))
	for k, units := range apportion(v.Total, low, weights, held) {
		shares[members[k]] = units
	}
	return shares
}
