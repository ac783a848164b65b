package weirgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	weirgrpc "github.com/weir-go/weir/contrib/grpc"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
)

var start = time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)

// handlers are a service's handlers. If nil, calls do nothing, and streams answer each message.
type handlers struct {
	unary  func(ctx context.Context) error
	stream func(s pb.TestService_FullDuplexCallServer) error
}

type service struct {
	pb.UnimplementedTestServiceServer
	*handlers
}

func (s service) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	if s.unary == nil {
		return &pb.SimpleResponse{}, nil
	}
	return &pb.SimpleResponse{}, s.unary(ctx)
}

func (s service) FullDuplexCall(stream pb.TestService_FullDuplexCallServer) error {
	if s.stream != nil {
		return s.stream(stream)
	}
	for {
		_, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// fixture is a server with a limit, its client, and the clock of both.
type fixture struct {
	pb.TestServiceClient
	*handlers
	clock     *clock.Manual
	throttler *throttler.Throttler
	core      *throttler.Policy
	failures  failures
}

// failures keeps the results of failures.
type failures struct {
	observe.Nothing
	results chan observe.Result
}

func (f failures) Failed(e observe.Failed) { f.results <- e.Result }

// setup contains the options of a fixture.
type setup struct {
	limit    throttler.Limit                        // 2 per minute if zero
	classify func(*fixture) middleware.Classifier   // in place of limit
	backend  func(of driver.Backend) driver.Backend // around memory
	outer    func(ctx context.Context, attempt int) // runs in front of the limit
	dial     string                                 // a service configuration
	policies *policies.Table
	options  weirgrpc.Options
}

func newFixture(t *testing.T, s setup) *fixture {
	t.Helper()
	if s.limit.Quota == 0 {
		s.limit = throttler.Limit{Quota: 2, Window: time.Minute}
	}
	f := &fixture{
		handlers: &handlers{},
		clock:    clock.NewManual(start),
		core:     &throttler.Policy{Name: "core", Limits: []throttler.Limit{s.limit}},
		failures: failures{results: make(chan observe.Result, 100)},
	}
	var backend driver.Backend = memorybackend.NewDefault()
	if s.backend != nil {
		backend = s.backend(backend)
	}
	f.throttler = throttler.New(backend, &throttler.Options{Clock: f.clock, Policies: s.policies})
	classify := middleware.Limit(f.core, middleware.Everyone())
	if s.classify != nil {
		classify = s.classify(f)
	}
	if s.options.Deadline == 0 {
		s.options.Deadline = time.Minute // only a hang needs it
	}
	s.options.Observer = f.failures
	limit, err := weirgrpc.New(f.throttler, classify, &s.options)
	if err != nil {
		t.Fatal(err)
	}
	attempts := 0
	outer := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = status.Errorf(codes.Internal, "recovered: %v", p)
			}
		}()
		if attempts++; s.outer != nil {
			s.outer(ctx, attempts)
		}
		return handler(ctx, req)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(outer, limit.Unary), grpc.StreamInterceptor(limit.Stream))
	pb.RegisterTestServiceServer(server, service{handlers: f.handlers})
	f.TestServiceClient = pb.NewTestServiceClient(serve(t, server, s.dial))
	return f
}

// serve runs server, and returns a connection to it.
func serve(t *testing.T, server *grpc.Server, config string) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if config != "" {
		options = append(options, grpc.WithDefaultServiceConfig(config))
	}
	conn, err := grpc.NewClient(listener.Addr().String(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// answer is the outcome of a call for its client.
type answer struct {
	code            codes.Code
	message         string
	header, trailer metadata.MD
	retry           time.Duration // RetryInfo's, or 0
}

func answerOf(err error, header, trailer metadata.MD) answer {
	a := answer{code: status.Code(err), message: status.Convert(err).Message(), header: header, trailer: trailer}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			a.retry = info.GetRetryDelay().AsDuration()
		}
	}
	return a
}

func (f *fixture) call(ctx context.Context) answer {
	var header, trailer metadata.MD
	_, err := f.UnaryCall(ctx, &pb.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	return answerOf(err, header, trailer)
}

// send sends n messages on a stream, receives as many or fewer, and ends it.
func (f *fixture) send(t *testing.T, n int) (received int, a answer) {
	t.Helper()
	s, err := f.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if err := s.Send(&pb.StreamingOutputCallRequest{}); err != nil {
			break // the stream is over: Recv says why
		}
		if _, err = s.Recv(); err != nil {
			break
		}
		received++
	}
	_ = s.CloseSend()
	for err == nil {
		_, err = s.Recv()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	header, _ := s.Header()
	return received, answerOf(err, header, s.Trailer())
}

// expect checks md. pairs are a name and its only value, or "" if md must not contain it.
func expect(t *testing.T, where string, md metadata.MD, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		name, want := pairs[i], pairs[i+1]
		if got := md.Get(name); want == "" && got != nil || want != "" && (len(got) != 1 || got[0] != want) {
			t.Errorf("%s: %s is %q; want %q", where, name, got, want)
		}
	}
}

func (f *fixture) expectUsed(t *testing.T, key string, want int64) {
	t.Helper()
	d, err := f.throttler.Peek(t.Context(), f.core.Charge(key))
	if err != nil {
		t.Fatal(err)
	}
	if s := d.Limit(0); s.Used != want {
		t.Errorf("%s has used %d; want %d", key, s.Used, want)
	}
}

func expectCode(t *testing.T, a answer, want codes.Code) {
	t.Helper()
	if a.code != want {
		t.Fatalf("the call ended with %v; want %v", a.code, want)
	}
}

const everyone = "everyone:"

func TestUnary(t *testing.T) {
	f := newFixture(t, setup{})
	reset := strconv.FormatInt(start.Add(time.Minute).Unix(), 10)
	a := f.call(t.Context())
	expectCode(t, a, codes.OK)
	expect(t, "header", a.header, "x-ratelimit-limit", "2", "x-ratelimit-remaining", "1", "x-ratelimit-used", "1",
		"x-ratelimit-reset", reset, "x-ratelimit-resource", "core", "retry-after", "", "grpc-retry-pushback-ms", "")
	expect(t, "trailer", a.trailer, "x-ratelimit-limit", "")
	f.call(t.Context())

	f.clock.Advance(42_500 * time.Millisecond)
	a = f.call(t.Context())
	expectCode(t, a, codes.ResourceExhausted)
	expect(t, "trailer", a.trailer, "x-ratelimit-limit", "2", "x-ratelimit-remaining", "0", "x-ratelimit-used", "2",
		"x-ratelimit-reset", reset, "x-ratelimit-resource", "core", "retry-after", "18", "grpc-retry-pushback-ms", "17500")
	if len(a.header) > 0 {
		t.Errorf("a refusal has the header %v; gRPC would not retry it", a.header)
	}
	if a.retry != 17_500*time.Millisecond {
		t.Errorf("RetryInfo says %v; want 17.5s", a.retry)
	}
	f.clock.Advance(17_500 * time.Millisecond)
	expectCode(t, f.call(t.Context()), codes.OK)
}

// A hidden policy refuses in one decision with another. Neither metadata nor the status names it.
func TestAHiddenPolicy(t *testing.T) {
	guard := &throttler.Policy{Name: "guard", Hidden: true, Limits: []throttler.Limit{{Quota: 1, Window: time.Minute}}}
	f := newFixture(t, setup{classify: func(f *fixture) middleware.Classifier {
		return middleware.All(middleware.Limit(f.core, middleware.Everyone()), middleware.Limit(guard, middleware.Everyone()))
	}})
	a := f.call(t.Context())
	expectCode(t, a, codes.OK)
	expect(t, "header", a.header, "x-ratelimit-remaining", "1", "x-ratelimit-resource", "core")
	a = f.call(t.Context())
	expectCode(t, a, codes.ResourceExhausted)
	expect(t, "trailer", a.trailer, "x-ratelimit-remaining", "1", "x-ratelimit-resource", "core", "retry-after", "60")
	if a.message != "This call is refused. Try again in 60 s." || a.retry != time.Minute {
		t.Errorf("the message is %q, RetryInfo %v", a.message, a.retry)
	}
}

// retries is a service configuration. Its arguments are the first and the maximum backoff.
const retries = `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":%q,"maxBackoff":%q,
	"backoffMultiplier":1,"retryableStatusCodes":["RESOURCE_EXHAUSTED","UNAVAILABLE"]}}]}`

func TestRetriesWaitForThePushback(t *testing.T) {
	const window = 250 * time.Millisecond
	var f *fixture
	var last time.Time
	f = newFixture(t, setup{
		limit: throttler.Limit{Quota: 1, Window: window},
		dial:  fmt.Sprintf(retries, "60s", "60s"),
		outer: func(_ context.Context, attempt int) {
			if attempt == 3 { // the second call's second attempt: it comes when the window is over, or a minute later
				f.clock.Advance(time.Since(last).Truncate(time.Millisecond))
			}
			last = time.Now()
		},
	})
	expectCode(t, f.call(t.Context()), codes.OK)
	began := time.Now()
	a := f.call(t.Context())
	expectCode(t, a, codes.OK)
	if took := time.Since(began); took < window || took > 30*time.Second {
		t.Errorf("the retry came after %v; want %v, which the pushback says, and not the backoff of a minute", took, window)
	}
}

func TestWhatNeverFitsIsNotRetried(t *testing.T) {
	attempts := 0
	f := newFixture(t, setup{
		classify: func(f *fixture) middleware.Classifier {
			return middleware.ClassifierFunc(func(*http.Request) []throttler.Charge {
				c := f.core.Charge("alice")
				c.Cost = 3
				return []throttler.Charge{c}
			}, f.core)
		},
		dial:  fmt.Sprintf(retries, "0.001s", "0.001s"),
		outer: func(context.Context, int) { attempts++ },
	})
	a := f.call(t.Context())
	expectCode(t, a, codes.ResourceExhausted)
	expect(t, "trailer", a.trailer, "grpc-retry-pushback-ms", "-1", "retry-after", "")
	if a.retry != 0 || attempts != 1 {
		t.Errorf("RetryInfo says %v, and there were %d attempts; want none and 1", a.retry, attempts)
	}
}

// A block that ends further away than a time.Duration can say does not end at once.
func TestABlockForMillennia(t *testing.T) {
	var table policies.Table
	if err := table.Source("code").Edit(func(e *policies.Edit) {
		e.Override(policies.Override{Policy: "core", Key: "everyone:", Blocked: true, Until: time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)})
	}); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, setup{policies: &table})
	a := f.call(t.Context())
	expectCode(t, a, codes.ResourceExhausted)
	expect(t, "trailer", a.trailer, "grpc-retry-pushback-ms", "3155760000000", "retry-after", "3155760000") // 100 years
	if want := 3155760000 * time.Second; a.retry != want {
		t.Errorf("RetryInfo says %v; want %v", a.retry, want)
	}
}

// A handler's error is retried as without the limit, since nothing is sent before it.
func TestAHandlersErrorIsRetried(t *testing.T) {
	f := newFixture(t, setup{dial: fmt.Sprintf(retries, "0.001s", "0.001s")})
	tries := 0
	f.unary = func(context.Context) error {
		if tries++; tries == 1 {
			return status.Error(codes.Unavailable, "not yet")
		}
		return nil
	}
	expectCode(t, f.call(t.Context()), codes.OK)
	f.expectUsed(t, everyone, 2)
}

func TestCallers(t *testing.T) {
	verify := func(_ *http.Request, key string) (string, bool) { return "alice", key == "secret" }
	f := newFixture(t, setup{classify: func(f *fixture) middleware.Classifier {
		caller := middleware.FirstOf(middleware.APIKey("x-api-key", verify), middleware.ClientIP(nil))
		return middleware.All(
			middleware.Limit(f.core, caller),
			middleware.Limit(&throttler.Policy{Name: "method", Limits: f.core.Limits}, middleware.Join(caller, middleware.RoutePattern())))
	}})
	f.call(t.Context())
	f.call(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "invented"))
	f.expectUsed(t, "ip:127.0.0.1", 2)
	f.call(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "secret"))
	f.expectUsed(t, "subject:alice", 1)
}

func TestRequest(t *testing.T) {
	r := weirgrpc.Request(metadata.NewIncomingContext(t.Context(), metadata.Pairs(":authority", "api.example", "x-org", "acme", "x-org", "b")), "/a.B/C")
	if r.Method != http.MethodPost || r.URL.Path != "/a.B/C" || r.Pattern != "/a.B/C" || r.Host != "api.example" || r.RemoteAddr != "" {
		t.Errorf("the request is %+v", r)
	}
	proxied := peer.NewContext(metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-forwarded-for", "192.0.2.7")),
		&peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 99}})
	ip := middleware.ClientIP(&middleware.IPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	if key, _ := ip.Of(weirgrpc.Request(proxied, "/a.B/C")); key != "ip:192.0.2.7" {
		t.Errorf("behind a trusted proxy the key is %q; want ip:192.0.2.7", key)
	}
	if got := r.Header.Values("X-Org"); len(got) != 2 || got[0] != "acme" {
		t.Errorf("X-Org is %q; want acme and b", got)
	}
}

func TestACallWithoutChargesIsServed(t *testing.T) {
	f := newFixture(t, setup{classify: func(*fixture) middleware.Classifier {
		return middleware.ClassifierFunc(func(*http.Request) []throttler.Charge { return nil })
	}})
	a := f.call(t.Context())
	expectCode(t, a, codes.OK)
	expect(t, "header", a.header, "x-ratelimit-limit", "")
}

// failing is a backend that is unavailable.
type failing struct {
	driver.Backend
	err error
}

func (f failing) Take(context.Context, driver.Request) (driver.Decision, error) {
	return driver.Decision{}, &driver.UnavailableError{Backend: "b", Shard: "a", Err: f.err}
}

func TestFailures(t *testing.T) {
	down := errors.New("connection refused")
	for _, test := range []struct {
		name   string
		err    error
		closed bool
		want   codes.Code
		result observe.Result
	}{
		{"open", down, false, codes.OK, observe.ResultServed},
		{"closed", down, true, codes.Unavailable, observe.ResultAnswered503},
		{"closed by fallback", driver.ErrFailClosed, false, codes.Unavailable, observe.ResultAnswered503},
		{"overloaded", driver.ErrOverloaded, false, codes.Unavailable, observe.ResultAnswered503},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, setup{
				backend: func(of driver.Backend) driver.Backend { return failing{of, test.err} },
				options: weirgrpc.Options{FailClosed: test.closed},
			})
			a := f.call(t.Context())
			expectCode(t, a, test.want)
			expect(t, "header", a.header, "x-ratelimit-limit", "")
			if result := <-f.failures.results; result != test.result {
				t.Errorf("the observer got %v; want %v", result, test.result)
			}
			if test.want == codes.Unavailable {
				expect(t, "trailer", a.trailer, "grpc-retry-pushback-ms", "1000", "retry-after", "1", "x-ratelimit-limit", "")
				if a.retry != time.Second {
					t.Errorf("RetryInfo says %v; want a second", a.retry)
				}
			}
			received, a := f.send(t, 2)
			if expectCode(t, a, test.want); test.want == codes.OK && received != 2 {
				t.Errorf("the stream received %d; want 2", received)
			}
		})
	}
}

func TestAnInvalidChargeIsInternal(t *testing.T) {
	f := newFixture(t, setup{classify: func(*fixture) middleware.Classifier {
		return middleware.ClassifierFunc(func(*http.Request) []throttler.Charge {
			return []throttler.Charge{(&throttler.Policy{Name: "no limits"}).Charge("alice")}
		})
	}})
	a := f.call(t.Context())
	expectCode(t, a, codes.Internal)
	expect(t, "trailer", a.trailer, "grpc-retry-pushback-ms", "", "x-ratelimit-limit", "")
	if result := <-f.failures.results; result != observe.ResultAnswered500 {
		t.Errorf("the observer got %v; want %v", result, observe.ResultAnswered500)
	}
}

// hung is a backend that does not answer in the server's time.
type hung struct{ driver.Backend }

func (hung) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	time.Sleep(r.ServerTime)
	return driver.Decision{}, &driver.UnavailableError{Backend: "b", Shard: "a", Err: context.DeadlineExceeded}
}

// An empty key is an error, and not a count for all calls.
func TestAnEmptyKeyIsInternal(t *testing.T) {
	f := newFixture(t, setup{classify: func(*fixture) middleware.Classifier {
		return middleware.Limit(
			&throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}}},
			middleware.KeyFunc(func(*http.Request) (string, bool) { return "", true }))
	}})
	expectCode(t, f.call(t.Context()), codes.Internal)
}

func TestDeadline(t *testing.T) {
	f := newFixture(t, setup{
		backend: func(of driver.Backend) driver.Backend { return hung{of} },
		options: weirgrpc.Options{Deadline: time.Millisecond},
	})
	expectCode(t, f.call(t.Context()), codes.OK)
}

func TestRefunds(t *testing.T) {
	free := func(_ context.Context, method string, err error) bool {
		return method == pb.TestService_UnaryCall_FullMethodName && (status.Code(err) == codes.NotFound || status.Code(err) == codes.Internal)
	}
	for _, test := range []struct {
		name     string
		refundIf func(context.Context, string, error) bool
		handler  func(context.Context) error
		code     codes.Code
		used     int64
	}{
		{"by default nothing", nil, func(context.Context) error { return status.Error(codes.NotFound, "") }, codes.NotFound, 1},
		{"named", free, func(context.Context) error { return status.Error(codes.NotFound, "") }, codes.NotFound, 0},
		{"another", free, func(context.Context) error { return status.Error(codes.Aborted, "") }, codes.Aborted, 1},
		{"success", func(context.Context, string, error) bool { return true }, func(context.Context) error { return nil }, codes.OK, 1},
		{"panic, charged", nil, func(context.Context) error { panic("boom") }, codes.Internal, 1},
		{"panic, named", free, func(context.Context) error { panic("boom") }, codes.Internal, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, setup{options: weirgrpc.Options{RefundIf: test.refundIf}})
			f.unary = test.handler
			a := f.call(t.Context())
			expectCode(t, a, test.code)
			f.expectUsed(t, everyone, test.used)
			md := a.trailer
			if test.code == codes.OK {
				md = a.header
			}
			expect(t, "metadata", md, "x-ratelimit-used", strconv.FormatInt(test.used, 10))
		})
	}
}

// A RefundIf that panics keeps no unit in flight.
func TestARefundIfThatPanics(t *testing.T) {
	f := newFixture(t, setup{
		limit:   throttler.Limit{Quota: 1, Window: time.Minute, Algorithm: throttler.InFlight},
		options: weirgrpc.Options{RefundIf: func(context.Context, string, error) bool { panic("RefundIf") }},
	})
	f.unary = func(context.Context) error { return status.Error(codes.NotFound, "") }
	expectCode(t, f.call(t.Context()), codes.Internal)
	f.expectUsed(t, everyone, 0)
}

// A client can't avoid charges by leaving.
func TestNoRefundForAClientThatLeaves(t *testing.T) {
	f := newFixture(t, setup{options: weirgrpc.Options{RefundIf: func(context.Context, string, error) bool { return true }}})
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan struct{})
	f.unary = func(ctx context.Context) error {
		leave()
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}
	expectCode(t, f.call(ctx), codes.Canceled)
	<-ended
	f.unary = nil
	expectCode(t, f.call(t.Context()), codes.OK)
	expectCode(t, f.call(t.Context()), codes.ResourceExhausted)
}

func TestAHeaderThatTheHandlerSends(t *testing.T) {
	f := newFixture(t, setup{})
	f.unary = func(ctx context.Context) error { return grpc.SendHeader(ctx, metadata.Pairs("x-own", "1")) }
	a := f.call(t.Context())
	expectCode(t, a, codes.OK)
	expect(t, "header", a.header, "x-own", "1")
	expect(t, "trailer", a.trailer, "x-ratelimit-used", "1")
}

func TestLeakyBucket(t *testing.T) {
	f := newFixture(t, setup{limit: throttler.Limit{Quota: 2, Window: time.Minute, Algorithm: throttler.LeakyBucket, MaxWait: 3 * time.Minute}})
	expectCode(t, f.call(t.Context()), codes.OK)

	second := make(chan answer)
	go func() { second <- f.call(t.Context()) }()
	f.clock.BlockUntil(1)
	f.expectUsed(t, everyone, 2)

	// The third would start in a minute, and its deadline comes in 20 seconds.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	a := f.call(ctx)
	expectCode(t, a, codes.ResourceExhausted)
	if a.retry < 40*time.Second || a.retry > time.Minute {
		t.Errorf("RetryInfo says %v; want what is missing of a minute", a.retry)
	}
	f.expectUsed(t, everyone, 2)

	// The fourth leaves while it waits.
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan answer)
	go func() { left <- f.call(ctx) }()
	f.clock.BlockUntil(2)
	leave()
	expectCode(t, <-left, codes.Canceled)

	f.clock.Advance(30 * time.Second)
	expectCode(t, <-second, codes.OK)
}

// A call is in flight while it waits for its start, even for longer than a lease.
func TestInFlightWhileItWaits(t *testing.T) {
	const lease = 15 * time.Second
	f := newFixture(t, setup{classify: func(f *fixture) middleware.Classifier {
		f.core.Limits = []throttler.Limit{
			{Quota: 2, Window: time.Minute, Algorithm: throttler.LeakyBucket},
			{Quota: 2, Window: lease, Algorithm: throttler.InFlight},
		}
		return middleware.Limit(f.core, middleware.Everyone())
	}})
	expectCode(t, f.call(t.Context()), codes.OK)
	second := make(chan answer)
	go func() { second <- f.call(t.Context()) }()
	for range 5 {
		f.clock.BlockUntil(2) // its start, and its renewal
		f.clock.Advance(lease / 3)
	}
	f.clock.BlockUntil(2)
	if d, err := f.throttler.Peek(t.Context(), f.core.Charge(everyone)); err != nil || d.Limit(1).Used != 1 {
		t.Errorf("%v, %v; want the call that waits in flight", d, err)
	}
	f.clock.Advance(lease)
	expectCode(t, <-second, codes.OK)
}

func TestNew(t *testing.T) {
	th := throttler.New(memorybackend.NewDefault(), nil)
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Minute}}}
	good := middleware.Limit(core, middleware.Everyone())
	for name, make := range map[string]func() (*weirgrpc.Limiter, error){
		"no classifier": func() (*weirgrpc.Limiter, error) { return weirgrpc.New(th, middleware.Classifier{}, nil) },
		"no limits": func() (*weirgrpc.Limiter, error) {
			return weirgrpc.New(th, middleware.Limit(&throttler.Policy{Name: "core"}, middleware.Everyone()), nil)
		},
		"no refund":      func() (*weirgrpc.Limiter, error) { return weirgrpc.New(th, good.NoRefund(), nil) },
		"cost reported":  func() (*weirgrpc.Limiter, error) { return weirgrpc.New(th, good.CostReported(), nil) },
		"in the handler": func() (*weirgrpc.Limiter, error) { return weirgrpc.New(th, middleware.InHandler(), nil) },
		"deadline": func() (*weirgrpc.Limiter, error) {
			return weirgrpc.New(th, good, &weirgrpc.Options{Deadline: time.Microsecond})
		},
	} {
		if l, err := make(); l != nil || !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("%s: got %v; want an error that wraps ErrInvalid", name, err)
		}
	}
	if _, err := weirgrpc.New(th, good, nil); err != nil {
		t.Error(err)
	}
}
