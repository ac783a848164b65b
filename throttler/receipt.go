package throttler

import (
	"context"
	"sync"
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
	links *links // if parents were charged

	mu    sync.Mutex // held by Renew and Settle, too: what is renewed after it is settled would lapse only
	done  bool
	id    string  // of a decision of which there is a text, by which it may be settled elsewhere; else ""
	parts []taken // if several partitions were charged one by one, or what was charged is renewed
}

// tookNothing is the receipt of every peek: there is nothing to give back.
var tookNothing = &receipt{done: true}

// byPartition returns what d took of each partition. r.mu is held.
func (r *receipt) byPartition(d *Decision) []taken {
	if r.parts == nil {
		for _, p := range d.Driver().Request.Parts() {
			own := driver.NewDecision(p.Request)
			own.Allowed, own.Degraded = true, d.Degraded
			p.CopyFrom(d.Driver(), &own)
			r.parts = append(r.parts, taken{p, own})
		}
	}
	return r.parts
}

// settleOnce makes s, of a decision whose receipt may be opened elsewhere, unless that was
// done. The parts of several partitions are each made once.
func (t *Throttler) settleOnce(ctx context.Context, s driver.Settlement, parts []taken, id string) (driver.Decision, error) {
	ends := int64(0)
	for i := range parts {
		ends = max(ends, endOf(&parts[i].d))
	}
	if s.Now >= ends { // from now on, nothing may remember that it was settled
		return driver.Decision{}, invalid.Errorf("throttler: a receipt has expired: what it was charged to has ended at %v", time.UnixMilli(ends).UTC())
	}
	// Longer than any process' clock may be behind.
	keep := time.Duration(ends-s.Now)*time.Millisecond + 2*algorithm.Margin
	before := 0
	whole, err := settleParts(s, parts, func(one *taken, s driver.Settlement) (driver.Decision, error) {
		d, err := t.backend.Settle(ctx, s.MakeOnce(id, keep))
		if err != nil {
			return d, err
		}
		if !d.Allowed {
			before++
			t.letGo(ctx, s.Now, one.d)
		}
		d.Allowed = true
		return d.WithoutOnce(), nil
	})
	if err == nil && before == len(parts) { // after an error it may be made again: what was settled is not
		return driver.Decision{}, ErrSettled
	}
	return whole, err
}

// letGo ends what a part has in flight where its decision will not: another process has
// settled the rest, or the counts of another part are not known. If that fails, it lapses.
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
