package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/cause"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// DefaultDeadline bounds a decision if Options sets no deadline.
const DefaultDeadline = 50 * time.Millisecond

// minDeadline is the shortest deadline: no server answers in less.
const minDeadline = time.Millisecond

// Options configures the middleware. Nil and the zero value select the defaults.
type Options struct {
	// Deadline is the server's time of a decision, refund or settlement: see
	// [throttler.Throttler.WithServerTime]. At least a millisecond. If zero, DefaultDeadline.
	Deadline time.Duration

	// FailClosed answers 503, with a Retry-After, to a request that has no decision because the
	// backend did not answer. If false, the request is served, without rate headers: the counts
	// are unknown. Package guard/fallback chooses for each policy, and can enforce limits locally
	// during an outage; its decisions are carried out, without rate headers. An error that wraps
	// driver.ErrFailClosed or driver.ErrOverloaded is a 503 even if FailClosed is false.
	FailClosed bool

	// RefundIf reports whether a response is free, from its status and header, just before
	// they are sent. A 304 is free without it. A panic before that counts as status 500. If the
	// handler writes nothing, the request is charged: an outer handler, such as a framework's,
	// may still send an error. RefundIf does not apply to charges marked NoRefund. It is not
	// called if the request's context is over, as when the client has left or a deadline has
	// passed, or if reading the request's body failed.
	RefundIf func(r *http.Request, status int, header http.Header) bool

	// Refuse writes each response that the middleware sends in place of the handler's. The
	// headers are already set. If nil, or if Refuse writes nothing, [Refusal.Write] does.
	Refuse func(w http.ResponseWriter, r *http.Request, x Refusal)

	// RetryAfterJitter is the largest fraction by which Retry-After is lengthened at random,
	// from 0 to 0.03, so that clients refused together do not come back together. Retry-After
	// is never shortened.
	RetryAfterJitter float64

	// Dialect writes the rate headers. If nil, [GitHub]. [Dialects] combines several, and
	// [NoHeaders] writes no headers. If a request passes several middlewares, each dialect
	// reports the limits of all of them, except those with NoHeaders. A refusal is written in
	// the dialects of the refusing middleware and of the ones in front.
	Dialect Dialect

	// ExposeHeaders lets scripts of other origins read Retry-After and the headers of
	// Dialect, by Access-Control-Expose-Headers.
	ExposeHeaders bool

	// CostHeader names a response header or trailer. The handler sets it to the request's real
	// cost, as by [SetCost], for the charges of this middleware that are marked CostReported.
	// It must have one value, and is never sent to the client. May be empty.
	CostHeader string

	// DryRun, if not nil, receives each decision, and nothing is enforced: every request is
	// served at once, without rate headers. To try out a policy, put such a middleware in
	// front of the enforcing one, with another policy name. Its charge is refunded for a 304
	// and settled as if it were enforced, but kept if another middleware refuses the request.
	// A request that it would refuse is not charged under the dry-run policy.
	DryRun func(r *http.Request, d throttler.Decision)

	// Observer receives failures and likely mistakes of configuration. If nil, the
	// throttler's does. The default log is added, unless a weirlog.Observer is among them: for
	// each shard and cause the first failure at once, then a line a minute with counts, and a
	// line when the failures are over.
	Observer observe.Observer
}

// New returns middleware that charges requests to t as classify determines. An invalid policy
// or option is an error that wraps [throttler.ErrInvalid]. New panics if t is nil. It warns the
// observer of limits that can never refuse.
//
// A request is served without being charged only if the backend did not answer and neither
// [Options.FailClosed] nor guard/fallback forbids it. A policy or cost that comes with the request
// and is invalid is a 500. A request is charged if its handler panics, unless nothing of the
// response was sent and [Options.RefundIf] reports that a 500 is free. It is charged, too, if the
// client hangs up while the handler runs, or breaks off the request. [Options.Observer] receives
// failures.
//
// Limits on one caller belong in one decision, by [All]. A limit on all callers together is a
// separate middleware, in front of the one on each caller:
//
//	together, err := middleware.New(t, middleware.Limit(global, middleware.Everyone()), nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	each, err := middleware.New(t, middleware.Limit(core, caller), nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	log.Fatal(http.ListenAndServe("127.0.0.1:8080", together(each(handler))))
//
// Middlewares around each other form a chain. If one refuses the request, the outer ones refund
// it, unless a handler behind them ran, or a response other than the refusal is sent. The headers
// report the limit that binds in the chain, in each [Dialect] that one of its middlewares uses. If
// a handler between two middlewares calls the inner one several times, the last call is in the
// chain; each earlier one is charged and settled alone.
//
// The middleware is for net/http and chi; for Gin, Echo and Fiber, see docs/howto/frameworks.md.
// The ResponseWriter implements the optional interfaces that the server's does,
// http.ResponseController works, and a request keeps the forms, pattern and path values that
// handlers set in it. If a handler writes nothing, an outer handler may still respond.
func New(t *throttler.Throttler, classify Classifier, options *Options) (func(http.Handler) http.Handler, error) {
	if t == nil {
		panic("middleware: New: the throttler is nil")
	}
	m := &throttle{throttler: t, classify: classify}
	if options != nil {
		m.Options = *options
	}
	m.Deadline = cmp.Or(m.Deadline, DefaultDeadline)
	m.Observer = weirlog.Ensure(cmp.Or(m.Observer, t.Observer()))
	m.keyedByRoute = slices.ContainsFunc(classify.rules, func(r rule) bool { return r.route })
	if !classify.marks(costReported|inHandler) && !classify.dynamic() && !classify.limitsTokens() {
		m.unreported.Store(unreportedMax)
	}
	if m.RefundIf == nil || classify.marks(noRefund) {
		m.refunded.Store(refundedMax)
	}
	if err := m.setDialects(); err != nil {
		return nil, err
	}
	if err := m.validate(); err != nil {
		return nil, err
	}
	m.sharesPolicy = classify.sharesPolicy()
	for _, r := range classify.rules {
		m.addresses = append(m.addresses, r.addresses...)
	}
	m.throttler = t.WithServerTime(m.Deadline)
	for _, r := range classify.rules {
		if err := t.Declare(r.policies...); err != nil {
			return nil, err
		}
		for _, p := range r.policies {
			t.Warn(m.Observer, p.Name, p.Warnings()...)
		}
	}
	classify.declareKeys(t.Names)
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic("middleware: the handler is nil")
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}, nil
}

// throttle is the middleware with its defaults filled in.
type throttle struct {
	throttler *throttler.Throttler
	classify  Classifier
	Options
	dialects      []Dialect // the parts of Dialect; empty for NoHeaders
	otherNames    []string  // the dialects' headers that isRateHeader does not know
	exposed       string    // the names that ExposeHeaders exposes
	waiters       waiters
	addresses     []addressSource // that charges may use
	keyedByRoute  bool            // by a RoutePattern
	unknownWarned atomic.Bool
	routeWarned   atomic.Bool
	nameChecked   atomic.Bool
	proxyWarned   atomic.Bool
	headerWarned  atomic.Bool
	portWarned    atomic.Bool
	twiceWarned   atomic.Bool
	silenceWarned atomic.Bool
	afterWarned   atomic.Bool
	sharesPolicy  bool         // two rules charge under one policy
	refunded      atomic.Int32 // requests that RefundIf has refunded, up to refundedMax
	unreported    atomic.Int32 // requests without a cost, a reported cost, or a Take, up to unreportedMax
}

// unreportedMax is how many requests without a cost, a reported cost, or a Take are warned of, if
// none had one.
const unreportedMax = 10

func (t *throttle) validate() error {
	if err := t.classify.validate(); err != nil {
		return err
	}
	if n := t.classify.least(); n > quota.MaxCharges {
		return invalid.Errorf("middleware: the classifier makes at least %d charges of each request; a decision can be about at most %d", n, quota.MaxCharges)
	}
	switch {
	case t.Deadline < minDeadline && t.Deadline != 0:
		return invalid.Errorf("middleware: Options.Deadline is %v; it must be at least %v, or 0 for %v", t.Deadline, minDeadline, DefaultDeadline)
	case !(t.RetryAfterJitter >= 0 && t.RetryAfterJitter <= maxJitter): // not NaN either
		return invalid.Errorf("middleware: Options.RetryAfterJitter is %v; it must be from 0 to %v", t.RetryAfterJitter, maxJitter)
	case t.RefundIf != nil && !t.classify.dynamic() && t.classify.marksEvery(noRefund):
		return invalid.Errorf("middleware: Options.RefundIf is set, but every charge is marked NoRefund, so that it would never be asked")
	}
	for _, r := range t.classify.rules {
		if r.flags&costReported != 0 && !r.dynamic && len(r.policies) > 0 && !slices.ContainsFunc(r.policies, func(p *throttler.Policy) bool { return !p.HoldsOnly() }) {
			return invalid.Errorf("middleware: policy %q is marked CostReported, and limits requests in flight alone, which cost 1 unit each; leave CostReported out", r.policies[0].Name)
		}
	}
	return t.validateCostHeader()
}

func (t *throttle) validateCostHeader() error {
	switch {
	case !isToken(t.CostHeader):
		return invalid.Errorf("middleware: Options.CostHeader is %q; it must be a header's name, such as X-Cost", t.CostHeader)
	case t.isRateHeader(t.CostHeader) || strings.EqualFold(t.CostHeader, "Retry-After") || strings.EqualFold(t.CostHeader, "Trailer"):
		return invalid.Errorf("middleware: Options.CostHeader is %q, which has another meaning; it must be a name of its own, such as X-Cost", t.CostHeader)
	case t.CostHeader != "" && !t.classify.marks(costReported):
		return invalid.Errorf("middleware: Options.CostHeader is %q, but no charge is marked CostReported, so that its value would change nothing", t.CostHeader)
	}
	return nil
}

// serve handles one request.
func (t *throttle) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	e := newLink(t, w, r)
	t.classifyRequest(e)
	switch {
	case len(e.charges) == 0:
		t.serveUncharged(w, e, next)
	case e.contextOver():
		t.serveEnded(w, e, next)
	case t.admit(w, &e.take):
		e.serve(w, next)
	}
}

// admit charges k's request, waits for its start, and reports whether it may be served. If
// not, admit has answered it.
func (t *throttle) admit(w http.ResponseWriter, k *take) (goesOn bool) {
	t.waiters.shutdown(serverOf(k.received))
	if err := t.decide(k); err != nil {
		return t.servesUndecided(w, k, err)
	}
	if t.DryRun != nil {
		t.DryRun(k.received, k.d)
	} else if !k.d.Allowed {
		t.refuse(w, k)
		return false
	}
	if k.d.Allowed {
		k.state = charged
		if k.holds() {
			k.hold()
		}
	}
	if reason := t.waitOrGiveBack(k); reason != "" {
		t.answerUnavailable(w, k, reason, nil)
		return false
	}
	return true
}

// classifyRequest sets the charges of e, and their flags.
func (t *throttle) classifyRequest(e *link) {
	e.charges = e.room[:0]
	for i := range t.classify.rules {
		rule, before := &t.classify.rules[i], len(e.charges)
		e.charges = rule.appendCharges(e.charges, e.received)
		if t.sharesPolicy {
			t.warnTwice(e.charges[before:], e.charges[:before], "two parts of All charge")
		}
		for j := before; j < min(len(e.charges), len(e.flags)); j++ { // more charges are an error of Take
			e.flags[j] = rule.flags
		}
	}
	for i := range t.addresses {
		t.warnProxy(e.received, &t.addresses[i])
	}
	for i := range e.charges {
		// Most keys are too short to contain the client's address with its port.
		if c := &e.charges[i]; len(c.Key) >= len(e.received.RemoteAddr) || c.Key == unknown {
			t.warnKey(e.received, c)
		}
	}
}

// decide sets k.d to a decision about k's charges.
func (t *throttle) decide(k *take) (err error) {
	if err := checkKeys(k.charges); err != nil {
		return err
	}
	for outer := k.link.outer; outer != nil; outer = outer.outer {
		t.warnName(k, outer)
		if k == &k.link.take && outer.m.throttler.Names == t.throttler.Names {
			t.warnTwice(k.charges, outer.charges, "two middlewares charge")
		}
	}
	t.throttler.WrongOverrides(t.Observer)
	k.d, err = t.throttler.Take((*callContext)(k), k.charges...)
	return err
}

// warnProxy reports likely mistakes about proxies, each once.
func (t *throttle) warnProxy(r *http.Request, from *addressSource) {
	if !t.proxyWarned.Load() && from.missesProxy(r) && !t.proxyWarned.Swap(true) {
		t.Observer.Warned(observe.Warned{
			Text: "requests come through a proxy that is not declared, so that its clients share one count",
			Hint: "IPOptions.TrustedProxies names the proxies whose X-Forwarded-For is believed",
		})
	}
	if !t.headerWarned.Load() && from.missesForwarded(r) && !t.headerWarned.Swap(true) {
		t.Observer.Warned(observe.Warned{
			Text: "requests come from a trusted proxy without X-Forwarded-For, so that its clients share one count",
			Hint: "the proxy must set X-Forwarded-For; or chi's middleware.ClientIPFromHeader(\"X-Real-IP\"), in front, reads that header",
		})
	}
}

// warnKey reports likely mistakes about the key of c, each once.
func (t *throttle) warnKey(r *http.Request, c *throttler.Charge) {
	if !t.portWarned.Load() && hasPort(c.Key, r) && !t.portWarned.Swap(true) {
		t.Observer.Warned(observe.Warned{
			Text: "keys contain the client's port, so that each connection has a count of its own",
			Hint: "ClientIP keys by the address alone; RemoteAddr has the port, too",
		})
	}
	if c.Key == unknown && !t.unknownWarned.Swap(true) {
		t.warnUnknown(r, c.Policy)
	}
}

// warnUnknown reports that requests have no key for charges under p.
func (t *throttle) warnUnknown(r *http.Request, p *throttler.Policy) {
	w := observe.Warned{Text: "requests without a key share one count", Hint: "FirstOf(…, ClientIP(nil)) falls back to the client's address"}
	switch {
	case len(t.addresses) > 0 && !hasAddress(r):
		w.Text = "requests without an address, as through a Unix socket, share one count"
		w.Hint = `chi's middleware.ClientIPFromHeader("X-Real-IP") or ClientIPFromXFFTrustedProxies(1), in front, reads the address that the proxy sends`
	case t.keyedByRoute:
		w.Hint = routeHint
	}
	if p != nil {
		w.Policy = p.Name
	}
	t.Observer.Warned(w)
}

// hasPort reports whether key contains the address of r's connection, with its port.
func hasPort(key string, r *http.Request) bool {
	if r.RemoteAddr == "" || !strings.Contains(key, r.RemoteAddr) {
		return false
	}
	_, err := netip.ParseAddrPort(r.RemoteAddr) // a middleware in front may have removed the port
	return err == nil
}

// routeHint says how a RoutePattern is known.
const routeHint = "the limit must be around the handlers of an http.ServeMux, not around the mux; or Join(ClientIP(nil), RoutePattern()) limits requests without a route, too"

// warnRoute warns, once, that the handler behind e routes the request, which RoutePattern, in
// front of it, can't know.
func (t *throttle) warnRoute(e *link) {
	if t.routeWarned.Load() || e.received.Pattern != "" || e.passed.Pattern == "" || chiRoute(e.received) != nil || t.routeWarned.Swap(true) {
		return
	}
	t.Observer.Warned(observe.Warned{
		Text: "RoutePattern is in front of the http.ServeMux that finds the pattern, so that all routes share one count",
		Hint: "the limit must be around the handlers of the mux, not around the mux",
	})
}

// warnName warns, once, if k charges a policy of the same name as outer's, with other limits,
// to one throttler. New finds the policies that it knows.
func (t *throttle) warnName(k *take, outer *link) {
	if outer.m.throttler.Names != t.throttler.Names {
		return
	}
	for i := range k.charges {
		for j := range outer.charges {
			a, b := k.charges[i].Policy, outer.charges[j].Policy
			if a == b || a == nil || b == nil || a.Name != b.Name || slices.Equal(a.Limits, b.Limits) || t.nameChecked.Swap(true) {
				continue
			}
			if err := t.throttler.Declare(b, a); err != nil {
				t.Observer.Warned(observe.Warned{Policy: a.Name, Text: "a request is charged twice to one count: " + err.Error(), Hint: "each policy needs a name of its own"})
			}
		}
	}
}

// warnTwice warns, once, if a charge is to one count with an earlier one of the request. makers
// begins the text, such as "two middlewares charge".
func (t *throttle) warnTwice(charges, earlier []throttler.Charge, makers string) {
	if t.twiceWarned.Load() {
		return
	}
	for i := range charges {
		for j := range earlier {
			a, b := &charges[i], &earlier[j]
			if a.Policy == nil || b.Policy == nil || !sameCount(a, b) || t.twiceWarned.Swap(true) {
				continue
			}
			t.Observer.Warned(observe.Warned{
				Policy: a.Policy.Name, Text: makers + " a request to one count",
				Hint: "one of them should be left out, or have a policy of another name",
			})
		}
	}
}

// warnUnreported warns, once, if the first requests behind e's middleware cost 0, or one token, or if
// their handlers have not reported the cost of charges marked CostReported, or called Take for InHandler.
func (e *link) warnUnreported() {
	m := e.m
	e.c.mu.Lock()
	i := slices.IndexFunc(e.flags[:], func(f flags) bool { return f&costReported != 0 })
	isEstimate := i >= 0 && e.state == charged && e.reports == nil
	isOne := slices.IndexFunc(e.charges, func(c throttler.Charge) bool {
		return c.Cost == 1 && c.Policy != nil && c.Policy.Unit != quota.Requests
	})
	if e.state != charged || e.reports != nil {
		isOne = -1
	}
	e.c.mu.Unlock()
	w := observe.Warned{
		Text: "handlers behind InHandler do not call Take, so that requests are not limited",
		Hint: "handlers call Take; or Limit, in the place of InHandler, charges each request",
	}
	switch {
	case isEstimate:
		w = observe.Warned{
			Policy: e.charges[i].Policy.Name,
			Text:   "charges are marked CostReported, and handlers report no cost, so that each request costs its estimate",
			Hint:   "handlers call SetCost, or set the header that Options.CostHeader names; otherwise, CostReported should be left out",
		}
	case isOne >= 0:
		p := e.charges[isOne].Policy
		w = observe.Warned{
			Policy: p.Name, Text: fmt.Sprintf("the limits are in %v, and each request is charged 1 of them", p.Unit),
			Hint: "the classifier marks the charge CostReported, and handlers call SetCost; or the policy's unit should be left out",
		}
	case !m.classify.marksEvery(inHandler):
		if !m.classify.marks(costReported) && len(e.charges) > 0 {
			m.unreported.Store(unreportedMax) // a request costs something
		}
		return
	}
	if m.unreported.Add(1) == unreportedMax {
		m.Observer.Warned(w)
	}
}

// serveUncharged handles a request that is charged nothing.
func (t *throttle) serveUncharged(w http.ResponseWriter, e *link, next http.Handler) {
	if t.CostHeader != "" || t.classify.marks(inHandler) { // to remove the cost header, or for Take
		e.serve(w, next)
		return
	}
	e.outer.servesUncharged()
	next.ServeHTTP(w, e.received)
}

// serveEnded handles a request whose context ended before any charge was made.
func (t *throttle) serveEnded(w http.ResponseWriter, e *link, next http.Handler) {
	if t.DryRun != nil {
		e.serve(w, next)
		return
	}
	if e.outer != nil && e.outer.contextOver() {
		e.outer.servesUncharged() // a handler in between ran: that the client left does not make it free
	}
	t.answerUnavailable(w, &e.take, requestEnded, nil)
}

// servesUndecided reports whether a request without a decision is served, and answers it if
// not. A dry run serves every request. Otherwise, a request is served if the backend did not
// answer and neither FailClosed nor err forbids it, but not if this process is overloaded.
func (t *throttle) servesUndecided(w http.ResponseWriter, k *take, err error) bool {
	switch {
	case t.DryRun != nil:
		t.fail(err, k.charges, observe.ResultServedInDryRun)
	case errors.Is(err, throttler.ErrInvalid):
		t.fail(err, k.charges, observe.ResultAnswered500)
		t.answerInvalid(w, k, err)
		return false
	case t.FailClosed || errors.Is(err, driver.ErrFailClosed) || errors.Is(err, driver.ErrOverloaded):
		t.fail(err, k.charges, observe.ResultAnswered503)
		t.answerUnavailable(w, k, "The rate limit of this request cannot be decided at the moment.", err)
		return false
	default:
		t.fail(err, k.charges, observe.ResultServed)
	}
	return true
}

// settle settles d, k's decision, to costs, or refunds it if costs is nil. It returns the
// decision with the limits after that, or d after an error.
func (t *throttle) settle(k *take, d throttler.Decision, costs []int64) (after throttler.Decision) {
	result, err := observe.ResultNotSettled, error(nil)
	if costs == nil {
		result = observe.ResultNotRefunded
		after, err = t.throttler.Refund((*callContext)(k), d)
	} else {
		after, err = t.throttler.Settle((*callContext)(k), d, costs...)
	}
	if err != nil {
		t.fail(err, d.Charges(), result)
		return d
	}
	return after
}

// fail reports err, about charges, to Observer.
func (t *throttle) fail(err error, charges []throttler.Charge, result observe.Result) {
	e := cause.Event(err, charges, result)
	if errors.Is(err, errTooLate) {
		e.Cause, e.Detail = "write timeout", err.Error()
	}
	t.Observer.Failed(e)
}
