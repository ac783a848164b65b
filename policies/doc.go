// Package policies has the policies that are in force, and what is in force for single keys
// in their place, in one table that changes while requests run.
//
//	var table policies.Table
//	t := throttler.New(backend, &throttler.Options{Policies: &table})
//	err := table.Source("code").Edit(func(e *policies.Edit) {
//		e.Set(&throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}})
//		e.Override(policies.Override{Policy: "core", Key: "mallory", Blocked: true})
//	})
//
// A program goes on charging the policies in its variables. Their names are looked up: if
// the table has a policy of the name, that one's limits hold, else the variable's. What is
// decided about several charges goes by one state of the table.
//
// # Sources
//
// A [Source] is the part of a table that comes from one place: from code, from a file (see
// [WatchFile]), or from Redis (see package redispolicies). A change to a source is
// validated as a whole. All of it comes into force at once, or nothing does.
//
// What a source says of a name hides what sources before it say, those that [Table.Source]
// returned earlier. Of several overrides for a key, the last source's holds, too.
//
// # Counts
//
// A count is found by the names of policy and key, so it goes on when limits change: a
// changed quota or window is no fresh window. docs/algorithms.md has the rules.
//
// # Parents
//
// A policy may name a parent: another policy of its source, and the key that it counts for
// there. What is charged under the policy is charged under the parent, too, in the same
// decision, with the same cost. So a bucket has a quota, and its organization one for all of
// its buckets:
//
//	e.Set(&throttler.Policy{Name: "orgs", Limits: …})
//	e.Set(&throttler.Policy{Name: "bucket-7", Limits: …, Parent: "orgs", ParentKey: "acme"})
//
// Where one policy is for all buckets, and each is a key, an override has the ParentKey of
// its key. In either way a bucket that moves to another organization keeps its count,
// because that is found by its own name alone.
//
// A parent's charge is as one that the program makes: it has the parent's key for its
// partition, it goes by overrides for that key, and it charges the parent's parent. If the
// program charges the same count itself, both charges add up.
//
// Parents make no cycle, and no more than MaxDepth policies a line. A change that would
// make one, or that removes a policy which is a parent, is a mistake.
//
// # Memory
//
// To replace one policy of a million, four small pieces of the table are copied. Decisions
// read without a lock. A source may leave overrides where they are, and find them when
// their keys are charged: see [SourceOptions].
package policies
