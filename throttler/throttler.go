package throttler

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/receiptkey"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
)

// A Throttler is safe for concurrent use. One of weir.Open needs Close.
type Throttler struct {
	*policies.Names

	backends []driver.Backend // the router's, or the one that New was given
	router   driver.Router    // or nil
	clock    clock.Clock
	millis   func() int64     // the clock's time, in ms since the epoch
	observer observe.Observer // or nil
	policies *policies.Table  // or nil

	receiptKey receiptkey.Key // of Receipt and Open
	queues     *waitQueues
	checked    *onlyChecked
	uncounted  *atomic.Bool  // a receipt was settled of which nothing is counted
	onClose    func() error  // or nil
	serverTime time.Duration // of requests
}

// Options configures a Throttler. Nil and the zero value select the defaults.
type Options struct {
	Clock      clock.Clock      // if nil, clock.System
	Observer   observe.Observer // receives each decision, and the events of parts without an observer; may be nil
	Policies   *policies.Table  // replaces the policies charged by those in force; may be nil
	ReceiptKey []byte           // encrypts receipts: 16 bytes or more, the same in all processes; may be nil
	OnClose    func() error     // closes the backend and its clients: weir.Open sets it; may be nil
}

// New returns a Throttler. It panics if backend is nil, or ReceiptKey short.
func New(backend driver.Backend, options *Options) *Throttler {
	if backend == nil {
		panic("throttler: New: backend is nil")
	}
	t := &Throttler{backends: []driver.Backend{backend}, clock: clock.System{}}
	if router, ok := backend.(driver.Router); ok {
		t.router, t.backends = router, router.Backends()
	}
	if options != nil {
		if options.Clock != nil {
			t.clock = options.Clock
		}
		if onClose := options.OnClose; onClose != nil {
			var once sync.Once
			t.onClose = func() (err error) {
				once.Do(func() { err = onClose() })
				return err
			}
		}
		t.observer, t.policies = options.Observer, options.Policies
		key, err := receiptkey.NewKey(options.ReceiptKey)
		if err != nil {
			panic("throttler: New: " + err.Error())
		}
		t.receiptKey = key
	}
	for _, b := range t.backends {
		if events, ok := driver.As[driver.Observed](b); ok {
			events.Observe(t.observer)
		}
	}
	t.millis = func() int64 { return t.clock.Now().UnixMilli() }
	if c, ok := t.clock.(interface{ UnixMilli() int64 }); ok { // System's is faster than Now
		t.millis = c.UnixMilli
	}
	t.Names = policies.NewNames(t.policies)
	t.checked, t.uncounted = new(onlyChecked), new(atomic.Bool)
	t.queues = &waitQueues{clock: t.clock, named: make(map[string]*waitQueue)}
	return t
}

// WithServerTime returns t with a [driver.Request]'s ServerTime, 0 or more.
func (t *Throttler) WithServerTime(d time.Duration) *Throttler {
	if d < 0 {
		panic(fmt.Sprintf("throttler: WithServerTime: d is %v; it must be 0 or more", d))
	}
	timed := *t
	timed.serverTime = d
	return &timed
}

// Clock returns the clock that decisions use.
func (t *Throttler) Clock() clock.Clock { return t.clock }

// Observer returns Options.Observer.
func (t *Throttler) Observer() observe.Observer { return t.observer }

// Close calls Options.OnClose, once. Call it after the last decision.
func (t *Throttler) Close() error {
	if t.onClose == nil {
		return nil
	}
	return t.onClose()
}

// Take charges every limit of every charge, as its mode says, or nothing if one lacks room.
// Charges to one count, of one key under one policy, add up.
func (t *Throttler) Take(ctx context.Context, charges ...Charge) (d Decision, err error) {
	// Take is so short that the compiler inlines it: then d and its receipt may stay on the
	// caller's stack.
	if err = t.decide(ctx, observe.OpTake, charges, &d); d.Allowed && d.receipt == nil {
		d.receipt = new(receiptState)
	}
	return
}

// decide sets d, whatever it contains, to the take or the peek of charges. It does not read
// d: a value passed to a backend moves to the heap, and d's receipt would too.
func (t *Throttler) decide(ctx context.Context, op observe.Op, charges []Charge, d *Decision) (err error) {
	if t.observer != nil {
		*d, err = t.observed(ctx, op, charges)
		return err
	}
	return t.unobserved(ctx, op, charges, d)
}

// unobserved is decide without an event for the decision.
func (t *Throttler) unobserved(ctx context.Context, op observe.Op, charges []Charge, d *Decision) error {
	var r driver.Request
	made, links, err := t.resolve(ctx, &r, charges)
	decided := d.Driver() // in place: a Decision is large
	switch {
	case err != nil:
	case made != nil:
		*d = Decision{Decision: *made}
		return nil
	case t.router != nil || r.IsSplit():
		err = t.routed(ctx, op, &r, d)
	case op == observe.OpTake:
		*decided, err = t.backends[0].Take(ctx, r)
	default:
		*decided, err = t.backends[0].Peek(ctx, r)
	}
	if err != nil {
		*d = Decision{}
		return err
	}
	d.Allowed, d.Degraded, d.Blocked, d.Added = decided.Allowed, decided.Degraded, false, 0
	if links != nil {
		d.link(links)
	}
	if op == observe.OpTake && isChecked(charges, nil, "") {
		t.checked.note(t.observer, d)
	}
	return nil
}

// routed sets d's driver.Decision, and the receipt of a take, to what the backends of r decide.
func (t *Throttler) routed(ctx context.Context, op observe.Op, r *driver.Request, d *Decision) (err error) {
	decided := d.Driver()
	switch backend, parts := t.parts(r); {
	case parts == nil && op == observe.OpTake:
		*decided, err = t.backends[backend].Take(ctx, *r)
		if backend > 0 && decided.Allowed {
			d.receipt = newReceipt(backend, nil)
		}
	case parts == nil:
		*decided, err = t.backends[backend].Peek(ctx, *r)
	case op == observe.OpTake:
		var takes []partTake
		if *decided, takes, err = t.takeParts(ctx, *r, parts); err == nil && decided.Allowed {
			d.receipt = newReceipt(0, takes)
		}
	default:
		*decided, err = t.peekParts(ctx, *r, parts)
	}
	return err
}

// Peek reports whether Take would allow the charges, and when, charging nothing. Used and
// Remaining don't include them. It may ask a replica.
func (t *Throttler) Peek(ctx context.Context, charges ...Charge) (d Decision, err error) {
	t.warnOfKeys("Peek", charges)
	if err = t.decide(ctx, observe.OpPeek, charges, &d); err == nil {
		d.receipt = tookNothing
	}
	return d, err
}

// now returns the clock's time in ms since the epoch, clamped to the years 1970 to
// 9999: instants are stored in six bytes.
func (t *Throttler) now() int64 { return min(max(t.millis(), 0), maxInstant) }

var maxInstant = decision.Never.UnixMilli()
