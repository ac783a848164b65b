// Package middleware limits the requests to an http.Handler.
//
// A [Classifier] determines the charges of each request. They are taken before
// the handler runs, so that requests in flight count. The response reports the
// limits in the headers that GitHub's API made common. A response that costs
// nothing, by default a 304, is refunded before its status is sent.
//
//	t := throttler.New(memorybackend.NewDefault(), nil)
//	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
//	limit, err := middleware.New(t, middleware.Limit(core, middleware.ClientIP(nil)), nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	log.Fatal(http.ListenAndServe("127.0.0.1:8080", limit(handler)))
//
// A request is served without being charged only if the backend did not answer
// and [Options.OnFailure], or wrap/fallback, leaves its policies open. A policy or cost that is not valid is an error
// of [New], or a 500 if it comes with the request. A panic is charged, unless nothing of
// the response was sent and [Options.RefundIf] says that a 500 is free. A client that
// hangs up once its handler runs, or breaks off its request, is charged. [Options.Observer] receives what goes wrong.
//
// The package does not authenticate.
//
// # Several limits
//
// Limits on one caller belong in one decision: [All] charges all of them or none.
// Here 304s are free under the first and count under the second, as at GitHub:
//
//	middleware.All(middleware.Limit(core, caller), middleware.Limit(secondary, caller).NoRefund())
//
// A limit on all callers together is a separate middleware, in front of the one on
// each caller:
//
//	together, err := middleware.New(t, middleware.Limit(global, middleware.Everyone()), nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	each, err := middleware.New(t, middleware.Limit(core, caller), nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	log.Fatal(http.ListenAndServe("127.0.0.1:8080", together(each(handler))))
//
// Nested middlewares share an account of the request. A request that one refuses is
// refunded in the outer ones, unless another call of theirs ran a handler, or another
// response than the refusal is sent. The headers report the limit that binds among
// all, in each [Dialect] that any of them has.
//
// # Handlers
//
// The package works with net/http and with chi, and docs/frameworks.md says how with Gin
// and Echo. The ResponseWriter keeps the
// optional interfaces of the server's, http.ResponseController works, and a
// request keeps what handlers set in it. A handler that writes nothing leaves the response
// to what is further out. [FromContext] has the request's decision, [Take] charges more, and
// [SetCost] reports what the request really cost.
package middleware
