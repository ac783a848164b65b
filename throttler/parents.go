package throttler

import (
	"slices"

	"github.com/weir-go/weir/throttler/quota"
)

// A decision adds charges for parents to the charges given to Take. Their real costs follow
// from the real costs of the given charges.

// added is a charge that is added for a parent.
type added struct {
	place int // index among the charges asked
	child int // place of the charge that it is added for; -1 if that has no limit
}

// links connects the charges of a decision to the charges of their parents. A receipt's text
// contains it.
type links struct {
	Given int     `json:"g"` // number of charges given to Take: the first ones
	Up    []int   `json:"u"` // for each charge, the index of its parent's charge, or -1
	Rest  []int64 `json:"r"` // for each charge, its cost for children without a limit

	// Places has, for each charge given to Take, its index among the charges, or -1. It is
	// empty if no index is -1.
	Places []int `json:"p,omitempty"`
}

// newLinks returns the links of a decision about n charges. callers has the indexes in
// resolved of the charges of Take's caller, and places those in the decision of the resolved.
func newLinks(resolved []Charge, callers []int, parents []added, places []int, n int) *links {
	l := &links{Up: make([]int, n), Rest: make([]int64, n)}
	if slices.Contains(callers, -1) {
		for i, place := range callers {
			if place >= 0 {
				callers[i] = places[place]
			}
		}
		l.Places = callers
	}
	for i := range l.Up {
		l.Up[i] = -1
	}
	for _, place := range places[:len(resolved)-len(parents)] {
		l.Given = max(l.Given, place+1)
	}
	for _, p := range parents {
		if p.child < 0 {
			l.Rest[places[p.place]] += charged(resolved[p.place])
		} else {
			l.Up[places[p.child]] = places[p.place]
		}
	}
	return l
}

// charged returns the units that c is charged if it fits.
func charged(c Charge) int64 {
	if c.Mode == quota.Check {
		return 0
	}
	c.Cost = max(c.Cost, 1)
	capCost(&c)
	return c.Cost
}

// callerCosts converts costs of the charges given to Take to costs of a decision's charges: it leaves
// out charges that no limit holds for.
func (l *links) callerCosts(costs []int64) []int64 {
	if l == nil || len(l.Places) == 0 || len(costs) != len(l.Places) {
		return costs
	}
	result := make([]int64, l.Given)
	for i, place := range l.Places {
		if place >= 0 {
			result[place] = min(result[place]+costs[i], quota.MaxQuota)
		}
	}
	return result
}

// costs returns the costs of all charges, from the costs of the caller's charges.
func (l *links) costs(callers []int64) []int64 {
	result := make([]int64, len(l.Up))
	for i := range result {
		cost := l.Rest[i]
		if i < l.Given {
			cost += callers[i]
		}
		for node := i; node >= 0; node = l.Up[node] {
			result[node] = min(result[node]+cost, quota.MaxQuota)
		}
	}
	return result
}

// added returns how many of a decision's charges were added for parents: 0 for a decision
// without counts.
func (l *links) added(charges int) uint8 {
	if l == nil || charges == 0 {
		return 0
	}
	return uint8(charges - l.Given)
}

// link records which charges of d were added for parents.
func (d *Decision) link(l *links) {
	d.Added = l.added(len(d.Charges()))
	if !d.Allowed {
		return
	}
	if d.receipt == nil {
		d.receipt = new(receiptState)
	}
	d.receipt.links = l
}
