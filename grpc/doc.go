// Package weirgrpc limits the calls to a gRPC server.
//
//	limit, err := weirgrpc.New(t, middleware.Limit(core, middleware.ClientIP(nil)), nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	s := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary), grpc.StreamInterceptor(limit.Stream))
//
// What a call is charged is a classifier of package middleware, which sees the call as
// [Request] returns it. So a user has one count over HTTP and over gRPC.
//
// A call that has no room ends with RESOURCE_EXHAUSTED. The details have a
// google.rpc.RetryInfo, for programs; the trailer has grpc-retry-pushback-ms, which is all
// that gRPC's own retries read. A charge that can never fit has no RetryInfo, and the
// pushback -1, which ends the retries.
//
// # Metadata
//
// A response has x-ratelimit-limit, -remaining, -used, -reset and -resource of the limit
// that binds, as the responses of package middleware do; a refusal has retry-after, too,
// in seconds. They are in the header of a call that succeeds, and of a stream that sent
// anything. Else they are in the trailer: gRPC does not retry a call after a header. For
// the same reason, an interceptor that calls grpc.SetHeader before it calls this one ends all
// retries of refused calls.
//
// # Several limits
//
// middleware.All takes several limits in one decision. A second [Limiter] behind the first
// would repeat the metadata, and what it refuses stays charged in the first.
package weirgrpc
