package middleware

import (
	"fmt"
	"net/http"

	"github.com/weir-go/weir/observe"
)

// unknownStatus is the status of a response that the handlers have left to an outer handler.
const unknownStatus = 0

// settleFor settles what can be settled when a response of this status begins. If it is
// unknownStatus, only reported costs are settled.
func (c *chain) settleFor(status int, h http.Header) {
	if status < 400 && status != http.StatusNotModified && !c.changes.Load() {
		return
	}
	for e := c.readCostHeaders(); e != nil; e = e.outer {
		switch o := e.outcome(); {
		case !o.charged:
		case o.refused && status >= 400:
			e.settleUnserved()
		case status != unknownStatus && e.isFree(status, h):
			e.settle(free)
		case o.pending:
			e.settle(reported)
		}
	}
}

// outcome is what settlements depend on.
type outcome struct {
	handler  handlerState
	refused  bool // no handler ran
	alone    bool // it is settled without the response
	replaced bool // the chain does not go through it any more
	charged  bool // some take is not settled yet
	pending  bool // some take must be settled, even if the response is not free
}

func (e *link) outcome() (o outcome) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	o.handler, o.refused, o.alone, o.replaced = e.handler, e.isRefused(), e.isSettledAlone(), e.isReplaced()
	o.charged, o.pending = e.isCharged(), e.isDue()
	for k := e.takes; k != nil; k = k.next {
		o.charged, o.pending = o.charged || k.isCharged(), o.pending || k.isDue()
	}
	return o
}

// isCharged reports whether k is charged and not settled. The caller holds the chain's lock.
func (k *take) isCharged() bool { return k.state >= charged && k.state != settled }

// isDue reports whether k is charged, and must be settled even if the response is not free.
func (k *take) isDue() bool { return k.isCharged() && (k.reports != nil || k.letGo != nil) }

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

// isSettledAlone reports whether e is settled without the response: that has begun, the outermost
// handler has ended, or another call took e's place in the chain. The caller holds the chain's
// lock.
func (e *link) isSettledAlone() bool {
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

// settleAlone settles e, and the links behind it, as far as their handlers have ended, without the
// response. failed reports whether a panic of e's handler counts as status 500.
func (e *link) settleAlone(failed bool) {
	e.c.mu.Lock()
	x := e.innermost()
	e.c.mu.Unlock()
	for ; x != e.outer; x = x.outer {
		o := x.outcome()
		switch {
		case o.handler == running || !o.charged:
			continue
		case o.refused && o.replaced && x.settleUnserved():
		case failed:
			x.settle(reported)
			if x.outcome().charged && x.isFree(http.StatusInternalServerError, e.c.w.Header()) {
				x.settle(free)
			}
		}
		if o.pending {
			x.settle(charged)
		}
	}
}

// settleUnserved settles e to nothing, since no handler ran, and reports whether it did. A dry
// run keeps its charge: it tries a policy in place of the one that refused.
func (e *link) settleUnserved() bool {
	if e.m.DryRun != nil {
		return false
	}
	e.settle(unserved)
	return true
}

// isFree reports whether the response is free: a 304, or one that RefundIf reports. It is not
// if the client does not wait for it, or if a read of the request's body failed: the handler
// may have done its work, or have failed because of the client.
func (e *link) isFree(status int, h http.Header) bool {
	c, is304 := e.c, status == http.StatusNotModified
	if !is304 && e.m.RefundIf == nil {
		return false
	}
	switch e.outcome().handler {
	case endedLate:
		return false
	case running:
		if e.contextOver() {
			return false
		}
	case finished: // a handler between may have canceled the context since
	}
	if c.first.contextOver() && e.outer != nil || c.body != nil && c.body.failed.Load() {
		return false
	}
	if is304 {
		return true
	}
	free := e.m.RefundIf(&e.passed, status, h)
	if free && e.m.refunded.Load() < refundedMax && e.m.refunded.Add(1) == refundedMax {
		e.m.Observer.Warned(observe.Warned{
			Text: fmt.Sprintf("Options.RefundIf has refunded each of %d requests, so that nothing is limited", refundedMax),
			Hint: "RefundIf reports true only for responses that are free, such as those of a status from 500 on",
		})
	}
	return free
}

// refundedMax is how many requests that RefundIf refunds are warned of, if none keeps its charge.
const refundedMax = 1000

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
	if !k.isCharged() {
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

// holds reports whether k has units in flight.
func (k *take) holds() bool {
	charges := k.d.Charges()
	for i := range charges {
		if charges[i].Cost > 0 && charges[i].Policy.Holds() {
			return true
		}
	}
	return false
}

// hold begins to renew the units that k has in flight, until k is settled.
func (k *take) hold() {
	d, t := k.d, k.link.m
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
