package weirgrpc

import (
	"context"
	"net/http"
	"net/url"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Request returns a call as package middleware sees it: a POST with the full method,
// "/package.Service/Method", as its path and Pattern, the call's metadata as its header, and
// the peer's address. It has no body, and ctx is its context. So middleware.ClientIP, APIKey
// and BearerToken read the client's address and metadata, RoutePattern is the method, and
// Subject finds the values that an interceptor in front has put into the context.
func Request(ctx context.Context, fullMethod string) *http.Request {
	r := &http.Request{
		Method:     http.MethodPost,
		URL:        &url.URL{Path: fullMethod},
		Pattern:    fullMethod,
		Proto:      "HTTP/2.0",
		ProtoMajor: 2,
		Header:     make(http.Header),
		Body:       http.NoBody,
		RequestURI: fullMethod,
	}
	md, _ := metadata.FromIncomingContext(ctx) // a copy
	for name, values := range md {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	if host := md[":authority"]; len(host) > 0 {
		r.Host = host[0]
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		r.RemoteAddr = p.Addr.String()
	}
	return r.WithContext(ctx)
}
