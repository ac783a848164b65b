package driver

import (
	"context"
	"slices"

	"github.com/weir-go/weir/throttler/quota"
)

// Joiner is a Backend that may keep the counts of several partitions in one place, and then
// decides about all of them in one atomic step. A throttler asks other backends about one
// partition after the other.
type Joiner interface {
	Backend

	// Joins reports whether r, with charges of several partitions, is one decision.
	Joins(r Request) bool
}

// Joins reports whether r is one decision of b: its charges are of one partition, or b is a
// Joiner that joins their partitions.
func Joins(b Backend, r *Request) bool {
	if !r.IsSplit() {
		return true
	}
	j, ok := b.(Joiner)
	return ok && j.Joins(*r)
}

// Rememberer is a Backend that may remember that a take is refused. A throttler that charges
// one partition after the other asks it about all of them before it charges the first.
// Otherwise each request for a key that is used up would charge, and then refund, other keys.
type Rememberer interface {
	Backend

	// Refused returns, from memory, the refusal that Take would return for r, a request about
	// one partition. If Take would have to ask for it, ok is false.
	Refused(ctx context.Context, r Request) (d Decision, ok bool)
}

// Refused calls the method of the first Rememberer among b and the backends behind it, which
// it finds by methods Unwrap() Backend. If no backend is a Rememberer, ok is false.
func Refused(ctx context.Context, b Backend, r *Request) (d Decision, ok bool) {
	if m, ok := As[Rememberer](b); ok {
		return m.Refused(ctx, *r)
	}
	return d, false
}

// Part is some of a Request's charges: see [Request.Part].
type Part struct {
	Request Request
	Places  []int // indexes of its charges in the whole Request
}

// IsSplit reports whether r has charges of several partitions.
func (r *Request) IsSplit() bool {
	if r.list == nil {
		return false // one charge, or none
	}
	charges := *r.list
	return slices.ContainsFunc(charges, func(c quota.Charge) bool { return c.Partition != charges[0].Partition })
}

// Part returns the part of r with the charges at places.
func (r *Request) Part(places []int) Part {
	charges := make([]quota.Charge, len(places))
	for k, place := range places {
		charges[k] = r.Charges()[place]
	}
	return Part{r.Replace(charges...), places}
}

// Parts returns the parts of r, one for each partition, in the order of the partitions'
// first charges.
func (r *Request) Parts() []Part {
	var groups [][]int
	charges := r.Charges()
	for i := range charges {
		p := slices.IndexFunc(groups, func(places []int) bool { return charges[places[0]].Partition == charges[i].Partition })
		if p < 0 {
			p, groups = len(groups), append(groups, nil)
		}
		groups[p] = append(groups[p], i)
	}
	parts := make([]Part, len(groups))
	for p, places := range groups {
		parts[p] = r.Part(places)
	}
	return parts
}

// CopyFrom copies joint's results for p's limits to d, a decision about p.
func (p *Part) CopyFrom(joint *Decision, d *Decision) {
	for i, place := range p.Places {
		copy(d.ResultsOf(i), joint.ResultsOf(place))
	}
}

// Costs returns the costs of p's charges, out of costs, which are of the whole Request.
func (p *Part) Costs(costs []int64) []int64 {
	part := make([]int64, len(p.Places))
	for i, place := range p.Places {
		part[i] = costs[place]
	}
	return part
}
