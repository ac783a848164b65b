// Package transport limits the requests that a program sends: an [http.RoundTripper] waits
// before each of them, in turn with other processes, and pauses all when the other
// side says so.
//
//	api := &throttler.Policy{Name: "api", Limits: []throttler.Limit{{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket}}}
//	inTurn, err := transport.New(t, transport.ByHost(api), nil)
//	client := &http.Client{Transport: inTurn}
//
// A response says so by Retry-After, with status 403, 429 or 503, or by an
// X-RateLimit-Remaining of 0 and an X-RateLimit-Reset, with any status.
package transport
