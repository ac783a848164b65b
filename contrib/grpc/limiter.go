package weirgrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/cause"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// Options configures a Limiter. Nil and the zero value select the defaults.
type Options struct {
	// Deadline bounds each decision and refund, as in middleware.Options. The end of the call
	// does not, so that the outcome of its charge is known. At least a millisecond. If zero,
	// middleware.DefaultDeadline.
	Deadline time.Duration

	// FailClosed ends a call with UNAVAILABLE if it has no decision because the backend did not
	// answer. If false, the call is served, without rate metadata. An error that wraps
	// driver.ErrFailClosed or driver.ErrOverloaded is UNAVAILABLE even if FailClosed is false.
	FailClosed bool

	// RefundIf reports whether a call is free, from the error that its handler returned. It is
	// not called without an error, nor if the call's context is over, as when the client has
	// left. A panic counts as an error with codes.Internal. If nil, no call is free: gRPC has
	// no status like 304, which is free over HTTP. For a stream, the charge of its start is
	// refunded.
	RefundIf func(ctx context.Context, fullMethod string, err error) bool

	// PerMessage charges a stream again for each message received after the first. A
	// message without room is dropped, and the stream ends with RESOURCE_EXHAUSTED, whatever
	// its handler returns. If false, a stream is charged once, before its handler runs.
	PerMessage bool

	// Observer receives each failure. If nil, weirlog.Default(), which logs to
	// slog.Default().
	Observer observe.Observer
}

// A Limiter provides the interceptors of a server. It is safe for concurrent use.
type Limiter struct {
	throttler *throttler.Throttler
	classify  middleware.Classifier
	options   Options
}

// New returns a Limiter that charges calls to t as classify determines. An invalid policy or
// option is an error that wraps [throttler.ErrInvalid]; so are charges marked NoRefund or
// CostReported, and InHandler, which are for HTTP alone. New panics if t is nil.
func New(t *throttler.Throttler, classify middleware.Classifier, options *Options) (*Limiter, error) {
	if t == nil {
		panic("weirgrpc: New: the throttler is nil")
	}
	l := &Limiter{throttler: t, classify: classify}
	if options != nil {
		l.options = *options
	}
	// The middleware validates the options that both have.
	if _, err := middleware.New(t, classify, &middleware.Options{Deadline: l.options.Deadline}); err != nil {
		return nil, fmt.Errorf("weirgrpc: %w", err)
	}
	if classify.Marked() {
		return nil, invalid.Errorf("weirgrpc: a charge of the classifier is marked NoRefund or CostReported, or left to a handler by InHandler, which nothing here carries out; use one without these")
	}
	l.throttler = t.WithServerTime(cmp.Or(l.options.Deadline, middleware.DefaultDeadline))
	l.options.Observer = weirlog.Ensure(cmp.Or(l.options.Observer, t.Observer()))
	return l, nil
}

// errPanicked is the error that a panic counts as.
var errPanicked = status.Error(codes.Internal, "the handler panicked")

// Unary is a grpc.UnaryServerInterceptor.
func (l *Limiter) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	d, letGo, refused := l.admit(ctx, info.FullMethod)
	if refused != nil {
		_ = grpc.SetTrailer(ctx, refused.trailer)
		return nil, refused.err
	}
	err = errPanicked
	defer func() {
		letGo()
		md := rates(l.settle(ctx, info.FullMethod, d, err))
		if err != nil || grpc.SetHeader(ctx, md) != nil { // the handler may have sent the header
			_ = grpc.SetTrailer(ctx, md)
		}
	}()
	return handler(ctx, req)
}

// admit charges one call, or one message, and waits for its start. It returns the refusal of a
// call that is not served, or nil. d is the zero value if no decision was made. Its units in
// flight are renewed until letGo is called.
func (l *Limiter) admit(ctx context.Context, method string) (d throttler.Decision, letGo func(), refused *refusal) {
	letGo = func() {}
	charges := l.classify.Charges(Request(ctx, method))
	if len(charges) == 0 {
		return d, letGo, nil
	}
	if ctx.Err() != nil {
		return d, letGo, canceled(ctx)
	}
	for _, c := range charges {
		if c.Key == "" && c.Policy != nil {
			return d, letGo, l.undecided(charges, invalid.Errorf("weirgrpc: the classifier charges policy %q for an empty key, which all clients would share; a key function must return false for a call without a key, or a key that is not empty", c.Policy.Name))
		}
	}
	l.throttler.WrongOverrides(l.options.Observer)
	// The call does not end with the client, so that the outcome of a charge is known.
	d, err := l.throttler.Take(context.WithoutCancel(ctx), charges...)
	switch {
	case err != nil:
		return throttler.Decision{}, letGo, l.undecided(charges, err)
	case !d.Allowed:
		return d, letGo, refuse(&d)
	}
	letGo = l.hold(ctx, d) // while it waits, too
	if refused = l.wait(ctx, &d); refused != nil {
		letGo()
		l.end(ctx, d, true)
	}
	return d, letGo, refused
}

// undecided returns the refusal of a call without a decision, or nil if it is served.
func (l *Limiter) undecided(charges []throttler.Charge, err error) *refusal {
	switch {
	case errors.Is(err, throttler.ErrInvalid):
		l.failed(charges, err, observe.ResultAnswered500)
		return &refusal{err: status.Error(codes.Internal, "The rate limit of this call is not configured correctly.")}
	case l.options.FailClosed || errors.Is(err, driver.ErrFailClosed) || errors.Is(err, driver.ErrOverloaded):
		l.failed(charges, err, observe.ResultAnswered503)
		return later(codes.Unavailable, "The rate limit of this call cannot be decided at the moment.", time.Second)
	}
	l.failed(charges, err, observe.ResultServed)
	return nil
}

// wait waits until the call may start by d. It returns the refusal of a call that can't be
// served then, or nil. A call with an earlier deadline is refused at once.
func (l *Limiter) wait(ctx context.Context, d *throttler.Decision) *refusal {
	if !d.StartAt().After(d.At()) {
		return nil
	}
	remaining := d.StartAt().Sub(l.throttler.Clock().Now()) // the decision took a part of the wait
	if deadline, ok := ctx.Deadline(); ok {
		if short := remaining - time.Until(deadline); short > 0 {
			text := "There is room after the call's deadline."
			if s, ok := d.Reported(); ok {
				text = s.Policy.Name + " has room after the call's deadline."
			}
			return later(codes.ResourceExhausted, text, short)
		}
	}
	start := make(chan struct{})
	stop := clock.AfterFunc(l.throttler.Clock(), remaining, func() { close(start) })
	defer stop()
	select {
	case <-start:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return canceled(ctx)
	}
	return nil
}

// hold renews the units that d has in flight until letGo is called.
func (l *Limiter) hold(ctx context.Context, d throttler.Decision) (letGo func()) {
	return l.throttler.Hold(ctx, d, func(err error) { l.failed(d.Charges(), err, observe.ResultNotSettled) })
}

// settle refunds d if err makes the call free, releases its units in flight, and returns the
// decision with the limits after that.
func (l *Limiter) settle(ctx context.Context, method string, d throttler.Decision, err error) throttler.Decision {
	decided := false
	defer func() {
		if !decided { // RefundIf has panicked: without a settlement, units would stay in flight for a lease
			l.end(ctx, d, false)
		}
	}()
	free := d.Allowed && err != nil && l.options.RefundIf != nil && ctx.Err() == nil && l.options.RefundIf(ctx, method, err)
	decided = true
	return l.end(ctx, d, free)
}

// end refunds d if it is free, releases its units in flight, and returns the decision with the
// limits after that, or d after an error.
func (l *Limiter) end(ctx context.Context, d throttler.Decision, free bool) throttler.Decision {
	end, result := l.throttler.Refund, observe.ResultNotRefunded
	if !free {
		end = func(ctx context.Context, d throttler.Decision) (throttler.Decision, error) {
			return l.throttler.Settle(ctx, d)
		}
		result = observe.ResultNotSettled
	}
	after, err := end(context.WithoutCancel(ctx), d)
	if err != nil {
		l.failed(d.Charges(), err, result)
		return d
	}
	return after
}

// failed reports a failure to the observer.
func (l *Limiter) failed(charges []throttler.Charge, err error, result observe.Result) {
	l.options.Observer.Failed(cause.Event(err, charges, result))
}
