package throttler

import (
	"context"
	"slices"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// resolve makes r, a zero Request, the one for charges now, as a backend takes it: with
// every Partition and Cost filled in, charges to one count added up, and under the policies
// that are in force. The caller's slice is neither changed nor kept. If the table of
// policies leaves nothing to ask, made is the decision. The error says which argument is
// wrong.
func (t *Throttler) resolve(ctx context.Context, r *driver.Request, charges []Charge) (made *decision.Decision, err error) {
	if len(charges) == 1 {
		c := r.Begin(&charges[0])
		if c.Partition == "" {
			c.Partition = c.Key
		}
		r.Now = t.now() // here, while the charge is written: see Begin
		if t.policies == nil {
			return nil, check(0, c)
		}
		return t.resolveOne(ctx, r, c)
	}
	if len(charges) == 0 {
		return nil, invalid.Errorf("throttler: no charges; a decision needs from 1 to %d", quota.MaxCharges)
	}
	if len(charges) > quota.MaxCharges {
		return nil, invalid.Errorf("throttler: %d charges; a decision can have at most %d", len(charges), quota.MaxCharges)
	}
	now := t.now()
	if t.policies != nil {
		if charges, made, err = t.inForce(ctx, now, charges); made != nil || err != nil {
			return made, err
		}
	}
	all, err := together(charges)
	*r = driver.NewRequest(now, all...)
	return nil, err
}

// together adds up charges to one count.
func together(charges []Charge) ([]Charge, error) {
	all := make([]Charge, 0, len(charges))
	work := 0
	for i, c := range charges {
		if err := check(i, &c); err != nil {
			return nil, err
		}
		if c.Partition == "" {
			c.Partition = c.Key
		}
		same := slices.IndexFunc(all, func(o Charge) bool {
			return o.Key == c.Key && o.Policy.Name == c.Policy.Name && o.Partition == c.Partition
		})
		if same < 0 {
			for j := range c.Policy.Limits {
				work += c.Policy.Limits[j].Work()
			}
			if work > quota.MaxWork {
				return nil, invalid.Errorf("throttler: with charge %d, policy %q, the decision is %d units of work for a server; it may be %d (see Limit.Work): decide about fewer charges or limits at once", i, c.Policy.Name, work, quota.MaxWork)
			}
			all = append(all, c)
			continue
		}
		first := &all[same]
		if first.Policy != c.Policy && !slices.Equal(first.Policy.Limits, c.Policy.Limits) {
			return nil, invalid.Errorf("throttler: charge %d is for the same key and policy name, %q, as an earlier one, under other limits; policies of one name must have the same limits", i, c.Policy.Name)
		}
		if first.Cost += c.Cost; first.Cost > quota.MaxQuota {
			return nil, invalid.Errorf("throttler: charge %d, policy %q: the costs for its key add up to %d; they must be at most %d (2^53)", i, c.Policy.Name, first.Cost, int64(quota.MaxQuota))
		}
	}
	return all, nil
}

// check returns what is wrong with c, charge i of a decision, and sets a Cost that
// is not set.
func check(i int, c *Charge) error {
	if err := c.Policy.Validate(); err != nil {
		return err
	}
	return checkCost(i, c)
}

func checkCost(i int, c *Charge) error {
	if c.Cost < 0 || c.Cost > quota.MaxQuota {
		return invalid.Errorf("throttler: charge %d, policy %q: cost is %d; it must be from 1 to %d (2^53), or 0 for 1", i, c.Policy.Name, c.Cost, int64(quota.MaxQuota))
	}
	if c.Cost == 0 {
		c.Cost = 1
	}
	return nil
}
