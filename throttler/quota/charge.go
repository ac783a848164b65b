package quota

// Charge asks for Cost units of each limit of Policy for Key.
type Charge struct {
	// Policy names the limits. Required.
	Policy *Policy

	// Key is the identity that is charged: opaque bytes of any length. Backends
	// never show it, and hash keys that they can't store.
	Key string

	// Cost is the number of units, 1 to MaxQuota. Zero means 1, so that a charge
	// built without a cost is not a free pass. A cost above a limit's capacity
	// can never fit: it is refused, and the status' RetryAt is decision.Never.
	Cost int64

	// Partition is the key that selects the server of the count, and part of the count's
	// name. If empty, Key: the count is the key's, whatever else is charged with it.
	// See [Charge.Within].
	Partition string

	// Mode says how to charge a Cost that fits, and a Cost that does not. The zero value
	// is Enforce. All charges to one count in one decision have the same Mode.
	Mode Mode
}

// Within returns c counted inside the partition of outer, the key of another charge: the
// count of alice within acme is not the count of alice alone. Charges within one partition
// are on one server, and decided in one atomic step and round trip.
func (c Charge) Within(outer string) Charge {
	c.Partition = outer
	return c
}
