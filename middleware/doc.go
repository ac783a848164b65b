// Package middleware puts a throttler in front of an http.Handler.
//
// A [Classifier] says for each request which charges it makes. They are taken
// before the handler runs, so that requests in flight count. The response
// tells the client where it stands, in the headers that GitHub's API made
// common. A response that costs nothing, a 304 unless told otherwise, is
// refunded before the client sees its end.
//
//	api := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
//	limit := middleware.New(t, middleware.Limit(api, middleware.BearerToken()), nil)
//	http.ListenAndServe(addr, limit(handler))
//
// It works with net/http and with chi alike, and leaves Flusher, Hijacker,
// ReaderFrom, http.ResponseController, HTTP/2 and upgrades as they were.
package middleware
