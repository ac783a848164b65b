package middleware

import (
	"slices"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

// holding is what an entry has in flight. It is renewed until the entry is settled. That is
// when its handler has ended and not, as for other entries, when the response begins: a
// stream is in flight as long as it lasts. So headers say what was charged, without what a
// 304, or a cost that was reported, gives back.
type holding struct {
	stop func()
	due  settlement // that the beginning of the response asked for, or asCharged; guarded by the ledger's mu
}

// hold begins to renew what e has in flight, if it has anything.
func (e *entry) hold() {
	if !slices.ContainsFunc(e.d.Charges(), func(c throttler.Charge) bool { return c.Policy.Holds() }) {
		return
	}
	d, t, r := e.d, e.m, e.received
	e.holding = &holding{stop: t.throttler.Hold(r.Context(), d, func(err error) {
		t.fail(r, err, d.Charges(), observe.ResultNotSettled)
	})}
}

// defers reports whether e is to be settled later, when its handler has ended, and notes it.
// The caller holds the ledger's lock.
func (h *holding) defers(e *entry, why settlement) bool {
	if h == nil || why == beforeHandler || e.progress.Load() != running {
		return false
	}
	if h.due == asCharged {
		h.due = why
	}
	return true
}

// end ends the renewals.
func (h *holding) end() {
	if h != nil {
		h.stop()
	}
}
