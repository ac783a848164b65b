// Package quota defines policies, limits and charges: a [Policy] is a named list of
// limits, a [Limit] is a quota of units per window, counted by an [Algorithm], and
// a [Charge] asks for some units under a policy for a key.
//
// Package throttler decides about charges, and has aliases for the names that most programs use.
//
// # Partitions
//
// A key is the client that is charged: a user, a token, an address. A backend keeps a count
// for a policy, a key and a partition: in this process, in Redis or in Memcached. A shard is
// one server with its replicas. The partition is the key itself, or the key that the charge
// is [Charge.Within]; it selects the server. Charge members of an organization within it:
//
//	t.Take(ctx, orgs.Charge("acme"), teams.Charge("blue").Within("acme"), users.Charge("alice").Within("acme"))
//
// That is one atomic step on one server. The count of alice within acme is not the count
// of alice alone.
//
// Keys that are independent, such as an account and an address, are in several partitions.
// They are charged one after the other, in the order of the charges, with leaky buckets last.
// If this process remembers a refusal of one of them, nothing is charged. If one refuses or
// fails, the earlier charges are refunded. Until then other requests find these units used,
// and may be refused. So the first charge should be the one that stops an attacker, such as
// the address. If one server has all counts, as in memory or on a single Redis, all charges
// are one atomic step, unless the backend is wrapped by more than a refusal cache and a
// fallback that keeps no counts.
package quota
