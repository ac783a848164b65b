// Package middleware limits the requests to an http.Handler.
//
//	caller := middleware.FirstOf(middleware.BearerToken(verify), middleware.ClientIP(nil))
//	limit, err := middleware.New(t, middleware.Limit(core, caller), nil)
//
// A [Classifier] determines the charges of each request. They are taken before the handler runs,
// so that requests in flight count, and refunded if the response costs nothing, by default a 304.
// The response reports the limits in the headers that GitHub's API made common. [New] says how
// failures, several limits and several middlewares are handled.
//
// [FromContext], [Take] and [SetCost] are for handlers. The package does not authenticate.
package middleware
