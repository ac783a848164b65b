// Package throttler decides whether to allow a request, and reports how much
// quota is left and when to retry.
//
//	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
//	t := throttler.New(memorybackend.NewDefault(), nil)
//	d, err := t.Take(ctx, core.Charge("alice"))
//
// A refusal is a [Decision] that is not Allowed, never an error. For HTTP servers,
// package middleware does all of this.
//
// # Words
//
//   - A key is the client that is charged: a user, a token, an address. Package quota
//     has the other words of limits: policy, limit, algorithm, charge, partition.
//   - A count is what a backend keeps for a policy, a key and a partition. A backend
//     keeps counts in this process, in Redis or in Memcached; a shard is one server of
//     it, with its replicas.
//   - A window is live while now is before its reset time, and has expired at that time.
//   - Used is what counts now, and remaining what is left of the quota, never below zero.
//   - The reset time is when the whole quota is free again, if nothing more is charged.
//     The retry time is the first at which the same charge would fit.
//
// Now is the time of the throttler's clock, in whole milliseconds.
package throttler
