// Package quota has the words in which limits are written: a [Policy] is a named list
// of limits, a [Limit] is a quota of units per window, counted by an [Algorithm], and
// a [Charge] asks for some units under a policy for a key.
//
// Package throttler repeats the names that most programs write, and decides about them.
//
// # Partitions
//
// A key is the client that is charged: a user, a token, an address. A count is what a backend
// keeps for a policy, a key and a partition: in this process, in Redis or in Memcached. A
// shard is one server with its replicas. The partition is the key itself, or the
// key that the charge is [Charge.Within]; it selects the server. Charge what
// belongs to an organization within it:
//
//	t.Take(ctx, orgs.Charge("acme"), teams.Charge("blue").Within("acme"), users.Charge("alice").Within("acme"))
//
// That is one atomic step on one server. The count of alice within acme is not the count
// of alice alone.
//
// Keys that are independent, such as an account and an address, are in several partitions.
// They are charged one after the other, in the order of the charges, and those with leaky
// buckets last; a refusal that this process remembers charges none. If one refuses, or fails,
// what was charged before it is given back. Until then other requests find it used, and may be
// refused. So the charge that stops an attacker is the first, such as the address. Where one server has all counts, as in memory or on a single
// Redis, it is one atomic step: with nothing in front of it but a refusal cache, and a fallback
// that keeps no counts.
package quota
