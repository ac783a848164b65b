package throttler

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A Decision is a [decision.Decision] that can be refunded or settled.
type Decision struct {
	decision.Decision

	// receipt is nil if the decision was not made or opened in this process.
	receipt *receiptState
}

// receiptState lets a charge be refunded or settled once. Copies of a Decision share it. Each
// allowed decision allocates one, so what few need is in extra.
type receiptState struct {
	mu       sync.Mutex // held during Renew and Settle: a unit renewed after its settlement could only lapse
	done     bool
	opened   bool          // by Open
	released bool          // it holds no units in flight, or none that can be found
	backend  uint8         // without parts, the index in Throttler.backends of the backend that charged
	links    *links        // if parents were charged
	extra    *receiptExtra // read it by extras, and set it by withExtras
}

// receiptExtra is the part of a receiptState that few have. The mu of the receiptState guards it.
type receiptExtra struct {
	id    string     // set if there is a text of the decision, and another process may settle it
	parts []partTake // set if parts are charged, renewed or settled one by one
}

// newReceipt returns the receipt of a charge by that backend or, if there are parts, by theirs.
func newReceipt(backend int, parts []partTake) *receiptState {
	r := &receiptState{backend: uint8(backend)}
	if parts != nil {
		r.extra = &receiptExtra{parts: parts}
	}
	return r
}

// extras returns what few receipts have.
func (r *receiptState) extras() (m receiptExtra) {
	if r.extra != nil {
		m = *r.extra
	}
	return m
}

// withExtras returns what few receipts have, to be changed.
func (r *receiptState) withExtras() *receiptExtra {
	if r.extra == nil {
		r.extra = new(receiptExtra)
	}
	return r.extra
}

// tookNothing is the receipt of every peek: there is nothing to refund.
var tookNothing = &receiptState{done: true}

// byPartition returns the part of d about each partition. r.mu is held.
func (r *receiptState) byPartition(d *Decision) []partTake {
	if r.extras().parts == nil {
		m := r.withExtras()
		for _, p := range d.Driver().Request.Parts() {
			own := driver.NewDecision(p.Request)
			own.Allowed, own.Degraded = true, d.Degraded
			p.CopyFrom(d.Driver(), &own)
			m.parts = append(m.parts, partTake{part: part{p, int(r.backend)}, d: own})
		}
	}
	return r.extra.parts
}

// settleOnce makes s, a settlement by r that another process may make too, unless it was made.
// Each of its parts is settled once. The units in flight end in any case.
func (t *Throttler) settleOnce(ctx context.Context, s driver.Settlement, r *receiptState) (driver.Decision, error) {
	ends, parts, id := int64(0), r.extra.parts, r.extra.id
	for i := range parts {
		ends = max(ends, endOf(&parts[i].d))
	}
	letGo := func(take *partTake) {
		if !r.released {
			t.letGo(ctx, s.Now, take.d)
		}
	}
	if s.Now >= ends { // from now on, a record of the settlement may be gone
		for i := range parts {
			letGo(&parts[i])
		}
		r.released = true
		return driver.Decision{}, invalid.Errorf("throttler: a receipt has expired: its charges stopped counting at %v", time.UnixMilli(ends).UTC())
	}
	// Longer than any process' clock may be behind.
	keep := time.Duration(ends-s.Now)*time.Millisecond + 2*algorithm.Margin
	before := 0
	merged, err := settleParts(s, parts, func(take *partTake, s driver.Settlement) (driver.Decision, error) {
		if r.released {
			s.Charged = withoutUnits(s.Charged)
		}
		d, err := t.backends[0].Settle(ctx, s.MakeOnce(id, keep))
		if err != nil {
			return d, err
		}
		if !d.Allowed {
			before++
			letGo(take)
		}
		d.Allowed = true
		return d.WithoutOnce(), nil
	})
	if err == nil && before == len(parts) { // after an error it may be made again, except for settled parts
		r.released = true
		return driver.Decision{}, ErrSettled
	}
	return merged, err
}

// withoutUnits returns d without units in flight, which are released: their marks may be of other
// decisions' units by now.
func withoutUnits(d driver.Decision) driver.Decision {
	empty := driver.NewDecision(d.Request)
	return d.Renewed(&empty)
}

// letGo ends the units in flight of d, a part, because its whole decision will not: another
// process has settled the rest, or another part has no counts. If letGo fails, they lapse.
func (t *Throttler) letGo(ctx context.Context, now int64, d driver.Decision) {
	if holds(d.Charges()) {
		_, _ = t.backends[0].Settle(ctx, driver.Settlement{Now: now, Charged: d, Costs: costsOf(d.Charges()), ServerTime: t.serverTime})
	}
}

// endOf returns the instant, in ms, from which d's charges no longer count, unless a count is
// in debt. It is the same in every process: units in flight, which may be renewed, don't matter. A
// bucket may drain a debt for millennia, which no store remembers.
func endOf(d *driver.Decision) int64 {
	ends := d.Request.Now
	for i, c := range d.Charges() {
		for k, result := range d.ResultsOf(i) {
			if l := c.Policy.Limits[k]; !l.Algorithm.Holds() {
				ends = max(ends, result.Mark.At, d.Request.Now+algorithm.Lifetime(l).Milliseconds())
			}
		}
	}
	return min(ends, d.Request.Now+2*quota.MaxWindow.Milliseconds())
}
