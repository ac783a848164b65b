package driver

import (
	"context"
	"slices"

	"github.com/weir-go/weir/quota"
)

// Joiner is a Backend that may keep the counts of several partitions in one place, and
// decides about all of them in one atomic step then. A throttler asks other backends
// about one partition after the other.
type Joiner interface {
	Backend

	// Joins reports whether r, whose charges are of several partitions, is one decision.
	Joins(r Request) bool
}

// Joins reports whether r is one decision of b: its charges are of one partition, or b is a
// Joiner that joins theirs.
func Joins(b Backend, r *Request) bool {
	if !r.IsSplit() {
		return true
	}
	j, ok := b.(Joiner)
	return ok && j.Joins(*r)
}

// Rememberer is a Backend that may know that a take is refused without asking for it. A
// throttler that has to charge one partition after the other asks it about all of them before
// it charges the first: else a key that is used up would have the others charged, and given
// back, with each request.
type Rememberer interface {
	Backend

	// Refused returns the refusal with which Take would answer r, about one partition, from
	// memory. If it would ask, known is false.
	Refused(ctx context.Context, r Request) (d Decision, known bool)
}

// Refused returns what b knows of r without asking, if it is a Rememberer, or what the first
// backend behind it that is one does, by methods Unwrap() Backend.
func Refused(ctx context.Context, b Backend, r *Request) (d Decision, known bool) {
	if m, ok := As[Rememberer](b); ok {
		return m.Refused(ctx, *r)
	}
	return d, false
}

// Part is some of a Request's charges: see [Request.Part].
type Part struct {
	Request Request
	Places  []int // of its charges in the whole Request
}

// IsSplit reports whether r has charges of several partitions.
func (r *Request) IsSplit() bool {
	return slices.ContainsFunc(r.many, func(c quota.Charge) bool { return c.Partition != r.many[0].Partition })
}

// Part returns what r asks of the charges at places.
func (r *Request) Part(places []int) Part {
	own := make([]quota.Charge, len(places))
	for k, place := range places {
		own[k] = r.Charges()[place]
	}
	return Part{NewRequest(r.Now, own...), places}
}

// Parts returns what r asks of each partition, in the order in which the charges of r name
// them.
func (r *Request) Parts() []Part {
	var all [][]int
	charges := r.Charges()
	for i := range charges {
		p := slices.IndexFunc(all, func(places []int) bool { return charges[places[0]].Partition == charges[i].Partition })
		if p < 0 {
			p, all = len(all), append(all, nil)
		}
		all[p] = append(all[p], i)
	}
	parts := make([]Part, len(all))
	for p, places := range all {
		parts[p] = r.Part(places)
	}
	return parts
}

// CopyTo copies what d, a decision about p, says of each limit to whole, the decision about
// the Request that p is a part of. It does not say anything if d was made without counts.
func (p *Part) CopyTo(whole *Decision, d *Decision) {
	whole.Degraded = whole.Degraded || d.Degraded
	if len(d.Charges()) == 0 {
		return
	}
	for i, place := range p.Places {
		copy(whole.ResultsOf(place), d.ResultsOf(i))
	}
}

// CopyCosts copies what d, an allowed decision about p, charged to whole, which is allowed.
func (p *Part) CopyCosts(whole *Decision, d *Decision) {
	for i := range d.Charges() {
		whole.SetCost(p.Places[i], d.Charges()[i].Cost)
	}
}

// CopyFrom copies what whole says of p's limits to d, a decision about p.
func (p *Part) CopyFrom(whole *Decision, d *Decision) {
	for i, place := range p.Places {
		copy(d.ResultsOf(i), whole.ResultsOf(place))
	}
}

// Costs returns the costs of p's charges, of all costs of the whole Request.
func (p *Part) Costs(whole []int64) []int64 {
	own := make([]int64, len(p.Places))
	for i, place := range p.Places {
		own[i] = whole[place]
	}
	return own
}
