package weirgrpc_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	memorybackend "github.com/weir-go/weir/backend/memory"
	weirgrpc "github.com/weir-go/weir/contrib/grpc"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

func Example() {
	t := throttler.New(memorybackend.NewDefault(), nil)
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	limit, err := weirgrpc.New(t, middleware.Limit(core, middleware.ClientIP(nil)), nil)
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer(
		grpc.MaxConcurrentStreams(256), grpc.MaxRecvMsgSize(256<<10),
		grpc.UnaryInterceptor(limit.Unary), grpc.StreamInterceptor(limit.Stream))
	healthpb.RegisterHealthServer(s, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = s.Serve(listener) }()
	defer s.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := healthpb.NewHealthClient(conn)
	for range 3 {
		var header metadata.MD
		_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{}, grpc.Header(&header))
		fmt.Println(status.Code(err), header["x-ratelimit-remaining"])
	}
	// Output:
	// OK [1]
	// OK [0]
	// ResourceExhausted []
}

// A caller has a quota for all methods, and one for each method.
func ExampleNew() {
	verify := func(_ *http.Request, key string) (subject string, ok bool) { return "alice", key == "secret" }
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Minute}}}
	method := &throttler.Policy{Name: "method", Limits: []throttler.Limit{{Quota: 10, Window: time.Minute}}}

	caller := middleware.FirstOf(middleware.APIKey("x-api-key", verify), middleware.ClientIP(nil))
	classify := middleware.All(
		middleware.Limit(core, caller),
		middleware.Limit(method, middleware.Join(caller, middleware.RoutePattern())))
	_, err := weirgrpc.New(throttler.New(memorybackend.NewDefault(), nil), classify, nil)
	fmt.Println(err)
	// Output: <nil>
}

// limiter implements ratelimit.Limiter of go-grpc-middleware.
type limiter struct {
	throttler *throttler.Throttler
	classify  middleware.Classifier
}

func (l limiter) Limit(ctx context.Context) error {
	method, _ := grpc.Method(ctx)
	ctx, cancel := context.WithTimeout(ctx, middleware.DefaultDeadline)
	defer cancel()
	d, err := l.throttler.Take(ctx, l.classify.Charges(weirgrpc.Request(ctx, method))...)
	if err != nil {
		return err // or nil, to serve while the backend does not answer
	}
	if !d.Allowed {
		return fmt.Errorf("retry at %v", d.RetryAt())
	}
	return nil
}

func Example_goGRPCMiddleware() {
	t := throttler.New(memorybackend.NewDefault(), nil)
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	l := limiter{t, middleware.Limit(core, middleware.ClientIP(nil))}
	s := grpc.NewServer(
		grpc.UnaryInterceptor(ratelimit.UnaryServerInterceptor(l)),
		grpc.StreamInterceptor(ratelimit.StreamServerInterceptor(l)))
	healthpb.RegisterHealthServer(s, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = s.Serve(listener) }()
	defer s.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := healthpb.NewHealthClient(conn)
	for range 3 {
		_, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// OK
	// ResourceExhausted
}
