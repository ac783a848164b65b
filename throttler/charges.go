package throttler

import (
	"fmt"
	"slices"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/quota"
)

// together adds up charges to one count. If places is not nil, together stores in it, for
// each charge, the index of the merged charge.
func together(charges []Charge, places []int) ([]Charge, error) {
	merged := make([]Charge, 0, len(charges))
	work := 0
	for i, c := range charges {
		if err := check(i, &c); err != nil {
			return nil, err
		}
		if c.Partition == "" {
			c.Partition = c.Key
		}
		equal := slices.IndexFunc(merged, func(o Charge) bool {
			return o.Key == c.Key && o.Policy.Name == c.Policy.Name && o.Partition == c.Partition
		})
		if places != nil {
			if places[i] = equal; equal < 0 {
				places[i] = len(merged)
			}
		}
		if equal < 0 {
			for j := range c.Policy.Limits {
				work += c.Policy.Limits[j].Work()
			}
			if work > quota.MaxWork {
				return nil, invalid.Errorf("throttler: with charge %d, policy %q, the decision is %d units of work for a server; it may be %d (see Limit.Work): decide about fewer charges or limits at once", i, c.Policy.Name, work, quota.MaxWork)
			}
			merged = append(merged, c)
			continue
		}
		first := &merged[equal]
		if first.Mode != c.Mode {
			return nil, invalid.Errorf("throttler: charge %d is for the same key and policy, %q, as an earlier one, in mode %v and not %v; charges to one count must have one mode: decide about them one after the other", i, c.Policy.Name, c.Mode, first.Mode)
		}
		if !alike(first.Policy, c.Policy) {
			return nil, invalid.Errorf("throttler: charge %d is for the same key and policy name, %q, as an earlier one, under other limits or another parent; policies of one name must have the same", i, c.Policy.Name)
		}
		if first.Cost += c.Cost; first.Cost > quota.MaxQuota {
			return nil, invalid.Errorf("throttler: charge %d, policy %q: the costs for its key add up to %d; they must be at most %d (2^53)", i, c.Policy.Name, first.Cost, int64(quota.MaxQuota))
		}
	}
	for i := range merged {
		capCost(&merged[i])
	}
	return merged, nil
}

// capCost turns c, if its mode is Capped, into a charge in mode Enforce that a full quota has
// room for.
func capCost(c *Charge) {
	if c.Mode != quota.Capped {
		return
	}
	c.Mode = quota.Enforce
	for i := range c.Policy.Limits {
		if l := &c.Policy.Limits[i]; l.Units(c.Cost) > l.Capacity() {
			c.Cost = l.Capacity()
		}
	}
}

// alike reports whether two policies of one name have equal limits and parents.
func alike(a, b *Policy) bool {
	return a == b || slices.Equal(a.Limits, b.Limits) && a.Parent == b.Parent && a.ParentKey == b.ParentKey
}

// checkNumber returns an error if a decision cannot be about that many charges.
func checkNumber(charges []Charge) error {
	if len(charges) == 0 {
		return invalid.Errorf("throttler: no charges; a decision needs from 1 to %d", quota.MaxCharges)
	}
	if len(charges) > quota.MaxCharges {
		return invalid.Errorf("throttler: %d charges; a decision can have at most %d", len(charges), quota.MaxCharges)
	}
	return nil
}

// checkAlone is check for a throttler without a table.
func checkAlone(i int, c *Charge) error {
	if c.Policy != nil && c.Policy.Parent != "" {
		return invalid.Errorf("throttler: charge %d: policy %q has the parent %q, and there is no table of policies to have it; set Options.Policies", i, c.Policy.Name, c.Policy.Parent)
	}
	return check(i, c)
}

// check validates c, charge i of a decision, and sets its Cost if it is zero.
func check(i int, c *Charge) error {
	if c.Policy == nil {
		return fmt.Errorf("throttler: charge %d: %w", i, c.Policy.Validate())
	}
	if err := checkCost(i, c); err != nil {
		return err
	}
	return c.Policy.Validate()
}

func checkCost(i int, c *Charge) error {
	if c.Cost < 0 || c.Cost > quota.MaxQuota {
		return invalid.Errorf("throttler: charge %d, policy %q: cost is %d; it must be from 1 to %d (2^53), or 0 for 1", i, c.Policy.Name, c.Cost, int64(quota.MaxQuota))
	}
	if !c.Mode.Known() {
		return invalid.Errorf("throttler: charge %d, policy %q: mode is %d; it must be Enforce, Record, Check, AtMost or Capped", i, c.Policy.Name, c.Mode)
	}
	if c.Cost == 0 {
		c.Cost = 1
	}
	return nil
}
