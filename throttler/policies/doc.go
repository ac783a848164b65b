// Package policies keeps the policies in force, and the overrides for single keys, in a table
// that changes while requests run.
//
//	var table policies.Table
//	t := throttler.New(backend, &throttler.Options{Policies: &table})
//	err := table.Source("code").Edit(func(e *policies.Edit) {
//		e.Set(&throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}})
//		e.Override(policies.Override{Policy: "core", Key: "mallory", Blocked: true})
//	})
//
// A program continues to charge the policies in its variables. They are looked up by name: if
// the table has a policy of that name, its limits hold, otherwise the variable's. A decision
// about several charges uses one state of the table.
//
// # Sources
//
// A [Source] is the part of a table that comes from one place: from code, from a file (see
// [WatchFile]), or from Redis (see package redispolicies). A change to a source is
// validated as a whole. All of it comes into force at once, or nothing does.
//
// A source's policy, plan or override hides those for the same name, or key, in the sources
// that [Table.Source] returned before it.
//
// # Counts
//
// A count is found by the names of policy and key, so it continues when limits change: a
// changed quota or window doesn't start a fresh window. docs/start/algorithms.md has the rules.
//
// # Parents
//
// A policy may name a parent: another policy of its source, and a key under that policy. A
// charge under the policy is made under the parent, too, in the same decision, with the same
// cost. So a bucket has a quota, and its organization has one for all of its buckets:
//
//	e.Set(&throttler.Policy{Name: "orgs", Limits: …})
//	e.Set(&throttler.Policy{Name: "bucket-7", Limits: …, Parent: "orgs", ParentKey: "acme"})
//
// If one policy serves all buckets, and each bucket is a key, an override gives the key its
// ParentKey. Either way, a bucket that moves to another organization keeps its count, because
// the count is found by the bucket's name alone.
//
// A parent's charge is like one that the program makes: its partition is the parent's key,
// overrides for that key apply, and it charges the parent's parent. If the program charges
// the same count itself, both charges add up.
//
// A change that makes parents a cycle, or that removes a parent, is a mistake. A decision makes
// at most quota.MaxCharges charges: under a longer line of parents, it is an error.
//
// # Memory
//
// Replacing one policy of a million copies four small pieces of the table. Decisions read it
// without a lock. A source may leave overrides where they are, and find them when their keys
// are charged: see [SourceOptions].
package policies
