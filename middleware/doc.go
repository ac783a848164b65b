// Package middleware limits the requests to an http.Handler.
//
// A [Classifier] determines the charges of each request. They are taken before the handler
// runs, so that requests in flight count. The response reports the limits in the headers that
// GitHub's API made common. If the response costs nothing, by default a 304, the charges are
// refunded before its status is sent.
//
//	t := throttler.New(memorybackend.NewDefault(), nil)
//	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
//	limit, err := middleware.New(t, middleware.Limit(core, middleware.ClientIP(nil)), nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	log.Fatal(http.ListenAndServe("127.0.0.1:8080", limit(handler)))
//
// A request is served without being charged only if the backend did not answer and
// neither [Options.FailClosed] nor guard/fallback forbids it. An invalid policy or cost
// is an error of [New], or a 500 if it comes with the request. A request is charged if its
// handler panics, unless nothing of the response was sent and [Options.RefundIf] reports that
// a 500 is free. It is charged, too, if the client hangs up while the handler runs, or breaks
// off the request. [Options.Observer] receives failures.
//
// The package does not authenticate.
//
// # Several limits
//
// Limits on one caller belong in one decision: [All] charges all of them or none.
// Here 304s are free under the first and count under the second, and secondary's Hidden is true, so
// that headers report core alone, as at GitHub:
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
// Middlewares around each other form a chain. If one refuses the request, the outer ones refund
// it, unless a handler behind them ran, or a response other than the refusal is sent. The
// headers report the limit that binds in the chain, in each [Dialect] that one of its
// middlewares uses. If a handler between two middlewares calls the inner one several times, the
// last call is in the chain; each earlier one is charged and settled alone.
//
// # Handlers
//
// The package works with net/http and chi; for Gin and Echo, see docs/howto/frameworks.md. The
// ResponseWriter implements the optional interfaces that the server's does,
// http.ResponseController works, and a request keeps the forms, pattern and path values that
// handlers set in it. If a handler writes nothing, an outer handler may still respond.
// [FromContext] returns the request's decision, [Take] charges more, and [SetCost] reports the
// request's real cost.
package middleware
