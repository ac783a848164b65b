package middleware

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/weir-go/weir/throttler"
)

// FailurePolicy says what a request gets when the backend does not answer.
type FailurePolicy uint8

const (
	// Open serves the request, without rate headers: any would be a lie.
	Open FailurePolicy = iota
	// Closed refuses it with 503 and a Retry-After.
	Closed
)

// DefaultDeadline bounds a decision if Options sets no deadline.
const DefaultDeadline = 50 * time.Millisecond

// Options configures the middleware. Nil and the zero value select the defaults.
type Options struct {
	// Deadline bounds each call to the throttler: a decision, refund or
	// settlement. If zero, DefaultDeadline.
	Deadline time.Duration

	// OnFailure selects what a request gets when the backend does not answer.
	// The zero value is Open.
	OnFailure FailurePolicy

	// RefundIf reports whether a response is free, from its status and header,
	// just before they are sent. If nil, a 304 is. It is not asked once the
	// client has left, nor about charges marked NoRefund.
	RefundIf func(r *http.Request, status int, header http.Header) bool

	// RefusalStatus is the status of a refusal, from 400 to 499. If zero, 429.
	// GitHub also uses 403, which urllib3 and go-retryablehttp do not retry.
	RefusalStatus int

	// DocumentationURL is the documentation_url of a refusal's body. May be empty.
	DocumentationURL string

	// Refuse writes the response to a refused request; its headers are set. If
	// nil, the body has GitHub's shape or is application/problem+json, by Accept.
	Refuse func(w http.ResponseWriter, r *http.Request, d throttler.Decision)

	// RateLimitFields adds the fields RateLimit-Policy and RateLimit of the
	// IETF draft, for all limits.
	RateLimitFields bool

	// ExposeHeaders lets scripts of other origins read the headers, by
	// Access-Control-Expose-Headers.
	ExposeHeaders bool

	// CostHeader names a response header or trailer in which the handler
	// reports the request's real cost, as [SetCost] does, to the charges of this
	// middleware that are marked CostReported. May be empty.
	CostHeader string

	// DryRun, if not nil, receives each decision, and nothing is enforced: every
	// request is served, at once and without rate headers. To try a policy out,
	// put such a middleware in front of the one that enforces, under a policy
	// name of its own. Its charge is refunded for a 304 and settled as if it were
	// enforced, but kept if another middleware refuses the request. A request that
	// it would refuse is not charged under the dry-run policy.
	DryRun func(r *http.Request, d throttler.Decision)

	// Log receives what went wrong: in an outage, at most one line a second for
	// each shard and cause, with counts, and one when it is over. Lines never
	// contain keys. If nil, slog.Default().
	Log *slog.Logger

	// OnError, if not nil, receives each error that Log summarizes.
	OnError func(r *http.Request, err error)
}

// New returns middleware that charges requests to t as classify determines. A
// policy or an option that is not valid is an error that wraps
// [throttler.ErrInvalid]. New panics if t is nil.
func New(t *throttler.Throttler, classify Classifier, options *Options) (func(http.Handler) http.Handler, error) {
	if t == nil {
		panic("middleware: New: the throttler is nil")
	}
	m := &throttle{throttler: t, classify: classify}
	if options != nil {
		m.Options = *options
	}
	if m.Deadline == 0 {
		m.Deadline = DefaultDeadline
	}
	if m.RefusalStatus == 0 {
		m.RefusalStatus = http.StatusTooManyRequests
	}
	if m.RefundIf == nil {
		m.RefundIf = func(_ *http.Request, status int, _ http.Header) bool { return status == http.StatusNotModified }
	}
	if err := m.validate(); err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}, nil
}

func (t *throttle) validate() error {
	if err := t.classify.validate(); err != nil {
		return err
	}
	switch {
	case t.Deadline < 0:
		return invalid("Options.Deadline is %v; it must be positive, or 0 for %v", t.Deadline, DefaultDeadline)
	case t.OnFailure > Closed:
		return invalid("Options.OnFailure is %d; it must be Open or Closed", t.OnFailure)
	case t.RefusalStatus < 400 || t.RefusalStatus > 499:
		return invalid("Options.RefusalStatus is %d; it must be from 400 to 499, or 0 for 429", t.RefusalStatus)
	case t.CostHeader != "" && !t.classify.has(costReported):
		return invalid("Options.CostHeader is %q, but no charge is marked CostReported, so that its value would change nothing", t.CostHeader)
	}
	return nil
}

func logError(r *http.Request, err error) {
	slog.Default().WarnContext(r.Context(), "rate limit", "method", r.Method, "error", err)
}

// throttle is the middleware with its defaults filled in.
type throttle struct {
	throttler *throttler.Throttler
	classify  Classifier
	Options
}

// serve is the way of one request.
func (t *throttle) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	charges := t.classify.Charges(r)
	if len(charges) == 0 {
		next.ServeHTTP(w, r)
		return
	}
	ctx, cancel := t.bounded(r)
	d, err := t.throttler.Take(ctx, charges...)
	cancel()
	if t.DryRun != nil && err == nil {
		t.DryRun(r, d)
	}
	switch {
	case err != nil:
		t.report(r, err)
		t.serveUndecided(w, r, next)
	case !d.Allowed && t.DryRun != nil:
		next.ServeHTTP(w, r)
	case !d.Allowed:
		t.refuse(w, r, d)
	case !t.hold(r, d):
		t.refund(r, d) // the client has left
	default:
		t.serveCharged(w, r, next, d)
	}
}

// bounded returns the context of one decision. It outlives the client, so that
// what was charged is always known, and can be given back.
func (t *throttle) bounded(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(r.Context()), t.Deadline)
}

// serveUndecided serves a request that nobody decided about.
func (t *throttle) serveUndecided(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if t.OnFailure == Open || t.DryRun != nil {
		next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Cache-Control", "no-store")
	t.writeProblem(w, r, http.StatusServiceUnavailable, problem{
		Type:   "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
		Title:  "Temporarily reduced capacity",
		Detail: "The rate limit of this request can not be decided at the moment.",
	})
}

// hold waits until d says that the request may start, and reports whether the
// client is still there then.
func (t *throttle) hold(r *http.Request, d throttler.Decision) bool {
	if wait := d.StartAt().Sub(d.At); wait > 0 && t.DryRun == nil {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
	}
	return r.Context().Err() == nil
}

// refund gives back what d took and returns how the limits stand after it, or
// d if that is not known.
func (t *throttle) refund(r *http.Request, d throttler.Decision) throttler.Decision {
	ctx, cancel := t.bounded(r)
	defer cancel()
	after, err := t.throttler.Refund(ctx, d)
	if err != nil {
		t.report(r, fmt.Errorf("refund: %w", err))
		return d
	}
	return after
}

// settle replaces what d took by costs and returns how the limits stand after
// it, or d if that is not known.
func (t *throttle) settle(r *http.Request, d throttler.Decision, costs []int64) throttler.Decision {
	ctx, cancel := t.bounded(r)
	defer cancel()
	after, err := t.throttler.Settle(ctx, d, costs...)
	if err != nil {
		t.report(r, fmt.Errorf("settle: %w", err))
		return d
	}
	return after
}

func (t *throttle) report(r *http.Request, err error) {
	logError(r, err)
	if t.OnError != nil {
		t.OnError(r, err)
	}
}
