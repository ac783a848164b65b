package middleware

import (
	"net/http"
	"slices"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

// unknownStatus is the status of a response that the handlers have left to an outer handler.
const unknownStatus = 0

// settleFor settles the entries that can be settled when a response of this status begins. If it
// is unknownStatus, only reported costs are settled.
func (l *ledger) settleFor(status int, h http.Header) {
	for e := l.last.Load(); e != nil; e = e.earlier {
		switch refused, charged, reported := l.outcome(e); {
		case refused && status >= 400:
			// A dry run keeps its charge: it tries a policy in place of the one that refused.
			if e.m.DryRun == nil {
				l.settle(e, beforeHandler)
			}
		case charged && status != unknownStatus && e.isFree(status, h):
			l.settle(e, afterHandler)
		case reported:
			l.settle(e, asReported)
		}
	}
}

// mayBeFree reports whether the client waits for the response, and no read of the request's
// body failed. Otherwise, a status says little: the handler may have done its work, or have
// failed because of the client.
func (e *entry) mayBeFree() bool {
	switch e.progress.Load() {
	case overLate:
		return false
	case running: // once it has ended, a handler between may cancel its context
		if e.contextOver() {
			return false
		}
	}
	l := e.l
	return (e == &l.first || !l.first.contextOver()) && (l.body == nil || !l.body.failed.Load())
}

// isFree reports whether the response may be free and is: a 304, or one that RefundIf reports.
func (e *entry) isFree(status int, h http.Header) bool {
	if !e.mayBeFree() {
		return false
	}
	return status == http.StatusNotModified || e.m.RefundIf != nil && e.m.RefundIf(e.passed, status, h)
}

// outcome reports whether no handler ran behind e because of refusals, whether
// e is charged, and whether its handler has reported a cost. It must be called for
// the entries behind e first.
func (l *ledger) outcome(e *entry) (refused, isCharged, reported bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	refused = e.answered || e.innerRefused && !e.innerRan
	if e.outer != nil {
		e.outer.innerRefused = e.outer.innerRefused || refused
		e.outer.innerRan = e.outer.innerRan || !refused || e.inHandler
	}
	return refused, e.state == charged, e.reports != nil
}

// handlerEnded notes that e's handler has returned, or panicked. It returns the entries to
// settle now, the innermost first. If e is the outermost or its handler panicked, these are e
// and the entries behind it with ended handlers. Otherwise they are e and its handler's calls of
// Take, if the response has begun; if not, RefundIf is called first, when it begins. An entry without a report is
// included only if failed is true, or if it holds units in flight and the outermost handler
// has ended.
func (l *ledger) handlerEnded(e *entry, returned, failed bool) (due []*entry, enforced bool) {
	e.noteEnd()
	within := e.outer == nil || !returned
	if !within && l.sent.Load() == nothing && l.first.progress.Load() == running {
		return nil, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for x := l.last.Load(); x != e.earlier; x = x.earlier {
		own := x == e || x.inHandler && x.outer == e
		if (own || within && x.isWithin(e)) && x.isDue(failed) {
			due = append(due, x)
		}
	}
	return due, l.enforced
}

// noteEnd marks e, and the charges that its handler made with Take, as ended.
func (e *entry) noteEnd() {
	progress := uint32(over)
	if e.contextOver() {
		progress = overLate
	}
	e.progress.Store(progress)
	for x := e.l.last.Load(); x != e.earlier; x = x.earlier {
		if x.inHandler && x.outer == e {
			x.progress.Store(progress)
		}
	}
}

// isDue reports whether e's handler has ended, and its charge must be settled now. The caller
// holds the ledger's lock.
func (e *entry) isDue(failed bool) bool {
	holds := e.letGo != nil && e.l.first.progress.Load() != running
	return e.state == charged && (failed || e.reports != nil || holds) && e.progress.Load() != running
}

// asked returns the settlement of e that the handler, or the beginning of the response,
// requested, or asCharged.
func (l *ledger) asked(e *entry) settlement {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.due == asCharged && e.reports != nil {
		return asReported
	}
	return e.due
}

// settle settles e now, unless e is uncharged, already settled, or deferred.
func (l *ledger) settle(e *entry, why settlement) {
	l.mu.Lock()
	if e.state != charged || e.defers(why) {
		l.mu.Unlock()
		return
	}
	e.close()
	before, costs := e.d, e.costs(why)
	l.mu.Unlock()
	after := e.m.settle(e, before, costs)
	l.mu.Lock()
	e.d, e.decided = after, l.decisions.Add(1)
	l.mu.Unlock()
}

// hold begins to renew the units that e has in flight, if any, until e is settled. That is
// when its handler has ended and not, as for other entries, when the response begins: a stream
// is in flight as long as it lasts. So headers report the charge before the refund for a 304
// or a reported cost.
func (e *entry) hold() {
	if !slices.ContainsFunc(e.d.Charges(), func(c throttler.Charge) bool { return c.Cost > 0 && c.Policy.Holds() }) {
		return
	}
	d, t, r := e.d, e.m, e.received // not earlier: a closure moves its variables to the heap
	e.letGo = t.throttler.Hold(r.Context(), d, func(err error) {
		t.fail(r, err, d.Charges(), observe.ResultNotSettled)
	})
}

// defers reports whether e must be settled later, when its handler has ended, and if so notes
// why. The caller holds the ledger's lock.
func (e *entry) defers(why settlement) bool {
	if e.letGo == nil || why == beforeHandler || e.progress.Load() != running {
		return false
	}
	if e.due == asCharged {
		e.due = why
	}
	return true
}

// close marks e as settled, and ends the renewals of its units in flight.
func (e *entry) close() {
	e.state = settled
	if e.letGo != nil {
		e.letGo()
	}
}
