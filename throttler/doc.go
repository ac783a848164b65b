// Package throttler is the front door of weir: it decides whether a client
// may do what it asks for, and says what is left to it.
//
// # The model
//
// A [Policy] is a named list of limits, such as "core" or "search". A [Limit]
// allows a quota of units per window, counted by one of five algorithms. A
// [Charge] asks for some units, its cost, from everything a policy allows to
// one key: a user, a token, an address. [Throttler.Take] decides about one
// charge or several and, if all of their limits have room, charges them all;
// if one has not, it charges none. The [Decision] reports every limit: used,
// remaining, the instant at which the whole quota is free again, and, after a
// refusal, the earliest instant at which the same charge would fit.
//
//	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
//	t := throttler.New(memorybackend.New(nil), nil)
//	d, err := t.Take(ctx, core.Charge("alice"))
//
// A refusal is a Decision that is not Allowed, never an error. An error means
// a bad argument ([ErrInvalid]) or a backend that did not answer
// ([ErrUnavailable]).
//
// [Throttler.Peek] reads without charging. [Throttler.Refund] gives back what
// a decision took, to the window that was charged and to no other.
// [Throttler.Settle] corrects a cost that was only an estimate.
//
// # Counts and where they live
//
// Counts live in a [Backend]: in this process, in sharded Redis, in Memcached.
// All of them keep one contract, which is written down at [Backend], and give
// the same answers.
//
// A count belongs to a policy's name, a key, and a partition. All charges of
// one take live in one partition, and so on one server: the key of the first
// charge, unless the charges name another. Put the outermost first:
//
//	t.Take(ctx, orgs.Charge("acme"), teams.Charge("blue"), users.Charge("alice"))
//
// The count of alice inside acme is another one than that of alice alone; to
// read it alone, name its partition: Charge{Policy: users, Key: "alice",
// Partition: "acme"}.
//
// # Time
//
// Every decision is made at the instant that the throttler's clock shows,
// counted in whole milliseconds. A window is live while now is before its
// reset-at; at that instant exactly it is over. Reset-at is stored beside the
// count, so that every process tells the same one.
package throttler
