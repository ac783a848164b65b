// Package throttler decides whether to allow a request, and reports how much
// quota is left and when to retry.
//
//	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
//	t := throttler.New(memorybackend.NewDefault(), nil)
//	d, err := t.Take(ctx, core.Charge("alice"))
//
// A refusal is a [Decision] that is not Allowed, never an error. An error means a
// bad argument ([ErrInvalid]) or a backend that did not answer ([ErrUnavailable]).
//
// For HTTP servers, package middleware does all of this. The package does not
// limit requests in flight, and does not wait: a caller decides what to do with a
// refusal.
//
// # Words
//
//   - A key is the client that is charged: a user, a token, an address.
//   - A count is what a backend keeps for a policy, a key and a partition.
//   - A window is live while now is before its reset time, and has expired at
//     that time.
//   - Used is what counts now, and remaining what is left of the quota, never
//     below zero.
//   - The reset time is when the whole quota is free again, if nothing more is
//     charged. The retry time is the first at which the same charge would fit.
//   - A backend keeps counts, in this process, in Redis or in Memcached. A shard
//     is one server of a backend, with its replicas.
//
// Package quota has the words of limits: policy, limit, algorithm, charge.
//
// # Decisions
//
// [Throttler.Take] decides about one charge or several. If all of their limits
// have room, it charges them all; otherwise none. [Throttler.Peek] reads without
// charging. [Throttler.Refund] returns what a decision took, to the window that
// was charged and to no other. [Throttler.Settle] corrects a cost that was an
// estimate.
//
// # Partitions
//
// The charges of one take share a partition, which selects the server that
// decides: the key of the first charge, unless the charges name another. Put the
// broadest charge first:
//
//	t.Take(ctx, orgs.Charge("acme"), teams.Charge("blue"), users.Charge("alice"))
//
// The partition is part of a count's identity. The count of alice inside acme is
// not the count of alice alone; to read it, name its partition:
// Charge{Policy: users, Key: "alice", Partition: "acme"}.
//
// # Time
//
// A decision is made at the time of the throttler's clock, in whole milliseconds.
// The reset time of a window is stored with the count, so every process reports
// the same one.
package throttler
