package throttler

import "slices"

// Charge asks for Cost units of everything that Policy allows to Key.
type Charge struct {
	// Policy names the limits. Required.
	Policy *Policy

	// Key is the identity that is charged: opaque bytes of any length. Backends
	// never show it, and hash what they cannot hold.
	Key string

	// Cost is the number of units, 1 to MaxQuota. Zero means 1, so that a charge
	// built without a cost is not a free pass. A cost above a limit's capacity
	// can never fit: it is refused, and the status' RetryAt is [Never].
	Cost int64

	// Partition is the key whose server holds the count, and part of what names
	// the count. If empty, the partition of the take's first charge, which in
	// turn is that charge's Key. All charges of one take share one partition, so
	// a key that many others share goes first: behind another key it would be a
	// separate count for each of those.
	Partition string
}

// resolve makes r ask for charges as a backend takes them: with every Partition and
// Cost filled in, and charges to one count added up. The caller's slice is neither
// changed nor kept. The error says which argument is wrong.
func resolve(r *Request, charges []Charge) error {
	if len(charges) == 1 {
		c := &r.one[0]
		*c = charges[0]
		if c.Partition == "" {
			c.Partition = c.Key
		}
		return c.check(0)
	}
	if len(charges) == 0 {
		return invalid("no charges; a decision needs from 1 to %d", MaxCharges)
	}
	if len(charges) > MaxCharges {
		return invalid("%d charges; a decision can have at most %d", len(charges), MaxCharges)
	}
	partition := charges[0].Partition
	if partition == "" {
		partition = charges[0].Key
	}
	all := make([]Charge, 0, len(charges))
	work := 0
	for i, c := range charges {
		if err := c.check(i); err != nil {
			return err
		}
		if c.Partition == "" {
			c.Partition = partition
		}
		if c.Partition != partition {
			return invalid("charge %d, policy %q: its partition differs from the first charge's; charges that are decided together live on one server", i, c.Policy.Name)
		}
		same := slices.IndexFunc(all, func(o Charge) bool { return o.Key == c.Key && o.Policy.Name == c.Policy.Name })
		if same < 0 {
			for j := range c.Policy.Limits {
				work += c.Policy.Limits[j].Work()
			}
			if work > MaxWork {
				return invalid("with charge %d, policy %q, the decision is %d units of work for a server; it may be %d (see Limit.Work): decide about fewer charges or limits at once", i, c.Policy.Name, work, MaxWork)
			}
			all = append(all, c)
			continue
		}
		first := &all[same]
		if first.Policy != c.Policy && !slices.Equal(first.Policy.Limits, c.Policy.Limits) {
			return invalid("charge %d is for the same key and policy name, %q, as an earlier one, under other limits; policies of one name must have the same limits", i, c.Policy.Name)
		}
		if first.Cost += c.Cost; first.Cost > MaxQuota {
			return invalid("charge %d, policy %q: the costs for its key add up to %d; they must be at most %d (2^53)", i, c.Policy.Name, first.Cost, int64(MaxQuota))
		}
	}
	*r = NewRequest(0, all...)
	return nil
}

// check returns what is wrong with c, charge i of a decision, and sets a Cost that
// is not set.
func (c *Charge) check(i int) error {
	if err := c.Policy.Validate(); err != nil {
		return err
	}
	if c.Cost < 0 || c.Cost > MaxQuota {
		return invalid("charge %d, policy %q: cost is %d; it must be from 1 to %d (2^53), or 0 for 1", i, c.Policy.Name, c.Cost, int64(MaxQuota))
	}
	if c.Cost == 0 {
		c.Cost = 1
	}
	return nil
}
