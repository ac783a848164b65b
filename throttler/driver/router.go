package driver

import (
	"context"

	"github.com/weir-go/weir/throttler/quota"
)

// Router is a Backend in front of several others, such as a store and counts in this process.
// It decides nothing itself: a throttler asks the others, each about the charges that the
// Router routes to it, and settles a charge at the backends that have it.
type Router interface {
	Backend

	// Backends returns the backends, at most 8. A take asks the last one first, and a
	// settlement the first one first. Only the first one has receipts.
	Backends() []Backend

	// Route returns the backends that decide about charges of p at now, in ms since the epoch.
	// Bit i is for the i-th of Backends. Several backends have to allow a charge, and each
	// charges it.
	Route(p *quota.Policy, now int64) (backends uint8)

	// Taken is called after an allowed take, r, of one charge that several backends have charged,
	// with the results of each of Backends; nil for the others.
	Taken(ctx context.Context, r Request, results [][]Result)
}
