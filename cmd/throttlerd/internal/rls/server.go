// Package rls implements Envoy's rate limit service, version 3, on a throttler.
package rls

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
)

// Request is a proxy's request.
type Request = ratelimitv3.RateLimitRequest

// Response is the answer to a Request.
type Response = ratelimitv3.RateLimitResponse

// Status is the part of a Response about one descriptor.
type Status = ratelimitv3.RateLimitResponse_DescriptorStatus

const (
	ok        = ratelimitv3.RateLimitResponse_OK
	overLimit = ratelimitv3.RateLimitResponse_OVER_LIMIT
)

// Server answers proxies. It is safe for concurrent use.
type Server struct {
	ratelimitv3.UnimplementedRateLimitServiceServer

	throttler *throttler.Throttler
	quiet     *throttler.Throttler // for charges that can't refuse
	table     *policies.Table
	observer  observe.Observer
	answers   settings.Answers
	patient   bool // decisions may wait for a server
	metrics   *Metrics
	cache     *localCache // nil unless compatible
	loaded    atomic.Pointer[loaded]
	returns   sync.WaitGroup // refunds of calls that have ended
}

// loaded is a configuration that is in force.
type loaded struct {
	set      *descriptors.Set
	counters []*counters // by Rule.Index
}

// Options configures a Server.
type Options struct {
	Answers settings.Answers
	Remote  bool // counts are on servers, which may not answer
	Metrics *Metrics

	// Table has the policies and overrides that replace limits of descriptors. If nil, none.
	Table *policies.Table

	// Observer receives the decisions. If nil, none does.
	Observer observe.Observer
}

// New returns a Server that counts at backend, without a configuration: see Load. c may be nil,
// for the system's clock.
func New(backend driver.Backend, c clock.Clock, o *Options) *Server {
	s := &Server{table: cmp.Or(o.Table, new(policies.Table)), observer: cmp.Or[observe.Observer](o.Observer, observe.Nothing{}), answers: o.Answers, patient: o.Remote, metrics: o.Metrics}
	if s.answers.Compatible {
		s.cache = newLocalCache(s.answers.LocalCacheBytes)
	}
	if backend == nil {
		return s
	}
	s.throttler = throttler.New(backend, &throttler.Options{Clock: c, Observer: s.observer})
	s.quiet = throttler.New(backend, &throttler.Options{Clock: c, Observer: trials{s.observer}})
	if s.answers.ShadowMode {
		s.throttler = s.quiet
	}
	return s
}

// trials reports takes that can't refuse a request as peeks if their limit has no room: their
// refusals are no refusals of clients.
type trials struct{ observe.Observer }

func (o trials) Decided(ctx context.Context, e observe.Decided) {
	if e.Op == observe.OpTake && e.Outcome == observe.OutcomeRefused {
		e.Op, e.Key, e.RetryAt = observe.OpPeek, "", time.Time{}
	}
	o.Observer.Decided(ctx, e)
}

// Cache returns the numbers of the local cache. It reports false if there is none.
func (s *Server) Cache() (CacheStats, bool) { return s.cache.numbers(), s.cache != nil }

// Set returns the configuration in force, or nil.
func (s *Server) Set() *descriptors.Set {
	if l := s.loaded.Load(); l != nil {
		return l.set
	}
	return nil
}

// Load puts set in force. Calls that have begun end with the set before. Counts stay.
func (s *Server) Load(set *descriptors.Set) {
	s.metrics.loads.Inc()
	if s.metrics.names != nil { // each request names its counters
		s.loaded.Store(&loaded{set: set})
		return
	}
	l, named := &loaded{set: set}, make(map[descriptors.Labels]bool)
	for _, r := range set.Rules() {
		l.counters = append(l.counters, s.metrics.countersOf(r.Labels))
		named[short(r.Labels)] = true
	}
	if before := s.loaded.Swap(l); before != nil {
		for _, r := range before.set.Rules() {
			if !named[short(r.Labels)] {
				s.metrics.forget(r.Labels)
			}
		}
	}
}

// Stats calls f for each counter of a limit or a domain, by its name in statsd. It reports false
// unless the metrics are compatible.
func (s *Server) Stats(f func(name string, value uint64)) bool { return s.metrics.stats(f) }

// Wrong counts a configuration that was not put in force.
func (s *Server) Wrong() { s.metrics.loadErrors.Inc() }

// ShouldRateLimit decides about a request. A refusal is not an error.
func (s *Server) ShouldRateLimit(ctx context.Context, req *Request) (*Response, error) {
	start := time.Now()
	resp, err := s.answer(ctx, req)
	s.metrics.answered(start)
	return resp, err
}

// ShouldRateLimitHTTP is ShouldRateLimit for a call by HTTP. To be compatible, the metrics of calls
// don't have it.
func (s *Server) ShouldRateLimitHTTP(ctx context.Context, req *Request) (*Response, error) {
	if s.answers.Compatible {
		return s.answer(ctx, req)
	}
	return s.ShouldRateLimit(ctx, req)
}

// answer is ShouldRateLimit without metrics of calls.
func (s *Server) answer(ctx context.Context, req *Request) (*Response, error) {
	resp, err := s.decide(ctx, req)
	if err != nil {
		err = s.failed(err)
	}
	if err != nil && s.answers.Compatible {
		err = status.Error(codes.Unknown, status.Convert(err).Message())
	}
	return resp, err
}

// maxDescriptors bounds a request: 4 MB can contain two million descriptors.
const maxDescriptors = 1024

// Errors of requests.
var (
	errNoDomain           = status.Error(codes.InvalidArgument, "rate limit domain must not be empty")
	errNoDescriptors      = status.Error(codes.InvalidArgument, "rate limit descriptor list must not be empty")
	errTooManyDescriptors = status.Errorf(codes.InvalidArgument, "rate limit descriptor list must have at most %d descriptors", maxDescriptors)
	errNotLoaded          = status.Error(codes.Unavailable, "no rate limit configuration loaded")
)

// failed counts err, and returns it as a gRPC error.
func (s *Server) failed(err error) error {
	if st, isStatus := status.FromError(err); isStatus {
		if code := st.Code(); code != codes.Canceled && code != codes.DeadlineExceeded { // the caller's errors
			s.metrics.serviceErrors.Inc()
		}
		return err
	}
	switch {
	case errors.Is(err, throttler.ErrInvalid):
		s.metrics.serviceErrors.Inc()
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, driver.ErrOverloaded):
		s.metrics.storeErrors.Inc()
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	s.metrics.storeErrors.Inc()
	return status.Error(codes.Unavailable, err.Error())
}

// decide is ShouldRateLimit, with the original errors.
func (s *Server) decide(ctx context.Context, req *Request) (*Response, error) {
	l := s.loaded.Load()
	switch {
	case req.GetDomain() == "":
		return nil, errNoDomain
	case len(req.GetDescriptors()) == 0:
		return nil, errNoDescriptors
	case len(req.GetDescriptors()) > maxDescriptors:
		return nil, errTooManyDescriptors
	case l == nil:
		return nil, errNotLoaded
	}
	c := newCall(s, l, req)
	if err := c.match(); err != nil {
		return nil, err
	}
	if !c.matched {
		return c.response(), nil
	}
	bounded, cancel, err := c.bound(ctx)
	if err == nil {
		if err = c.resolve(bounded); err == nil {
			err = c.charge(bounded)
		}
		cancel()
	}
	done := ctx.Err()
	if err != nil || done != nil {
		s.giveBackLater(ctx, c.charged)
	}
	if done != nil { // the caller has left
		if errors.Is(err, throttler.ErrUnavailable) {
			return nil, err // counts as an error of the store
		}
		return nil, status.FromContextError(done).Err()
	}
	if err != nil {
		if resp := s.without(c, err); resp != nil {
			s.metrics.withoutStore.Inc()
			return resp, nil
		}
		return nil, err
	}
	if c.degraded {
		s.metrics.withoutStore.Inc()
	}
	return c.response(), nil
}

// returnTime bounds the refund of a call that has ended. It is tried every returnEvery.
const (
	returnTime  = time.Second
	returnEvery = 100 * time.Millisecond
)

// giveBackLater refunds the charges of a call that has failed or was abandoned by its client,
// and those of a refused call that could not be refunded at once. The answer does not wait for
// it; Close does.
func (s *Server) giveBackLater(ctx context.Context, charged []throttler.Decision) {
	if len(charged) == 0 {
		return
	}
	s.returns.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTime)
		defer cancel()
		// If time runs out, the throttler's observer has reported what remains charged.
		for charged = s.giveBack(ctx, charged); len(charged) > 0 && every.Wait(ctx, returnEvery); {
			charged = s.giveBack(ctx, charged)
		}
	})
}

// giveBack refunds charges, and returns those whose refunds were not sent. The others may have
// been refunded: another try would do nothing.
func (s *Server) giveBack(ctx context.Context, charged []throttler.Decision) (failed []throttler.Decision) {
	for _, d := range charged {
		if _, err := s.throttler.Refund(ctx, d); err != nil && !driver.MayHaveCharged(err) {
			failed = append(failed, d)
		}
	}
	return failed
}

// Close waits for the refunds of calls that have ended. A store that does not answer delays
// them by at most a second. No call may be in progress.
func (s *Server) Close() { s.returns.Wait() }

// bound sets the server's time, so that a decision is made before the caller stops waiting, and
// within answers.Deadline. A store that is silent for most of that time (see silence) counts as
// down, and the wrappers around it decide. A process short of CPU gives a store more time, so the
// context that bound returns ends a little before the caller's deadline. The context doesn't end
// when the caller leaves, so that the charges are known and can be refunded.
func (c *call) bound(ctx context.Context) (context.Context, context.CancelFunc, error) {
	s := c.server
	if err := ctx.Err(); err != nil || !s.patient {
		return ctx, func() {}, err
	}
	end, bounded := ctx.Deadline()
	ctx = context.WithoutCancel(ctx)
	if !bounded {
		c.throttler = s.throttler.WithServerTime(silence(s.answers.Deadline))
		return ctx, func() {}, nil
	}
	remaining := time.Until(end)
	if remaining <= 0 {
		return ctx, nil, context.DeadlineExceeded
	}
	ctx, cancel := context.WithDeadline(ctx, end.Add(-min(remaining/4, 10*time.Millisecond)))
	c.throttler = s.throttler.WithServerTime(silence(min(remaining, s.answers.Deadline)))
	return ctx, cancel, nil
}

// silence returns how long a store may be silent before it counts as down, if an answer is due
// in d: the wrappers around it get a third of d, or 15 ms if that is less.
func silence(d time.Duration) time.Duration { return d - min(d/3, 15*time.Millisecond) }

// without returns the response to a call that the store did not decide about, or nil to return
// the error.
func (s *Server) without(c *call, err error) *Response {
	if errors.Is(err, throttler.ErrInvalid) {
		return nil
	}
	switch s.answers.OnFailure {
	case settings.FailOpen:
		overdue := errors.Is(err, context.DeadlineExceeded) // the caller would not wait longer, and would decide the same
		if overdue || errors.Is(err, throttler.ErrUnavailable) && !errors.Is(err, driver.ErrOverloaded) {
			return c.list(ok)
		}
	case settings.FailClosed:
		return c.list(overLimit)
	default: // the wrappers around the store have decided, or the proxy decides
	}
	return nil
}

// IsRefusal reports whether resp refuses a request.
func IsRefusal(resp *Response) bool { return resp.GetOverallCode() == overLimit }

// IsUnavailable reports whether err, of ShouldRateLimit, is the store's and not the request's. To
// be compatible, no error is.
func IsUnavailable(err error) bool {
	code := status.Code(err)
	return code != codes.InvalidArgument && code != codes.Unknown
}
