package middleware

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/weir-go/weir/throttler"
)

// Classifier says which charges a request makes. None means that the request
// is not limited. The first charge's key decides where all of them are counted.
type Classifier func(r *http.Request) []throttler.Charge

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

// Options are what the middleware can be told. The zero value, and nil, are
// fine.
type Options struct {
	// Deadline bounds every decision, refund and settlement. If zero,
	// DefaultDeadline.
	Deadline time.Duration

	// OnFailure says what a request gets when there is no decision. The zero
	// value is Open.
	OnFailure FailurePolicy

	// RefundIf says, when a response's status and header are known, whether it
	// costs nothing. If nil, a 304 does.
	RefundIf func(r *http.Request, status int, header http.Header) bool

	// RefusalStatus is the status of a refusal, from 400 to 499. If zero, 429.
	// GitHub also uses 403, which urllib3 and go-retryablehttp do not retry.
	RefusalStatus int

	// DocumentationURL is where a refusal's body points. May be empty.
	DocumentationURL string

	// Refuse writes the response to a refused request; its headers are set. If
	// nil, a body in GitHub's shape or application/problem+json, by Accept.
	Refuse func(w http.ResponseWriter, r *http.Request, d throttler.Decision)

	// RateLimitFields adds the fields RateLimit-Policy and RateLimit of the
	// IETF draft, for all limits.
	RateLimitFields bool

	// ExposeHeaders lets scripts of other origins read the headers, by
	// Access-Control-Expose-Headers.
	ExposeHeaders bool

	// CostHeader names a response header or trailer in which the handler
	// reports the request's real cost, as [SetCost] does. May be empty.
	CostHeader string

	// DryRun, if not nil, is told each decision, and nothing is enforced: every
	// request is served, at once and without rate headers, refused or not. To
	// try a policy out, stand such a middleware in front of the one that
	// enforces, under a policy name of its own. 304s are refunded and costs
	// settled as if it were enforced; what it would refuse is charged to
	// neither.
	DryRun func(r *http.Request, d throttler.Decision)

	// OnError is told what went wrong behind the client's back. If nil, it is
	// logged by slog.Default, without keys.
	OnError func(r *http.Request, err error)
}

// New returns middleware that charges requests to t as classify says. It
// panics if t or classify is nil or an option is out of range.
func New(t *throttler.Throttler, classify Classifier, options *Options) func(http.Handler) http.Handler {
	if t == nil || classify == nil {
		panic("middleware: New: the throttler or the classifier is nil")
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
	if m.OnError == nil {
		m.OnError = logError
	}
	if m.Deadline < 0 || m.RefusalStatus < 400 || m.RefusalStatus > 499 {
		panic(fmt.Sprintf("middleware: New: Deadline is %v, RefusalStatus %d; they must be positive, and from 400 to 499", m.Deadline, m.RefusalStatus))
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
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
	charges := t.classify(r)
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
		t.OnError(r, err)
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
		t.OnError(r, fmt.Errorf("refund: %w", err))
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
		t.OnError(r, fmt.Errorf("settle: %w", err))
		return d
	}
	return after
}
