package throttler

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// A Decision is a [decision.Decision] that can be refunded or settled.
type Decision struct {
	decision.Decision

	// receipt is nil if the decision was not made or opened in this process.
	receipt *receipt
}

// receipt lets a charge be refunded or settled once. Copies of a Decision share it.
type receipt struct {
	links *links // if parents were charged

	mu    sync.Mutex // held during Renew and Settle: a unit renewed after its settlement could only lapse
	done  bool
	id    string  // set if there is a text of the decision, and another process may settle it
	parts []taken // set if parts are charged, renewed or settled one by one
	on    int     // otherwise, the index in Throttler.backends of the backend that charged
}

// tookNothing is the receipt of every peek: there is nothing to refund.
var tookNothing = &receipt{done: true}

// byPartition returns the part of d about each partition. r.mu is held.
func (r *receipt) byPartition(d *Decision) []taken {
	if r.parts == nil {
		for _, p := range d.Driver().Request.Parts() {
			own := driver.NewDecision(p.Request)
			own.Allowed, own.Degraded = true, d.Degraded
			p.CopyFrom(d.Driver(), &own)
			r.parts = append(r.parts, taken{part: part{p, r.on}, d: own})
		}
	}
	return r.parts
}

// settleOnce makes s, a settlement that another process may make too, unless it was made. Each
// of parts is settled once.
func (t *Throttler) settleOnce(ctx context.Context, s driver.Settlement, parts []taken, id string) (driver.Decision, error) {
	ends := int64(0)
	for i := range parts {
		ends = max(ends, endOf(&parts[i].d))
	}
	if s.Now >= ends { // from now on, a record of the settlement may be gone
		return driver.Decision{}, invalid.Errorf("throttler: a receipt has expired: its charges stopped counting at %v", time.UnixMilli(ends).UTC())
	}
	// Longer than any process' clock may be behind.
	keep := time.Duration(ends-s.Now)*time.Millisecond + 2*algorithm.Margin
	before := 0
	whole, err := settleParts(s, parts, func(one *taken, s driver.Settlement) (driver.Decision, error) {
		d, err := t.backends[0].Settle(ctx, s.MakeOnce(id, keep))
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
	if err == nil && before == len(parts) { // after an error it may be made again, except for settled parts
		return driver.Decision{}, ErrSettled
	}
	return whole, err
}

// letGo ends the units in flight of d, a part, because its whole decision will not: another
// process has settled the rest, or another part has no counts. If letGo fails, they lapse.
func (t *Throttler) letGo(ctx context.Context, now int64, d driver.Decision) {
	if holds(d.Charges()) {
		_, _ = t.backends[0].Settle(ctx, driver.Settlement{Now: now, Charged: d, Costs: costsOf(d.Charges())})
	}
}

// endOf returns the instant, in ms, from which d's charges no longer count, unless a count is
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
