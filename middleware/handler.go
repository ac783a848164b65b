package middleware

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"

	weirlog "github.com/weir-go/weir/log"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
)

// What handlers do with the limits of their requests. SetCost is in cost.go.

// FromContext returns the decision about the request whose context ctx is: of the handler's
// last [Take], or of the innermost middleware that the request has passed that enforces one.
// It returns false if there is none: no charge was made, or the backend did not answer. The
// middleware refunds and settles it, unless another process has, by a receipt.
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

// Take charges r more, from within its handler, by the throttler and options of the innermost
// middleware in front: what a request needs may be known only when its body is read. If it
// returns false, Take has answered to w, with a refusal for example, and the handler is to
// return:
//
//	if !middleware.Take(w, r, throttler.Charge{Policy: points, Key: caller, Cost: cost}) {
//		return
//	}
//
// [Classifier.Charges] has the key of the caller that was charged in front.
//
// Charges of one call are all taken or none. What the middlewares in front, and earlier
// calls, have charged stays charged after a refusal, because the handler ran. A response that
// is free by [Options.RefundIf] is free of these charges, too. The headers report the limit
// that binds among all. Call Take before the response begins.
//
// Behind no middleware of this package that has charges for the request, or [InHandler], Take
// answers 500.
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
	goesOn := t.decide(w, e)
	if goesOn {
		e.add() // if it is undecided, too, so that no header tells of the others alone
	}
	return goesOn
}

// taken returns the last Take of e's handler that is as is reports, or nil.
func (e *entry) taken(is func(x *entry) bool) *entry {
	for x := e.l.last.Load(); x != nil; x = x.earlier {
		if x.inHandler && x.outer == e && is(x) {
			return x
		}
	}
	return nil
}

// WriteHeaders writes to h what is left of the limits that decisions are about, in a dialect,
// [GitHub]'s if it is nil, and Retry-After if one is refused. It is for programs that ask a
// throttler by themselves, for a response that no middleware of this package is in front of.
// Of several decisions about one count, the last one counts. Where one has no counts, because
// it is Degraded or Blocked for example, the dialect writes nothing: it would be a lie.
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

// decidedAfter reports whether r has a decision about c's count after e's.
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
