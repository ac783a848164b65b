// Package weirgrpc limits the calls to a gRPC server.
//
//	limit, err := weirgrpc.New(t, middleware.Limit(core, middleware.ClientIP(nil)), nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	s := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary), grpc.StreamInterceptor(limit.Stream))
//
// A classifier of package middleware determines the charges of a call, by the request that
// [Request] returns. So a user has one count over HTTP and over gRPC.
//
// A call that has no room ends with RESOURCE_EXHAUSTED. The details contain a
// google.rpc.RetryInfo, for programs; the trailer contains grpc-retry-pushback-ms, the only
// hint that gRPC's own retries read. If a charge can never fit, there is no RetryInfo, and the
// pushback is -1, which ends the retries.
//
// # Metadata
//
// A response has x-ratelimit-limit, -remaining, -used, -reset and -resource of the limit that
// binds, as the responses of package middleware do; a refusal also has retry-after, in
// seconds. They are in the header of a call that succeeds, and of a stream that sent anything.
// Otherwise they are in the trailer: gRPC does not retry a call after a header. For the same
// reason, an interceptor that calls grpc.SetHeader before it calls this one ends all retries
// of refused calls.
//
// # Several limits
//
// middleware.All takes several limits in one decision. A second [Limiter] behind the first
// would repeat the metadata, and the calls that it refuses stay charged in the first.
//
// # Unfinished messages
//
// A unary call is charged when its message has been read. grpc.MaxConcurrentStreams and
// grpc.MaxRecvMsgSize bound the memory of messages that clients begin and don't end; by
// default, a connection may have any number of streams, with 4 MiB each.
package weirgrpc
