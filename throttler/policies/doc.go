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
// # Memory
//
// Replacing one policy of a million copies four small pieces of the table. Decisions read it
// without a lock. A source may leave overrides where they are, and find them when their keys
// are charged: see [SourceOptions].
package policies
