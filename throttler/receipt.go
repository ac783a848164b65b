package throttler

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// A Decision is a [decision.Decision] that can be refunded or settled.
type Decision struct {
	decision.Decision

	// receipt is nil if the decision was not made or opened in this process.
	receipt *receipt
}

// receipt lets a charge be given back or settled once. Copies of a Decision
// share it.
type receipt struct {
	done  atomic.Bool
	parts []taken // if several partitions were charged one by one
	links *links  // if parents were charged

	// id names a decision of which there is a text, by which it may be settled elsewhere.
	id atomic.Pointer[string]

	mu      sync.Mutex       // held by Renew and Settle: what is renewed after it is settled would lapse only
	renewed *driver.Decision // the decision as it was charged, with other marks
}

// tookNothing is the receipt of every peek: there is nothing to give back.
var tookNothing = func() *receipt {
	r := new(receipt)
	r.done.Store(true)
	return r
}()

// settleOnce makes s, of a decision whose receipt may be opened elsewhere, unless that was
// done. The parts of several partitions are each made once.
func (t *Throttler) settleOnce(ctx context.Context, s driver.Settlement, r *receipt, id string) (driver.Decision, error) {
	parts := r.parts
	if parts == nil {
		for _, p := range s.Charged.Request.Parts() {
			d := driver.NewDecision(p.Request)
			d.Allowed = true
			p.CopyFrom(&s.Charged, &d)
			parts = append(parts, taken{p, d})
		}
	}
	ends := endOf(&s.Charged)
	if s.Now >= ends { // from now on, nothing may remember that it was settled
		return driver.Decision{}, invalid.Errorf("throttler: a receipt has expired: what it was charged to has ended at %v", time.UnixMilli(ends).UTC())
	}
	// Longer than any process' clock may be behind.
	keep := time.Duration(ends-s.Now)*time.Millisecond + 2*algorithm.Margin
	request := s.Charged.Request
	request.Now = s.Now
	whole, before, failed := unread(request), 0, error(nil)
	whole.Allowed = true
	for i := range parts {
		one := &parts[i]
		part := driver.Settlement{Now: s.Now, Charged: one.d, Costs: one.part.Costs(s.Costs)}
		d, err := t.backend.Settle(ctx, part.MakeOnce(id, keep))
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if !d.Allowed {
			before++
			t.letGo(ctx, s.Now, one.d)
		}
		d = d.WithoutOnce()
		one.part.CopyTo(&whole, &d)
	}
	switch {
	case failed != nil: // it may be made again: what was settled is not
		return driver.Decision{}, failed
	case before == len(parts):
		return driver.Decision{}, ErrSettled
	}
	return whole, nil
}

// letGo ends what a part has in flight after another process has settled the rest. If that
// fails, it lapses.
func (t *Throttler) letGo(ctx context.Context, now int64, d driver.Decision) {
	if holds(d.Charges()) {
		_, _ = t.backend.Settle(ctx, driver.Settlement{Now: now, Charged: d, Costs: costsOf(d.Charges())})
	}
}

// endOf returns the instant, in ms, from which nothing counts that d charged, unless it is
// in debt.
func endOf(d *driver.Decision) int64 {
	ends := d.Request.Now
	for i, c := range d.Charges() {
		for k, result := range d.ResultsOf(i) {
			l := c.Policy.Limits[k]
			from := d.Request.Now
			if l.Algorithm.Holds() { // it may have been renewed
				from = max(from, result.Mark.At)
			}
			ends = max(ends, result.Mark.At, from+algorithm.Lifetime(l).Milliseconds())
		}
	}
	return ends
}
