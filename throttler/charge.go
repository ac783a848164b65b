package throttler

// Charge asks for Cost units of everything that Policy allows to Key.
type Charge struct {
	// Policy names the limits. Required.
	Policy *Policy

	// Key is who is charged: opaque bytes of any length. Backends never show
	// it: what they cannot hold they hash.
	Key string

	// Cost is the number of units, 0 to MaxQuota. Zero asks for nothing: it is
	// allowed unless a limit is in debt, and opens no window. [Policy.Charge]
	// sets 1. A cost above a limit's capacity can never fit: it is refused,
	// and the status' RetryAt is [Never].
	Cost int64

	// Partition is the key of whose server the count lives on, and part of
	// what names the count. If empty, the partition of the take's first
	// charge, which in turn is that charge's Key. All charges of one take
	// share one partition, so one that many keys share goes first: behind
	// another it would be a count of its own for each of those.
	Partition string
}

// partitioned returns charges with every Partition filled in, or says which
// argument is wrong. The caller's slice stays as it was.
func partitioned(charges []Charge) ([]Charge, error) {
	if len(charges) == 0 {
		return nil, invalid("no charges; a decision needs from 1 to %d", MaxCharges)
	}
	if len(charges) > MaxCharges {
		return nil, invalid("%d charges; a decision can have at most %d", len(charges), MaxCharges)
	}
	partition := charges[0].Partition
	if partition == "" {
		partition = charges[0].Key
	}
	all := make([]Charge, len(charges))
	for i, c := range charges {
		if err := c.Policy.Validate(); err != nil {
			return nil, err
		}
		if c.Cost < 0 || c.Cost > MaxQuota {
			return nil, invalid("charge %d, policy %q: cost is %d; it must be from 0 to %d (2^53)", i, c.Policy.Name, c.Cost, int64(MaxQuota))
		}
		if c.Partition == "" {
			c.Partition = partition
		}
		if c.Partition != partition {
			return nil, invalid("charge %d, policy %q: its partition is not that of charge 0; charges that are decided together live on one server", i, c.Policy.Name)
		}
		for j := range i {
			if all[j].Key == c.Key && all[j].Policy.Name == c.Policy.Name {
				return nil, invalid("charges %d and %d are both for one key under policy %q; add their costs", j, i, c.Policy.Name)
			}
		}
		all[i] = c
	}
	return all, nil
}
