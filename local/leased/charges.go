package leased

import (
	"slices"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// maxKeyBytes bounds a leased key and its partition together: the lease keeps them, to
// name the counts when it is given back.
const maxKeyBytes = 4 << 10

// leasable returns the cost of charges, or 0 if no lease can cover them: all must have the
// same cost and mode, fixed windows alone, and keys that are not too long. Charges to be
// recorded, or charged in part, go to the other backend.
func leasable(charges []quota.Charge) int64 {
	if len(charges) == 0 {
		return 0
	}
	cost := charges[0].Cost
	for i := range charges {
		c := &charges[i]
		if c.Cost != cost || c.Mode != charges[0].Mode || c.Mode != quota.Enforce && c.Mode != quota.Check || len(c.Key)+len(c.Partition) > maxKeyBytes {
			return 0
		}
		limits := c.Policy.Limits
		for k := range limits {
			if !limits[k].Algorithm.ResetsAtOnce() {
				return 0
			}
		}
	}
	return cost
}

// nameOf names the counts of charges, regardless of their limits.
func (b *Backend) nameOf(charges []quota.Charge) keyed.Name {
	n := b.names.Name(&charges[0])
	for i := range charges[1:] {
		n = n.And(b.names.Name(&charges[1+i]))
	}
	return n
}

// limitsOf names the limits of charges.
func (b *Backend) limitsOf(charges []quota.Charge) (n keyed.Name) {
	for i := range charges {
		limits := charges[i].Policy.Limits
		for k := range limits {
			window := uint64(limits[k].Window) << 1
			if limits[k].Aligned {
				window |= 1
			}
			n = n.And(keyed.Name{uint64(limits[k].Quota), window})
			if c := &limits[k].Calendar; c.Period != 0 {
				n = n.And(b.names.Numbered(c.Zone, uint64(c.Period), uint64(c.Day)<<16|uint64(c.Hour)<<8|uint64(c.Minute)))
			}
		}
		n[0]++ // marks the end of a policy
	}
	return n
}

// namesOf names the counts of each of charges.
func (b *Backend) namesOf(charges []quota.Charge) []keyed.Name {
	names := make([]keyed.Name, len(charges))
	for i := range charges {
		names[i] = b.names.Name(&charges[i])
	}
	return names
}

// withCost returns r with each charge at that cost.
func withCost(r *driver.Request, cost int64) driver.Request {
	charges := slices.Clone(r.Charges())
	for i := range charges {
		charges[i].Cost = cost
	}
	return r.Replace(charges...)
}

// free returns how many units fit into all limits after d.
func free(d *driver.Decision) int64 {
	least, i, results := int64(quota.MaxQuota), 0, d.Results()
	for _, c := range d.Charges() {
		for k := range c.Policy.Limits {
			least = min(least, results[i].Remaining(&c.Policy.Limits[k]))
			i++
		}
	}
	return least
}

// capacity returns how many units fit into all limits of charges while they are unused.
func capacity(charges []quota.Charge) int64 {
	least := int64(quota.MaxQuota)
	for i := range charges {
		limits := charges[i].Policy.Limits
		for k := range limits {
			least = min(least, limits[k].Quota)
		}
	}
	return least
}

// sameWindows reports whether two allowed takes were charged to the same windows.
func sameWindows(a, b *driver.Decision) bool {
	return slices.EqualFunc(a.Results(), b.Results(), func(a, b driver.Result) bool { return a.Mark == b.Mark })
}

// sameResets reports whether the windows of two answers end at the same instants.
func sameResets(a, b *driver.Decision) bool {
	return slices.EqualFunc(a.Results(), b.Results(), func(a, b driver.Result) bool { return a.ResetAt == b.ResetAt })
}

// addHeld makes d, a peek, report held units of l's windows as not used.
func addHeld(d, l *driver.Decision, held int64) {
	i, results := 0, d.Results()
	for _, c := range d.Charges() {
		for k := range c.Policy.Limits {
			result := &results[i]
			if result.ResetAt == l.Results()[i].ResetAt {
				result.Used = max(result.Used-held, 0) // another process may have reset the count
			}
			if result.RetryAt != 0 && result.Used+c.Cost <= c.Policy.Limits[k].Capacity() {
				result.RetryAt = 0
			}
			i++
		}
	}
	d.Grant()
}

// extra returns how much more than charged st costs, and whether the difference is the same
// for all charges.
func extra(st *driver.Settlement) (units int64, even bool) {
	charges := st.Charged.Charges()
	for i := range charges {
		m := st.Costs[i] - charges[i].Cost
		if i > 0 && m != units {
			return 0, false
		}
		units = m
	}
	return units, true
}
