// Package throttler decides whether to allow a request, and when to retry it.
// Package middleware does it for HTTP servers; quota and decision explain words.
//
//	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
//	t := throttler.New(memorybackend.NewDefault(), nil)
//	d, err := t.Take(ctx, core.Charge("alice"))
package throttler
