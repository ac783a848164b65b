package middleware

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weir-go/weir/throttler"
)

// A ledger lists what one request was charged by all middlewares that it
// passed. The outermost one creates it, passes on a copy of the request whose
// context holds it, and wraps the response; those further in find it there, so
// that neither a wrapped writer nor an http.TimeoutHandler between them hides it.
//
// It is one allocation with the context and the body.
type ledger struct {
	received *http.Request       // as the outermost middleware received it
	passed   *http.Request       // the copy that it passed on
	w        http.ResponseWriter // as the outermost middleware received it

	context requestContext // of passed
	body    requestBody    // of passed, if it has one
	sent    atomic.Uint32  // how far the response is: nothing, begun or hijacked

	mu      sync.Mutex // guards what follows, and all entries; never held in a call of others
	last    *entry     // the innermost
	first   entry      // the outermost
	notRun  bool       // a middleware answered in place of the handler
	unknown bool       // an enforced policy has no decision: no headers would be true
}

// Values of ledger.sent.
const (
	nothing  = iota
	begun    // the final status is on its way
	hijacked // the handler has the connection
)

// entry is what one middleware has charged.
type entry struct {
	m       *throttle
	r       *http.Request // as passed to the next handler
	outer   *entry        // nil for the outermost
	charges []throttler.Charge
	marks   []mark             // of charges; nil if there are none
	d       throttler.Decision // as last known; without Limits if there is none
	reports []report           // costs that the handler has reported
	ahead   *aheadBody         // of r, if it waited
	state   entryState
	ended   bool // the next handler has returned
}

type entryState uint8

const (
	uncharged entryState = iota // there is nothing to give back
	charged
	settled // refunded or settled: once
)

// requestContext is the context of a charged request.
type requestContext struct {
	context.Context // parent
	ledger          *ledger
}

type ledgerKey struct{}

func (c *requestContext) Value(key any) any {
	if key == (ledgerKey{}) {
		return c.ledger
	}
	return c.Context.Value(key)
}

// ledgerOf returns the ledger of r, or nil.
func ledgerOf(r *http.Request) *ledger {
	l, _ := r.Context().Value(ledgerKey{}).(*ledger)
	if l != nil && l.received.RequestURI != r.RequestURI {
		return nil // a request that the handler makes up in this process, such as one of a batch
	}
	return l
}

// serverWriter returns the server's own writer, as far as it is known: w if l is
// nil.
func (l *ledger) serverWriter(w http.ResponseWriter) http.ResponseWriter {
	if l != nil {
		return l.w
	}
	return w
}

// serve passes the request on and accounts for e when the next handler returns.
// l is nil for the outermost middleware.
func (e entry) serve(w http.ResponseWriter, l *ledger, next http.Handler) {
	if l != nil {
		l.serveInner(w, e, next)
		return
	}
	l = &ledger{received: e.r, w: w}
	l.context = requestContext{e.r.Context(), l}
	shareTrailer(e.r)
	l.passed = e.r.WithContext(&l.context)
	e.r = l.passed
	l.first = e
	l.last = &l.first
	l.unknown = e.m.DryRun == nil && len(e.d.Limits) == 0
	if e.ahead != nil {
		l.passed.Body = e.ahead
	}
	l.trackBody()
	returned := false
	defer func() { l.finish(returned) }() // a panic goes on after this
	next.ServeHTTP(l.writer(abilities(w)), l.passed)
	returned = true
}

func (l *ledger) serveInner(w http.ResponseWriter, e entry, next http.Handler) {
	added := l.add(e)
	if e.ahead != nil {
		e.r.Body = e.ahead
	}
	returned := false
	defer func() { l.end(added, w, returned) }()
	next.ServeHTTP(w, e.r)
	returned = true
}

// add makes e the innermost entry.
func (l *ledger) add(e entry) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.outer = l.last
	l.last = &e
	if e.m.DryRun == nil && len(e.d.Limits) == 0 {
		l.unknown = true
	}
	return l.last
}

// innermost returns the last entry; outer leads to the others.
func (l *ledger) innermost() *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// finish accounts for all entries when the outermost middleware returns, or a
// panic passes it.
func (l *ledger) finish(returned bool) {
	if returned {
		l.begin(http.StatusOK) // for a handler that wrote nothing
	}
	l.end(&l.first, l.w, returned)
	if l.sent.Load() == nothing { // a middleware further out may answer for the panic
		l.writeHeaders(l.w.Header())
	}
	l.copyBack()
}

// end accounts for e, and for entries further in whose handlers have returned,
// when the handler behind e has returned or panicked. w is what it wrote to.
func (l *ledger) end(e *entry, w http.ResponseWriter, returned bool) {
	sent := l.sent.Load() != nothing
	switch {
	case sent && e.m.CostHeader != "":
		l.readCostHeader(e, w.Header()) // it may be a trailer
	case !sent && !returned:
		l.readCostHeaders(w.Header())
	}
	l.mu.Lock()
	e.ended = true
	last := l.last
	l.mu.Unlock()
	if !sent && returned {
		return // RefundIf is asked first, when the response begins
	}
	// A panic is refunded only while nothing of the response was sent and the
	// client is there: a ReverseProxy panics when its client hangs up. A writer that
	// does not lead here may hold a response back and send it after all.
	free := !sent && !l.clientLeft() && (e.outer == nil || l.isBehind(w))
	for x := last; ; x = x.outer {
		if l.hasEnded(x) {
			l.settleReported(x)
			if free {
				l.settle(x, afterHandler)
			}
		}
		if x == e {
			return
		}
	}
}

// isBehind reports whether what is written to w is known to come to l at once.
func (l *ledger) isBehind(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case interface{ self() *ledger }:
			return t.self() == l
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// self is a method of all writers of the ledger, which embed it.
func (l *ledger) self() *ledger { return l }

func (l *ledger) hasEnded(e *entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.ended
}

// clientLeft reports whether the request's context was canceled. A deadline of
// the application's own is not the client leaving.
func (l *ledger) clientLeft() bool { return l.context.Err() == context.Canceled } //nolint:errorlint // what Err returns

// begin is called just before the final status goes out: the last moment at
// which the headers can say what the request really cost.
func (l *ledger) begin(status int) {
	if l.sent.Load() != nothing {
		return
	}
	h := l.w.Header()
	l.readCostHeaders(h)
	l.mu.Lock()
	last, notRun := l.last, l.notRun
	l.mu.Unlock()
	free := !notRun && !l.clientLeft()
	for e := last; e != nil; e = e.outer {
		if free && l.isCharged(e) && e.m.RefundIf(e.r, status, h) {
			l.settle(e, afterHandler)
		} else {
			l.settleReported(e)
		}
	}
	l.writeHeaders(h)
	if status >= 400 {
		l.closeIfPartlyRead(h)
	}
	l.sent.Store(begun) // not earlier: RefundIf may panic
}

func (l *ledger) isCharged(e *entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.state == charged
}

// refundAll gives everything back to what the other middlewares have charged,
// because one did not let the request pass. A dry run keeps its charge: it tries
// a policy that would be enforced in place of the one that refused.
func (l *ledger) refundAll() {
	l.mu.Lock()
	l.notRun = true
	last := l.last
	l.mu.Unlock()
	for e := last; e != nil; e = e.outer {
		if e.m.DryRun == nil {
			l.settle(e, beforeHandler)
		}
	}
}

// settleReported settles e if the handler has reported a cost.
func (l *ledger) settleReported(e *entry) {
	l.mu.Lock()
	reported := len(e.reports) > 0
	l.mu.Unlock()
	if reported {
		l.settle(e, asReported)
	}
}

// settle settles e, unless it was settled before or has nothing to settle.
func (l *ledger) settle(e *entry, why settlement) {
	l.mu.Lock()
	if e.state != charged {
		l.mu.Unlock()
		return
	}
	e.state = settled
	d, costs := e.d, e.costs(why)
	l.mu.Unlock()
	after := e.m.settle(e.r, d, costs)
	l.mu.Lock()
	e.d = after
	l.mu.Unlock()
}

// shareTrailer lets a copy of r see trailers that the client has not announced:
// net/http adds them to the map of the request that it knows.
func shareTrailer(r *http.Request) {
	if r.Trailer == nil && r.ContentLength < 0 && r.ProtoMajor == 1 {
		r.Trailer = make(http.Header)
	}
}

// copyBack gives the request that was received what the handlers have set in the
// copy: net/http removes the files of MultipartForm, and middlewares further out
// read the pattern and the form.
func (l *ledger) copyBack() {
	to, from := l.received, l.passed
	to.Form, to.PostForm, to.MultipartForm = from.Form, from.PostForm, from.MultipartForm
	if to.Pattern == from.Pattern {
		return
	}
	to.Pattern = from.Pattern
	for rest := from.Pattern; ; {
		_, after, found := strings.Cut(rest, "{")
		name, after, closed := strings.Cut(after, "}")
		if !found || !closed {
			return
		}
		name = strings.TrimSuffix(name, "...")
		if name != "" && name != "$" {
			to.SetPathValue(name, from.PathValue(name))
		}
		rest = after
	}
}
