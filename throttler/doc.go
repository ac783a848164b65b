// Package throttler decides whether to allow a request, and reports how much quota
// is left and when to retry. Package middleware does it for HTTP servers.
//
//	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
//	t := throttler.New(memorybackend.NewDefault(), nil)
//	d, err := t.Take(ctx, core.Charge("alice"))
//
// # Words
//
//   - A key is the client that is charged: a user, a token, an address.
//   - A count is what a backend keeps for a policy, a key and a partition: in this
//     process, in Redis or in Memcached. A shard is one server with its replicas.
//   - Now is the time of the throttler's clock, in whole milliseconds. A window is live
//     while now is before its reset time, and has expired at that time.
//   - Used is what counts now. Remaining is what that leaves of the quota, or 0.
//   - The reset time is when the whole quota is free again, if nothing more is charged.
//     The retry time is the first at which the same charge would fit.
package throttler
