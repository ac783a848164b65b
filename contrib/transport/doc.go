// Package transport limits the requests that a program sends. Its [http.RoundTripper] waits
// before each request, in turn with other processes, and pauses requests with the same charges
// when a response asks for it.
//
//	api := &throttler.Policy{Name: "api", Limits: []throttler.Limit{{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket}}}
//	inTurn, err := transport.New(t, transport.ByHost(api), nil)
//	client := &http.Client{Transport: inTurn}
//
// A response asks for a pause by Retry-After, with status 403, 429, 503 or 529; by a remaining
// number of 0 and a reset time, such as X-RateLimit-Remaining and X-RateLimit-Reset, with any
// status; or by a 429 alone. docs/howto/waiting.md has a table of the headers, and of how their
// values are read.
package transport
