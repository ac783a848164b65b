package throttler

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weir-go/weir/clock"
)

var errLapsed = errors.New("the lease has lapsed, and the limit has no room to take its units again")

// Hold calls Renew in the background, three times in a lease, until stop is called. lost, if
// not nil, receives its errors, and one once d holds nothing.
func (t *Throttler) Hold(ctx context.Context, d Decision, lost func(error)) (stop func()) {
	interval := leaseOf(&d) / 3 // so that a renewal that fails may be tried again
	if !d.Allowed || interval == 0 {
		return func() {}
	}
	if lost == nil {
		lost = func(error) {}
	}
	h := &hold{t: t.WithServerTime(interval), ctx: context.WithoutCancel(ctx), d: d, interval: interval, lost: lost}
	h.arm(d.At()) // not from now: the lease began then
	return h.end
}

// hold renews d until it ends.
type hold struct {
	t        *Throttler
	ctx      context.Context
	d        Decision
	interval time.Duration
	lost     func(error)

	mu      sync.Mutex
	stopped bool
	stop    func() bool // the timer
	cancel  func()      // ends the renewal on its way; nil if there is none
}

// arm sets the timer for a decision last renewed at from, unless the hold has ended.
func (h *hold) arm(from time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancel = nil
	if !h.stopped {
		ago := max(h.t.clock.Now().Sub(from), 0) // a clock may step back
		h.stop = clock.AfterFunc(h.t.clock, h.interval-ago, h.renew)
	}
}

func (h *hold) renew() {
	ctx, cancel := context.WithTimeout(h.ctx, h.interval)
	defer cancel()
	if !h.begin(cancel) {
		return
	}
	now := h.t.clock.Now()
	switch after, err := h.t.Renew(ctx, h.d); {
	case err != nil && ctx.Err() == context.Canceled: // by end
	case err != nil:
		h.lost(err)
	case !after.Allowed:
		h.lost(errLapsed)
		return
	}
	h.arm(now)
}

// begin notes that a renewal begins, which cancel ends, unless the hold has ended.
func (h *hold) begin(cancel func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancel = cancel
	return !h.stopped
}

// end ends the hold. A renewal on its way, which a settlement waits for, has settleTime yet: if
// it is canceled and its outcome is unknown, a unit may stay until its lease lapses.
func (h *hold) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	h.stop()
	if h.cancel != nil {
		time.AfterFunc(settleTime, h.cancel)
	}
}

// leaseOf returns the shortest lease of d's units of InFlight limits, or 0 if d has none.
func leaseOf(d *Decision) (lease time.Duration) {
	for _, c := range d.Charges() {
		for _, l := range c.Policy.Limits {
			if c.Cost > 0 && l.Algorithm.Holds() && (lease == 0 || l.Window < lease) {
				lease = l.Window
			}
		}
	}
	return lease
}
