package throttler

import (
	"context"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/policies"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// A Throttler is safe for concurrent use, and needs no closing.
type Throttler struct {
	backend  driver.Backend
	clock    clock.Clock
	observer observe.Observer // or nil
	policies *policies.Table  // or nil

	receiptKey []byte // of Receipt and Open
	lines      *lines
}

// Options configures a Throttler. Nil and the zero value select the defaults.
type Options struct {
	Clock      clock.Clock      // says what time it is; if nil, clock.System
	Observer   observe.Observer // receives each decision; may be nil
	Policies   *policies.Table  // has what is in force in place of the policies charged; may be nil
	ReceiptKey []byte           // encrypts receipts: a secret of all processes, of 16 bytes or more
}

// New returns a Throttler that counts in backend. It panics if backend is nil.
func New(backend driver.Backend, options *Options) *Throttler {
	if backend == nil {
		panic("throttler: New: backend is nil")
	}
	t := &Throttler{backend: backend, clock: clock.System{}}
	if options != nil {
		if options.Clock != nil {
			t.clock = options.Clock
		}
		t.observer, t.policies, t.receiptKey = options.Observer, options.Policies, options.ReceiptKey
	}
	t.lines = &lines{clock: t.clock, named: make(map[string]*line)}
	return t
}

// Clock returns the clock that decisions go by.
func (t *Throttler) Clock() clock.Clock { return t.clock }

// Take charges every limit of every charge, as its mode says, if all have room; else
// none. Charges to one count, of one key under one policy, add up.
func (t *Throttler) Take(ctx context.Context, charges ...Charge) (d Decision, err error) {
	// Inlined, so that the receipt of a decision that stays in the caller's frame does too.
	if err = t.decide(ctx, observe.OpTake, charges, &d); d.Allowed && d.receipt == nil {
		d.receipt = new(receipt)
	}
	return
}

// decide makes d, in which anything may be, the take or the peek of charges. It does not read
// d: what it gives to a backend would be moved to the heap, with d's receipt.
func (t *Throttler) decide(ctx context.Context, op observe.Op, charges []Charge, d *Decision) (err error) {
	if t.observer != nil {
		*d, err = t.observed(ctx, op, charges)
		return err
	}
	var r driver.Request
	made, links, err := t.resolve(ctx, &r, charges)
	if err != nil {
		*d = Decision{}
		return err
	}
	if made != nil {
		*d = Decision{Decision: *made}
		return nil
	}
	decided := d.Driver() // in place: a Decision is large
	switch joins := driver.Joins(t.backend, &r); {
	case joins && op == observe.OpTake:
		*decided, err = t.backend.Take(ctx, r)
	case joins:
		*decided, err = t.backend.Peek(ctx, r)
	case op == observe.OpTake:
		var parts []taken
		if *decided, parts, err = t.takeParts(ctx, r); err == nil && decided.Allowed {
			d.receipt = &receipt{parts: parts}
		}
	default:
		*decided, err = t.peekParts(ctx, r)
	}
	if err != nil {
		*d = Decision{}
		return err
	}
	d.Allowed, d.Degraded, d.Blocked, d.Added = decided.Allowed, decided.Degraded, false, 0
	if links != nil {
		d.link(links)
	}
	return nil
}

// Peek reports whether Take would allow the charges, and when, charging nothing. Used and
// Remaining are without them. It may ask a replica.
func (t *Throttler) Peek(ctx context.Context, charges ...Charge) (d Decision, err error) {
	if err = t.decide(ctx, observe.OpPeek, charges, &d); err == nil {
		d.receipt = tookNothing
	}
	return d, err
}

// Refund gives back what d took to its windows, while they last, also if ctx is over, and
// returns the limits after it. After an error it may be called again, which does nothing if
// [driver.MayHaveCharged].
func (t *Throttler) Refund(ctx context.Context, d Decision) (Decision, error) {
	return t.settle(ctx, d, make([]int64, len(d.Charges())))
}

// Settle corrects the costs of d.Charges but the d.Added, or of Take's, or none, and ends what
// is in flight. Too much is given back, too little charged, even beyond the quota: the next
// requests wait that debt out. If d took nothing, or was settled or refunded, it is returned.
func (t *Throttler) Settle(ctx context.Context, d Decision, costs ...int64) (Decision, error) {
	if len(costs) == 0 || !d.Allowed || len(d.Charges()) == 0 {
		return t.settle(ctx, d, costsOf(d.Charges()))
	}
	for i, cost := range costs {
		if cost < 0 || cost > quota.MaxQuota {
			return Decision{}, invalid.Errorf("throttler: charge %d: real cost is %d; it must be from 0 to %d (2^53)", i, cost, int64(quota.MaxQuota))
		}
	}
	if d.receipt != nil {
		costs = d.receipt.links.own(costs)
	}
	if given := len(d.Charges()) - int(d.Added); len(costs) != given {
		return Decision{}, invalid.Errorf("throttler: %d costs for a decision about %d charges", len(costs), given)
	}
	if d.receipt != nil && d.receipt.links != nil {
		costs = d.receipt.links.costs(costs)
	}
	return t.settle(ctx, d, costs)
}

// settleTime bounds a refund or settlement whose context was over before: a request's,
// whose client has left.
const settleTime = time.Second

func (t *Throttler) settle(ctx context.Context, d Decision, costs []int64) (Decision, error) {
	switch {
	case !d.Allowed:
		return d, nil
	case d.receipt == nil:
		return Decision{}, invalid.Errorf("throttler: the decision has no receipt: it is not as Take of this process returned it, and what it charged cannot be found")
	}
	ctx, cancel := outlive(ctx)
	defer cancel()
	r := d.receipt
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return d, nil
	}
	r.done = true
	if r.id == "" && costsAs(d.Charges(), costs) && !holds(d.Charges()) {
		return d, nil
	}
	start := time.Now()
	s := driver.Settlement{Now: t.now(), Charged: *d.Driver(), Costs: costs}
	var settled driver.Decision
	var err error
	switch {
	case r.id != "":
		settled, err = t.settleOnce(ctx, s, r.byPartition(&d), r.id)
	case r.parts != nil:
		settled, err = settleParts(s, r.parts, func(_ *taken, s driver.Settlement) (driver.Decision, error) {
			return t.backend.Settle(ctx, s)
		})
	default:
		settled, err = t.backend.Settle(ctx, s)
	}
	after := Decision{decision.FromDriver(settled), r}
	after.Added = d.Added
	if t.observer != nil {
		t.observe(ctx, observe.OpSettle, d.Charges(), start, &after, err)
	}
	if err != nil {
		r.done = driver.MayHaveCharged(err) && r.id == "" // by an id, it is made once
		return Decision{}, err
	}
	t.lines.refunded(d.Charges()[:len(d.Charges())-int(d.Added)])
	return after, nil
}

// outlive returns ctx or, if that is over, one that has settleTime: the request is over,
// its charge is not.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	if driver.Ended(ctx) == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), settleTime)
}

// costsAs reports whether charges cost what was charged: nothing to send then.
func costsAs(charges []Charge, costs []int64) bool {
	for i := range charges {
		if charges[i].Cost != costs[i] {
			return false
		}
	}
	return true
}

// now returns the clock's instant in ms since the epoch. A clock that shows a
// time outside the years 1970 to 9999 is read as their nearest end: instants are
// stored in six bytes.
func (t *Throttler) now() int64 {
	var ms int64
	if c, ok := t.clock.(interface{ UnixMilli() int64 }); ok { // as System's: it takes less than Now
		ms = c.UnixMilli()
	} else {
		ms = t.clock.Now().UnixMilli()
	}
	return min(max(ms, 0), maxInstant)
}

var maxInstant = decision.Never.UnixMilli()
