package quota

// Charge asks for Cost units of everything that Policy allows to Key.
type Charge struct {
	// Policy names the limits. Required.
	Policy *Policy

	// Key is the identity that is charged: opaque bytes of any length. Backends
	// never show it, and hash what they cannot hold.
	Key string

	// Cost is the number of units, 1 to MaxQuota. Zero means 1, so that a charge
	// built without a cost is not a free pass. A cost above a limit's capacity
	// can never fit: it is refused, and the status' RetryAt is decision.Never.
	Cost int64

	// Partition is the key whose server holds the count, and part of what names
	// the count. If empty, the partition of the take's first charge, which in
	// turn is that charge's Key. All charges of one take share one partition, so
	// a key that many others share goes first: behind another key it would be a
	// separate count for each of those.
	Partition string
}
