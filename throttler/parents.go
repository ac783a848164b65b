package throttler

import (
	"slices"

	"github.com/weir-go/weir/quota"
)

// The charges of parents, which a decision adds to those that Take was given. What they
// cost in the end follows from what those do.

// added is a charge that is added for a parent.
type added struct {
	place int // among the charges asked
	child int // the place of what it is added for; -1 of what is not charged itself
}

// links says which charges of a decision follow which. A receipt's text has it.
type links struct {
	Given int     `json:"g"` // charges that Take was given: the first ones
	Up    []int   `json:"u"` // of each charge, the place of its parent's, or -1
	Rest  []int64 `json:"r"` // of each charge, its cost for what is not among the charges

	// Places has, of each charge that Take was given, the place among the charges, or -1. It is
	// empty if none is -1.
	Places []int `json:"p,omitempty"`
}

// newLinks returns the links of a decision about n charges. Of those given, given has the
// place among those asked, of which places has the place in the decision.
func newLinks(asked []Charge, given []int, parents []added, places []int, n int) *links {
	l := &links{Up: make([]int, n), Rest: make([]int64, n)}
	if slices.Contains(given, -1) {
		for i, place := range given {
			if place >= 0 {
				given[i] = places[place]
			}
		}
		l.Places = given
	}
	for i := range l.Up {
		l.Up[i] = -1
	}
	for _, place := range places[:len(asked)-len(parents)] {
		l.Given = max(l.Given, place+1)
	}
	for _, p := range parents {
		if p.child < 0 {
			l.Rest[places[p.place]] += charged(asked[p.place])
		} else {
			l.Up[places[p.child]] = places[p.place]
		}
	}
	return l
}

// charged returns what c is charged if it fits.
func charged(c Charge) int64 {
	if c.Mode == quota.Check {
		return 0
	}
	c.Cost = max(c.Cost, 1)
	capCost(&c)
	return c.Cost
}

// own returns costs, of the charges that Take was given, as those of these among a decision's
// charges: without the ones that no limit holds for.
func (l *links) own(costs []int64) []int64 {
	if l == nil || len(l.Places) == 0 || len(costs) != len(l.Places) {
		return costs
	}
	own := make([]int64, l.Given)
	for i, place := range l.Places {
		if place >= 0 {
			own[place] = min(own[place]+costs[i], quota.MaxQuota)
		}
	}
	return own
}

// costs returns what all charges cost if those that were given cost as much as own says.
func (l *links) costs(own []int64) []int64 {
	all := make([]int64, len(l.Up))
	for i := range all {
		cost := l.Rest[i]
		if i < l.Given {
			cost += own[i]
		}
		for at := i; at >= 0; at = l.Up[at] {
			all[at] = min(all[at]+cost, quota.MaxQuota)
		}
	}
	return all
}

// added returns how many of a decision's charges Take was not given. A decision without
// counts has none.
func (l *links) added(charges int) uint8 {
	if l == nil || charges == 0 {
		return 0
	}
	return uint8(charges - l.Given)
}

// link notes which charges of d, a take, are added for parents.
func (d *Decision) link(l *links) {
	d.Added = l.added(len(d.Charges()))
	if !d.Allowed {
		return
	}
	if d.receipt == nil {
		d.receipt = new(receipt)
	}
	d.receipt.links = l
}
