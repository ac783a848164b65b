// Package quota has the words in which limits are written: a [Policy] is a named list
// of limits, a [Limit] is a quota of units per window, counted by an [Algorithm], and
// a [Charge] asks for some units under a policy for a key.
//
// Package throttler repeats the names that most programs write, and decides about them.
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
package quota
