package middleware

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// A chain is the middlewares that one request passes, from the outermost inward. It wraps the
// response for all of them. A middleware puts its link into the context of the request that it
// passes on, so that neither a wrapped writer nor an http.TimeoutHandler hides it from the
// next middleware.
//
// A handler between two middlewares may call the inner one several times: to try again, or for
// the parts of a page. The chain goes through the last call. Earlier calls are settled alone,
// and the middlewares in front keep their charges if one of the handlers ran.
type chain struct {
	w          http.ResponseWriter     // as the outermost middleware received it
	body       *requestBody            // of the request, if it has one
	sent       atomic.Uint32           // how far the response is: nothing, begun or hijacked
	inPlace    atomic.Pointer[inPlace] // a response that Take writes, or has written
	fullDuplex atomic.Bool             // the handler may read the body after the response has begun
	changes    atomic.Bool             // a success may change charges: a RefundIf or CostHeader is set, or a cost reported

	mu        sync.Mutex // guards the fields below, and states; of foreign code, only a Dialect runs under it
	enforced  bool       // handlers can't set rate headers
	fields    uint16     // number of fields in the header when the response began
	decisions uint32     // number of decisions
	rates     Report     // the report of the first headers

	first link // the outermost, in the same allocation
}

// Values of chain.sent.
const (
	nothing  = iota
	begun    // the final status is on its way
	hijacked // the handler has the connection
)

// A link is one middleware's part of a chain, for one call of its handler.
type link struct {
	take  // of the classifier's charges
	m     *throttle
	c     *chain
	outer *link // nil for the outermost

	passed http.Request // the request of the handler, if it runs; in this allocation

	// The fields below are guarded by the chain's mu.

	inner    *link // the last call of the next middleware, or nil
	takes    *take // by Take in the handler, the last first
	ran      int32 // handlers that ran or run behind this link, and are not behind inner
	handler  handlerState
	replaced bool // outer.inner is a later call
}

// handlerState is the state of a link's handler.
type handlerState uint8

const (
	running   handlerState = iota
	finished               // it has returned or panicked, or did not run
	endedLate              // and the request's context was over then
)

// A take is a decision about a request. It is settled once: when the response begins if that
// is free, or if a cost was reported by then. Otherwise, and always if it holds units in
// flight, it is settled when its handler has ended.
type take struct {
	link     *link
	received *http.Request
	next     *take // the one before, of a link's takes

	// The fields below are guarded by the chain's mu as soon as the handler runs.

	reports *report                 // costs that the handler has reported
	charges []throttler.Charge      // as classified
	flags   [quota.MaxCharges]flags // of charges
	room    [1]throttler.Charge     // for charges, if there is only one
	d       throttler.Decision      // the last decision, or the zero value
	letGo   func()                  // ends the renewals of the units in flight; nil if d has no such units
	decided uint32                  // the place of d among the chain's decisions
	state   takeState
}

// takeState is what a take is settled to. The states from charged to unserved are requests
// of a settlement, too.
type takeState uint8

const (
	uncharged takeState = iota // nothing to settle
	refused                    // nothing to settle: the middleware answered in place of the handler
	charged                    // to the charges, which releases units in flight, or to reported costs
	reported                   // to reported costs
	free                       // to the charges marked NoRefund: the handler ran and the response is free
	unserved                   // to nothing: no handler ran
	settled
)

// callContext has the values of a request's context, and does not end with the client, so that
// the outcome of a charge is known. Unlike context.WithoutCancel, it needs no memory of its own.
type callContext take

func (c *callContext) Value(key any) any                { return c.received.Context().Value(key) }
func (*callContext) Deadline() (end time.Time, ok bool) { return }
func (*callContext) Done() <-chan struct{}              { return nil }
func (*callContext) Err() error                         { return nil }

// passedContext is the context of the request that a middleware passes on: the context of the
// received request, with the middleware's link.
type passedContext link

type linkKey struct{}

func (c *passedContext) Value(key any) any {
	if key == (linkKey{}) {
		return (*link)(c)
	}
	return c.received.Context().Value(key)
}

func (c *passedContext) Deadline() (time.Time, bool) { return c.received.Context().Deadline() }
func (c *passedContext) Done() <-chan struct{}       { return c.received.Context().Done() }
func (c *passedContext) Err() error                  { return c.received.Context().Err() }

// linkOf returns the link of the middleware that passed r on, or nil. r may be nil: weirfiber.Request
// returns nil without a limit in front.
func linkOf(r *http.Request) *link {
	if r == nil {
		return nil
	}
	e, _ := r.Context().Value(linkKey{}).(*link)
	return e
}

// newLink returns a link for r, in a new chain if m is the outermost middleware. The chain
// does not go through it until add.
func newLink(m *throttle, w http.ResponseWriter, r *http.Request) *link {
	var e *link
	if outer := linkOf(r); outer != nil {
		e = &link{c: outer.c, outer: outer}
	} else {
		c := &chain{w: w}
		if hasBody(r) {
			c.body = newRequestBody(r.Body)
		}
		e = &c.first
		e.c = c
	}
	e.m, e.received, e.link = m, r, e
	return e
}

// add makes the chain go through k's link, or adds k to its link if it is a handler's.
func (k *take) add() {
	e, before := k.link, (*link)(nil)
	e.c.mu.Lock()
	e.c.decisions++
	k.decided = e.c.decisions
	if e.m.RefundIf != nil || e.m.CostHeader != "" {
		e.c.changes.Store(true)
	}
	switch {
	case k != &e.take:
		k.next, e.takes = e.takes, k
		e.ran++ // e's handler
	case e.outer != nil:
		before = e.outer.inner
		e.outer.inner = e
	}
	if before != nil {
		before.replaced = true
		if before.handler == running || !before.isRefused() {
			e.outer.ran++
		}
	}
	e.c.mu.Unlock()
	if before != nil {
		before.settleAlone(false)
	}
}

// serve passes the request on and settles e when the next handler returns.
func (e *link) serve(w http.ResponseWriter, next http.Handler) {
	if e.outer == nil {
		shareTrailer(e.received)
		w = e.c.writer()
	}
	e.passed = *e.received.WithContext((*passedContext)(e))
	if e.outer == nil && e.c.body != nil {
		e.passed.Body = e.c.body
	}
	e.add()
	returned := false
	defer func() { e.end(w, returned) }() // a panic continues after this
	next.ServeHTTP(w, &e.passed)
	returned = true
	if e.m.keyedByRoute {
		e.m.warnRoute(e)
	}
}

// servesUncharged notes that a request runs behind e without a charge by the next middleware.
// e may be nil.
func (e *link) servesUncharged() {
	if e == nil {
		return
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.ran++
}

// end settles e when the next handler has returned or panicked. w is the handler's
// writer.
func (e *link) end(w http.ResponseWriter, returned bool) {
	c, accounted := e.c, false
	defer func() {
		if !accounted { // a function of the program, such as RefundIf, has panicked: units in flight would be renewed for ever
			e.handlerEnded()
			e.settleAlone(false)
		}
	}()
	if e.outer == nil && returned && c.sent.Load() == nothing {
		c.settleFor(unknownStatus, c.w.Header()) // an outer handler may still send an error
	}
	if c.changes.Load() {
		e.readCostHeaders(w.Header) // it may be a trailer, or the header of a part
	}
	// A panic is a 500 only if nothing of the response was sent. A writer that does not lead
	// here may hold a response back and still send it.
	failed := !returned && c.sent.Load() == nothing && (e.outer == nil || c.isBehind(w))
	if e.handlerEnded() || !returned {
		e.settleAlone(failed)
	}
	accounted = true
	if e.outer == nil {
		c.end()
	}
	if e.m.refunded.Load() < refundedMax && e.outcome().charged {
		e.m.refunded.Store(refundedMax) // it keeps a charge
	}
	if returned && e.m.unreported.Load() < unreportedMax {
		e.warnUnreported()
	}
	e.copyBack()
}

// handlerEnded notes that e's handler has returned or panicked, and reports whether e, or a
// link behind it, may have to be settled without the response.
func (e *link) handlerEnded() (unsettled bool) {
	state := finished
	if e.contextOver() {
		state = endedLate
	}
	e.c.mu.Lock()
	if e.handler == running {
		e.handler = state
		if e.replaced && e.isRefused() {
			e.outer.ran--
		}
	}
	unsettled = e.isSettledAlone() && (e.inner != nil || e.takes != nil || e.isDue())
	e.c.mu.Unlock()
	return unsettled
}

// end completes the response when the outermost handler has ended. If nothing was sent,
// net/http sends a 200, unless an outer handler responds.
func (c *chain) end() {
	unsent := c.sent.Load() == nothing
	if unsent {
		c.writeHeaders(c.w.Header())
	} else {
		c.removeLateTrailers(c.w.Header())
	}
	if c.body != nil && c.breakOffReading(0) && unsent {
		c.w.Header().Set("Connection", "close")
	}
}

// contextOver reports whether the context of k's request is over.
func (k *take) contextOver() bool { return k.received.Context().Err() != nil }

// isBehind reports whether writes to w are known to reach c at once.
func (c *chain) isBehind(w http.ResponseWriter) bool {
	writer, ok := find[interface{ self() *chain }](w)
	return ok && writer.self() == c
}

// self is a method of all writers of the chain, which embed it.
func (c *chain) self() *chain { return c }

// begin is called just before the final status is sent, when the headers can still show the
// request's real cost. That may be after the outermost handler has returned.
func (c *chain) begin(status int) {
	if c.sent.Load() != nothing {
		return
	}
	if c.first.contextOver() && c.first.outcome().handler != running {
		c.sent.Store(begun) // net/http may be reading the header already
		return
	}
	h := c.w.Header()
	c.settleFor(status, h)
	c.writeHeaders(h)
	if c.body != nil {
		c.endReading(status, h)
	}
	c.fields = uint16(len(h))
	c.sent.Store(begun) // not earlier: RefundIf may panic
}

// innermost returns the last link of the chain that e is part of, from e on. The caller holds
// the chain's lock.
func (e *link) innermost() *link {
	for e.inner != nil {
		e = e.inner
	}
	return e
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
func (e *link) copyBack() {
	to, from := e.received, &e.passed
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
	if to.Pattern != from.Pattern {
		copyPattern(to, from)
	}
}

// copyPattern copies the pattern and the path values of a request.
func copyPattern(to, from *http.Request) {
	to.Pattern = from.Pattern
	for pattern := from.Pattern; ; {
		_, tail, found := strings.Cut(pattern, "{")
		name, tail, closed := strings.Cut(tail, "}")
		if !found || !closed {
			return
		}
		name = strings.TrimSuffix(name, "...")
		if name != "" && name != "$" {
			to.SetPathValue(name, from.PathValue(name))
		}
		pattern = tail
	}
}
