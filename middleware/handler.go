package middleware

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"

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
	e, _ := ctx.Value(entryKey{}).(*entry)
	if e == nil {
		return d, false
	}
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if x := e.taken(func(*entry) bool { return true }); x != nil {
		return x.d, x.d.Allowed || x.d.NumLimits() > 0
	}
	for ; e != nil; e = e.outer {
		if e.m.DryRun == nil && (e.d.Allowed || e.d.NumLimits() > 0) {
			return e.d, true
		}
	}
	return d, false
}

// Take makes more charges for r, from within its handler, with the throttler and options of
// the innermost middleware in front. It is for charges that are known only when the body has
// been read. If Take returns false, it has written a response to w, such as a refusal, and the
// handler must return:
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
	outer := entryOf(r)
	if outer == nil {
		weirlog.Default().Warned(observe.Warned{
			Text: "middleware.Take is called for a request that no middleware in front has charged, and answers 500",
			Hint: "put a middleware in front of the handler; one that charges nothing needs InHandler()",
		})
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return false
	}
	t := outer.m
	e := &entry{m: t, l: outer.l, outer: outer, received: r, passed: r}
	e.inHandler = true
	e.charges = append(e.room[:0], charges...)
	if e.contextOver() && t.DryRun == nil {
		t.answerUnavailable(w, e, ended, nil)
		return false
	}
	goesOn := t.admit(w, e)
	if goesOn {
		e.add() // even if undecided: headers must not report the other entries alone
		if progress := outer.progress.Load(); progress != running {
			e.progress.Store(progress) // which the end of outer's handler could not
			if e.l.first.progress.Load() != running {
				e.l.settle(e, asCharged) // nothing else settles it
			}
		}
	}
	return goesOn
}

// taken returns the last entry by a Take of e's handler that satisfies is, or nil.
func (e *entry) taken(is func(x *entry) bool) *entry {
	for x := e.l.last.Load(); x != nil; x = x.earlier {
		if x.inHandler && x.outer == e && is(x) {
			return x
		}
	}
	return nil
}

// WriteHeaders writes to h the rate headers of decisions in a dialect, or [GitHub]'s if it is
// nil, and Retry-After if a decision is refused and its charges can fit later. It is for
// programs that call a throttler themselves, for a response without a middleware of this
// package. Of several decisions about one count, the last one is reported. If a decision has
// no counts, as when it is Degraded or Blocked, WriteHeaders writes no rate headers.
func WriteHeaders(h http.Header, dialect Dialect, decisions ...throttler.Decision) {
	if dialect == nil {
		dialect = GitHub{}
	}
	r, unknown, retryAt, at := Report{}, len(decisions) == 0, time.Time{}, time.Time{}
	for i, d := range decisions {
		r.entries = append(r.entries, &entry{d: d, decided: uint32(i)})
		unknown = unknown || d.NumLimits() == 0 || d.Degraded || d.Blocked
		if retry := d.RetryAt(); retry.After(retryAt) {
			retryAt, at = retry, d.At()
		}
	}
	if !unknown {
		dialect.Write(h, &r)
	}
	if !retryAt.IsZero() && !retryAt.Equal(decision.Never) {
		h.Set("Retry-After", strconv.FormatInt(retryAfterSeconds(retryAt.Sub(at), 0), 10))
	}
}

// decidedAfter reports whether r contains a later decision than e's about c's count.
func (r *Report) decidedAfter(e *entry, c *throttler.Charge) bool {
	for _, o := range r.entries {
		if o.decided <= e.decided {
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
