package middleware

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
)

// Functions that handlers call about the limits of their requests. SetCost is in cost.go.

// FromContext returns the decision about the request with context ctx: the decision of its
// handler's last [Take] or, without one, of the innermost middleware in front that enforces a
// decision. It returns false if no charge was made, or the backend did not answer. The
// middleware refunds and settles the decision, unless another process has, by a receipt.
func FromContext(ctx context.Context) (d throttler.Decision, ok bool) {
	e, _ := ctx.Value(linkKey{}).(*link)
	if e == nil {
		return d, false
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	if k := e.takes; k != nil {
		return k.d, k.d.Allowed || k.d.NumLimits() > 0
	}
	for ; e != nil; e = e.outer {
		if e.m.DryRun == nil && (e.d.Allowed || e.d.NumLimits() > 0) {
			return e.d, true
		}
	}
	return d, false
}

// Receipt returns the receipt of the decision that [FromContext] returns, for another process to
// settle, by throttler.Open. If r is served without a decision, because the backend did not answer,
// the error wraps throttler.ErrUnavailable. It wraps throttler.ErrInvalid if no middleware is in
// front, if nothing was charged to the shared counts, or if the throttler has no ReceiptKey.
func Receipt(r *http.Request) (string, error) {
	e := linkOf(r)
	if e == nil {
		return "", invalid.Errorf("middleware: Receipt: no middleware is in front; pass the request that the handler received")
	}
	d, ok := FromContext(r.Context())
	if !ok {
		return "", fmt.Errorf("middleware: Receipt: the request has no decision: %w", throttler.ErrUnavailable)
	}
	for outer := e; outer != nil; outer = outer.outer {
		outer.m.unreported.Store(unreportedMax) // the settlement reports the cost
	}
	return e.m.throttler.Receipt(d)
}

// Take makes more charges for r, from within its handler, with the throttler and options of
// the innermost middleware in front. It is for charges that are known only when the body has
// been read. If Take returns false, it has written a response to w, such as a refusal, and the
// handler must return. What it writes then is dropped, unless a writer in between holds it back.
//
//	if !middleware.Take(w, r, throttler.Charge{Policy: points, Key: caller, Cost: cost}) {
//		return
//	}
//
// [Classifier.Charges] of the classifier in front returns its charges, with the caller's key.
//
// One call takes all of its charges or none. After a refusal, the charges of the middlewares
// in front and of earlier calls stay, because the handler ran. If a response is free by
// [Options.RefundIf], these charges are refunded, too. The headers report the limit that binds
// among all charges. Call Take before the response begins.
//
// Take answers 500 unless a middleware of this package in front has charges for the request,
// or uses [InHandler].
func Take(w http.ResponseWriter, r *http.Request, charges ...throttler.Charge) bool {
	e := linkOf(r)
	if e == nil {
		weirlog.Default().Warned(observe.Warned{
			Text: "middleware.Take is called for a request that no middleware in front has charged, and answers 500",
			Hint: "put a middleware in front of the handler; one that charges nothing needs InHandler()",
		})
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return false
	}
	t := e.m
	t.unreported.Store(unreportedMax)
	k := &take{link: e, received: r}
	k.charges = append(k.room[:0], charges...)
	if k.contextOver() && t.DryRun == nil {
		t.answerUnavailable(w, k, requestEnded, nil)
		return false
	}
	if !t.admit(w, k) {
		return false
	}
	k.add() // even if undecided: headers must not report the other takes alone
	if o := e.outcome(); o.handler != running && o.alone {
		k.settle(charged) // nothing else settles it
	}
	return true
}

// WriteHeaders writes to h the rate headers of decisions in a dialect, or [GitHub]'s if it is
// nil, and Retry-After if a decision is refused and its charges can fit later. It is for
// programs that call a throttler themselves, for a response without a middleware of this
// package. Of several decisions about one count, the last one is reported. If a decision has
// no counts, as when it is Degraded or Blocked, or all policies are Hidden, WriteHeaders writes no
// rate headers.
func WriteHeaders(h http.Header, dialect Dialect, decisions ...throttler.Decision) {
	if dialect == nil {
		dialect = GitHub{}
	}
	r, unknown, retryAt, decidedAt := Report{}, len(decisions) == 0, time.Time{}, time.Time{}
	for i, d := range decisions {
		r.takes = append(r.takes, &take{d: d, decided: uint32(i)})
		unknown = unknown || d.NumLimits() == 0 || d.Degraded || d.Blocked
		if retry := d.RetryAt(); retry.After(retryAt) {
			retryAt, decidedAt = retry, d.At()
		}
	}
	if !unknown && r.reports() {
		dialect.Write(h, &r)
	}
	if !retryAt.IsZero() && !retryAt.Equal(decision.Never) {
		h.Set("Retry-After", strconv.FormatInt(retryAfterSeconds(retryAt.Sub(decidedAt), 0), 10))
	}
}

// decidedAfter reports whether r contains a later decision than k's about c's count.
func (r *Report) decidedAfter(k *take, c *throttler.Charge) bool {
	for _, o := range r.takes {
		if o.decided <= k.decided {
			continue
		}
		for i := range o.d.Charges() {
			if sameCount(&o.d.Charges()[i], c) {
				return true
			}
		}
	}
	return false
}

// sameCount reports whether two charges are to one count.
func sameCount(a, b *throttler.Charge) bool {
	return a.Key == b.Key && a.Policy.Name == b.Policy.Name && cmp.Or(a.Partition, a.Key) == cmp.Or(b.Partition, b.Key)
}
