package middleware

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A ledger accounts for one request: it holds the charges of all middlewares that the request
// passes. The outermost middleware creates it and wraps the response.
//
// Its entries are a tree, because a handler between two middlewares may call the inner one
// several times: to try again, for the parts of a page, or for each request of a batch,
// perhaps in parallel. A middleware puts its entry into the context of the request that it
// passes on, so that neither a wrapped writer nor an http.TimeoutHandler hides it from the
// middlewares further in.
type ledger struct {
	w          http.ResponseWriter   // as the outermost middleware received it
	body       *requestBody          // of the request, if it has one
	sent       atomic.Uint32         // how far the response is: nothing, begun or hijacked
	fullDuplex atomic.Bool           // the handler may read the body after the response has begun
	last       atomic.Pointer[entry] // the entry added last; earlier leads to the others

	mu        sync.Mutex    // guards the fields below and parts of entries; of foreign code, only a Dialect runs under it
	enforced  bool          // handlers can't set rate headers
	fields    uint16        // number of fields in the header when the response began
	decisions atomic.Uint32 // number of decisions; not guarded
	rates     Report        // the report of the first headers

	first entry // the outermost, in the same allocation
}

// Values of ledger.sent.
const (
	nothing  = iota
	begun    // the final status is on its way
	hijacked // the handler has the connection
)

// entry holds the charges of one middleware for one call of its handler.
type entry struct {
	m       *throttle
	l       *ledger
	outer   *entry // nil for the outermost
	earlier *entry // the entry added before; never one further in

	received *http.Request
	passed   *http.Request // the request of the next handler, if it runs

	call driver.Detached // the context of the charges; does not end with the client, so that the outcome is known

	progress atomic.Uint32 // of the next handler: running, over or overLate
	answered bool          // the middleware answered in place of the next handler

	// The fields below are guarded by the ledger's mu.

	// The outcome of the middlewares right behind this one.
	innerRan     bool // a handler ran behind one of them
	innerRefused bool // one of them refused, and no handler ran behind it

	state     entryState
	reports   *report                 // costs that the handler has reported
	charges   []throttler.Charge      // as classified
	flags     [quota.MaxCharges]flags // of charges
	room      [1]throttler.Charge     // for charges, if there is only one
	d         throttler.Decision      // the last decision, or the zero value
	decided   uint32                  // the place of d among the ledger's decisions
	inHandler bool                    // made by a Take of the outer entry's handler
	letGo     func()                  // ends the renewals of the units in flight; nil if d has no such units
	due       settlement              // requested when the response began, deferred while units are in flight
}

// Values of entry.progress.
const (
	running  = iota
	over     // it has returned or panicked
	overLate // and the request's context was over then
)

type entryState uint8

const (
	uncharged entryState = iota // nothing to refund
	charged
	settled // refunded or settled, once
)

// passedContext is the context of the request that a middleware passes on: the context of the
// received request, with the middleware's entry.
type passedContext entry

type entryKey struct{}

func (c *passedContext) Value(key any) any {
	if key == (entryKey{}) {
		return (*entry)(c)
	}
	return c.received.Context().Value(key)
}

func (c *passedContext) Deadline() (time.Time, bool) { return c.received.Context().Deadline() }
func (c *passedContext) Done() <-chan struct{}       { return c.received.Context().Done() }
func (c *passedContext) Err() error                  { return c.received.Context().Err() }

// entryOf returns the entry of the middleware that passed r on, or nil.
func entryOf(r *http.Request) *entry {
	e, _ := r.Context().Value(entryKey{}).(*entry)
	return e
}

// newEntry returns an entry for r, in a new ledger if m is the outermost middleware. The
// ledger does not list it until add.
func newEntry(m *throttle, w http.ResponseWriter, r *http.Request) *entry {
	if outer := entryOf(r); outer != nil {
		return &entry{m: m, l: outer.l, outer: outer, received: r}
	}
	l := &ledger{w: w}
	if hasBody(r) {
		l.body = newRequestBody(r.Body)
	}
	e := &l.first
	e.m, e.l, e.received = m, l, r
	return e
}

// add makes the ledger list e.
func (e *entry) add() {
	e.decided = e.l.decisions.Add(1)
	for {
		e.earlier = e.l.last.Load()
		if e.l.last.CompareAndSwap(e.earlier, e) {
			return
		}
	}
}

// serve passes the request on and accounts for e when the next handler returns.
func (e *entry) serve(w http.ResponseWriter, next http.Handler) {
	if e.outer == nil {
		shareTrailer(e.received)
		w = e.l.writer()
	}
	e.passed = e.received.WithContext((*passedContext)(e))
	if e.outer == nil && e.l.body != nil {
		e.passed.Body = e.l.body
	}
	e.add()
	returned := false
	defer func() { e.end(w, returned) }() // a panic continues after this
	next.ServeHTTP(w, e.passed)
	returned = true
	if e.m.keyedByRoute {
		e.m.warnRoute(e)
	}
}

// servesUncharged notes that a request runs behind e without a charge by the next middleware.
// e may be nil.
func (e *entry) servesUncharged() {
	if e == nil {
		return
	}
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.innerRan = true
}

// has reports whether some charge carries f.
func (e *entry) has(f flags) bool {
	return slices.ContainsFunc(e.flags[:], func(o flags) bool { return o&f != 0 })
}

// end accounts for e when the next handler has returned or panicked. w is the handler's
// writer.
func (e *entry) end(w http.ResponseWriter, returned bool) {
	l, accounted := e.l, false
	defer func() {
		if !accounted {
			l.endAfterPanic(e)
		}
	}()
	if e.outer == nil && returned && l.sent.Load() == nothing {
		l.running().readCostHeaders(l.w.Header)
		l.settleFor(unknownStatus, l.w.Header()) // an outer handler may still send an error
	}
	e.readCostHeaders(w.Header) // it may be a trailer, or the header of a part
	// A panic is a 500 only if nothing of the response was sent. A writer that does not lead
	// here may hold a response back and still send it.
	failed := !returned && l.sent.Load() == nothing && (e.outer == nil || l.isBehind(w))
	due, enforced := l.handlerEnded(e, returned, failed)
	for _, x := range due {
		why := l.asked(x)
		if why == asCharged && failed && x.isFree(http.StatusInternalServerError, l.w.Header()) {
			why = afterHandler
		}
		l.settle(x, why)
	}
	accounted = true
	if e.outer == nil {
		l.end(enforced)
	}
	e.copyBack()
}

// endAfterPanic accounts for e when a function of the program that end has called, such as
// RefundIf, has panicked: units in flight would be renewed for ever.
func (l *ledger) endAfterPanic(e *entry) {
	due, _ := l.handlerEnded(e, false, false)
	for _, x := range due {
		defer l.settle(x, l.asked(x)) // deferred, because OnError may panic, too
	}
}

// end completes the response when the outermost handler has ended. If nothing was sent,
// net/http sends a 200, unless an outer handler responds.
func (l *ledger) end(enforced bool) {
	unsent := l.sent.Load() == nothing
	if unsent {
		l.writeHeaders(l.w.Header())
	} else if enforced {
		l.removeLateTrailers(l.w.Header())
	}
	if l.breakOffReading(0) && unsent {
		l.w.Header().Set("Connection", "close")
	}
}

// isWithin reports whether e is o or behind it.
func (e *entry) isWithin(o *entry) bool {
	for ; e != nil; e = e.outer {
		if e == o {
			return true
		}
	}
	return false
}

// contextOver reports whether the context of the request that e's middleware
// received is over.
func (e *entry) contextOver() bool { return e.received.Context().Err() != nil }

// isBehind reports whether writes to w are known to reach l at once.
func (l *ledger) isBehind(w http.ResponseWriter) bool {
	of, ok := find[interface{ self() *ledger }](w)
	return ok && of.self() == l
}

// self is a method of all writers of the ledger, which embed it.
func (l *ledger) self() *ledger { return l }

// begin is called just before the final status is sent, when the headers can still show the
// request's real cost. That may be after the outermost handler has returned.
func (l *ledger) begin(status int) {
	if l.sent.Load() != nothing {
		return
	}
	if l.first.progress.Load() != running && l.first.contextOver() {
		l.sent.Store(begun) // net/http may be reading the header already
		return
	}
	h := l.w.Header()
	l.running().readCostHeaders(l.w.Header)
	l.settleFor(status, h)
	l.writeHeaders(h)
	if status >= 400 {
		l.closeIfPartlyRead(h)
	}
	if !l.fullDuplex.Load() && l.breakOffReading(0) { // so that the response leaves at once
		h.Set("Connection", "close")
	}
	l.fields = uint16(len(h))
	l.sent.Store(begun) // not earlier: RefundIf may panic
}

// running returns the last entry with a running handler or, if all have ended, the last entry.
func (l *ledger) running() *entry {
	for e := l.last.Load(); e != nil; e = e.earlier {
		if !e.answered && e.progress.Load() == running {
			return e
		}
	}
	return l.last.Load()
}

// shareTrailer lets copies of r see trailers that the client has not announced: net/http adds
// them to the map of its own request.
func shareTrailer(r *http.Request) {
	if r.Trailer == nil && r.ContentLength < 0 && r.ProtoMajor == 1 {
		r.Trailer = make(http.Header)
	}
}

// copyBack copies the forms, pattern and path values that the handlers have set to the
// received request: net/http removes the files of MultipartForm, and middlewares further out
// read the pattern and the form.
func (e *entry) copyBack() {
	to, from := e.received, e.passed
	// Unchanged fields are not written: parallel calls may share a request.
	if to.Form == nil && from.Form != nil {
		to.Form = from.Form
	}
	if to.PostForm == nil && from.PostForm != nil {
		to.PostForm = from.PostForm
	}
	if to.MultipartForm != from.MultipartForm {
		to.MultipartForm = from.MultipartForm
	}
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
