package middleware

import (
	"net/http"
	"slices"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

// unknownStatus is the status of a response that the handlers have left to an outer handler.
const unknownStatus = 0

// settleFor settles what can be settled when a response of this status begins. If it is
// unknownStatus, only reported costs are settled.
func (c *chain) settleFor(status int, h http.Header) {
	for e := c.first.last(); e != nil; e = e.outer {
		switch isRefused, isCharged := e.outcome(); {
		case !isCharged:
		case isRefused && status >= 400:
			// A dry run keeps its charge: it tries a policy in place of the one that refused.
			if e.m.DryRun == nil {
				e.settle(unserved)
			}
		case status != unknownStatus && e.isFree(status, h):
			e.settle(free)
		default:
			e.settle(reported)
		}
	}
}

// outcome reports whether e's request was refused, and whether it is charged.
func (e *link) outcome() (isRefused, isCharged bool) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	for k := e.takes; k != nil && !isCharged; k = k.next {
		isCharged = k.state == charged
	}
	return e.isRefused(), isCharged || e.state == charged
}

// isRefused reports whether no handler ran behind e because of refusals. The caller holds the
// chain's lock.
func (e *link) isRefused() bool {
	for ; e.ran == 0; e = e.inner {
		if e.state == refused || e.inner == nil {
			return e.state == refused
		}
	}
	return false
}

// isAlone reports whether e is settled without the response: that has begun, the outermost
// handler has ended, or another call took e's place in the chain. The caller holds the chain's
// lock.
func (e *link) isAlone() bool {
	return e.c.sent.Load() != nothing || e.c.first.handler != running || e.isReplaced()
}

// isReplaced reports whether the chain does not go through e any more.
func (e *link) isReplaced() bool {
	for ; e != nil; e = e.outer {
		if e.replaced {
			return true
		}
	}
	return false
}

// account settles e, and the links behind it, as far as their handlers have ended, without the
// response. failed reports whether a panic of e's handler counts as status 500.
func (e *link) account(failed bool) {
	for x := e.last(); x != e.outer; x = x.outer {
		e.c.mu.Lock()
		isRunning := x.handler == running
		isRefused := e.isReplaced() && x.isRefused() && x.m.DryRun == nil
		e.c.mu.Unlock()
		switch {
		case isRunning:
			continue
		case isRefused:
			x.settle(unserved)
		case failed:
			x.settle(reported)
			if _, isCharged := x.outcome(); isCharged && x.isFree(http.StatusInternalServerError, e.c.w.Header()) {
				x.settle(free)
			}
		}
		x.settle(charged)
	}
}

// mayBeFree reports whether the client waits for the response, and no read of the request's
// body failed. Otherwise, a status says little: the handler may have done its work, or have
// failed because of the client.
func (e *link) mayBeFree() bool {
	c := e.c
	c.mu.Lock()
	state := e.handler
	c.mu.Unlock()
	// Once it has ended, a handler between may cancel its context.
	if state == endedLate || state == running && e.contextOver() {
		return false
	}
	return (e.outer == nil || !c.first.contextOver()) && (c.body == nil || !c.body.failed.Load())
}

// isFree reports whether the response may be free and is: a 304, or one that RefundIf reports.
func (e *link) isFree(status int, h http.Header) bool {
	if status != http.StatusNotModified && e.m.RefundIf == nil || !e.mayBeFree() {
		return false
	}
	return status == http.StatusNotModified || e.m.RefundIf(e.passed, status, h)
}

// settle settles all takes of e.
func (e *link) settle(to takeState) {
	e.c.mu.Lock()
	k := e.takes
	e.c.mu.Unlock()
	for ; k != nil; k = k.next {
		k.settle(to)
	}
	e.take.settle(to)
}

// settle settles k once, if there is anything to settle. If k holds units in flight, that is
// when its handler has ended, and settle notes to until then: a stream is in flight as long as
// it lasts. So headers report the charge before the refund for a 304 or a reported cost.
func (k *take) settle(to takeState) {
	e := k.link
	e.c.mu.Lock()
	if k.state < charged || k.state == settled {
		e.c.mu.Unlock()
		return
	}
	if k.state != charged {
		to = k.state // noted when the response began
	} else if to == charged && k.reports != nil {
		to = reported
	}
	switch {
	case to == reported && k.reports == nil: // nothing
	case k.letGo != nil && e.handler == running && to != unserved:
		k.state = to
	case to != charged || k.letGo != nil:
		k.close()
		before, costs := k.d, k.costs(to)
		e.c.mu.Unlock()
		after := e.m.settle(k, before, costs)
		e.c.mu.Lock()
		e.c.decisions++
		k.d, k.decided = after, e.c.decisions
	}
	e.c.mu.Unlock()
}

// hold begins to renew the units that k has in flight, if any, until k is settled.
func (k *take) hold() {
	if !slices.ContainsFunc(k.d.Charges(), func(c throttler.Charge) bool { return c.Cost > 0 && c.Policy.Holds() }) {
		return
	}
	d, t := k.d, k.link.m // not earlier: a closure moves its variables to the heap
	k.letGo = t.throttler.Hold(k.received.Context(), d, func(err error) {
		t.fail(err, d.Charges(), observe.ResultNotSettled)
	})
}

// close marks k as settled, and ends the renewals of its units in flight.
func (k *take) close() {
	k.state = settled
	if k.letGo != nil {
		k.letGo()
	}
}
