// Package leased spends leases of another backend's counts in this process. A busy key
// costs the other backend one call for many decisions, and no client ever gets a single
// unit more than the quota, whatever fails.
//
// A lease is a number of units, charged by an ordinary take of the other backend. They
// count there as used from then on, so no other process can spend them. This process
// spends them without a call until the window ends. It gives back unspent units when the key
// falls silent and when the Backend is closed. If a process is killed, the units of its
// leases count as used until their windows end.
//
// # Takes without an answer
//
// A take that times out may have leased units, and is not sent again. So each take of a
// lease also charges, in the same step, a second count of this process and key: all units
// that the process has leased of the key. The next answer reports that total, and the
// process then holds any units in it that it didn't know of. Until there is an answer, a
// take asks for no more than its own cost.
//
// # Leasable limits
//
// Only fixed windows are leased, because a unit of a window may be spent at any time until
// the window ends. A unit of a log or a bucket counts from the instant at which it was
// taken, and spending it later would exceed the limit. So takes with a limit of another
// algorithm, with charges of different costs, or with a key and partition of more than 4 KiB
// go to the other backend one by one. So do takes of a key that asks for less than
// [Options.Busy] units a second.
//
// A lease covers the key's expected demand within [Options.Ahead], or within the rest of its
// window if that is shorter, but at most an eighth of the units that no process holds. So
// leases shrink as the quota runs out, and little of it is stranded.
//
// # Answers
//
// An answer of the other backend is exact at that instant: units that other processes hold
// count as used. An answer from a lease reports the rest of the lease as remaining, which
// this client can get from this process in any case, and all other units as used. The
// client can therefore always get at least the remaining units, and they are 0 only if
// there are no units to lease: the take that spends the last unit of a lease asks for
// the next lease first. The reset time is the window's, and exact. The limit that binds is
// the limit with the least remaining by the other backend's last answer.
//
// # Refusals
//
// A key that has used up its quota has no units to lease, so each take of it asks the other
// backend. Put guard/refusals in front, which repeats a refusal from memory: by default for a
// second, or until the window ends.
//
// If a cost is refused that fits with the units held here, they are given back, and the other
// backend is asked once more.
package leased

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Defaults of Options.
const (
	DefaultAhead   = time.Second
	DefaultBusy    = 10
	DefaultMaxKeys = 1 << 16
)

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// Ahead is the time that a lease is meant to last. A lease is given back when its
	// key has asked for nothing for a quarter of Ahead. Whole milliseconds, from 10 ms to
	// a minute. If zero, DefaultAhead.
	Ahead time.Duration

	// Busy is the number of units that a key must ask for within a second to be
	// leased any. If zero, DefaultBusy.
	Busy int64

	// MaxKeys is the maximum number of keys whose demand is tracked, from 64. Each
	// takes about 500 bytes and, while it holds a lease, the length of the key and its
	// partition, at most 4 KiB. A new key evicts the longest silent of a few others. If
	// zero, DefaultMaxKeys.
	MaxKeys int

	// Leases reports whether units of p may be leased. Takes of other policies go to the
	// other backend one by one. Its result may change. If nil, all policies may be leased.
	Leases func(p *quota.Policy) bool

	// Clock is the clock of the throttler in front. It measures silence. If nil,
	// clock.System.
	Clock clock.Clock
}

// Backend is a driver.Backend that leases units of another one. It is safe for
// concurrent use. Close it to give back its leases.
type Backend struct {
	wrapped driver.Backend
	ahead   int64 // ms
	busy    int64
	leases  func(*quota.Policy) bool // or nil
	clock   clock.Clock

	names     keyed.Hasher
	stripes   [keyed.Stripes]stripe
	ofSeveral atomic.Bool // some lease covers several charges
	stats     counters

	closed   context.Context
	cancel   context.CancelFunc
	sweeping sync.WaitGroup
	sweeps   sync.Mutex   // held during a sweep
	renewals sync.RWMutex // read-locked while a lease is taken
}

var _ driver.Backend = (*Backend)(nil)

// New returns a Backend that leases units of backend. All processes must share backend's
// counts, so a fallback, which may count in this process alone, goes in front of the
// Backend. The Backend passes on a decision that is Degraded, and leases nothing by it.
// Errors are about options and wrap quota.ErrInvalid. New panics if backend is nil.
func New(backend driver.Backend, options *Options) (*Backend, error) {
	if backend == nil {
		panic("leased: New: backend is nil")
	}
	o := *cmp.Or(options, new(Options))
	if err := o.complete(); err != nil {
		return nil, err
	}
	b := &Backend{
		wrapped: backend, clock: o.Clock, names: keyed.NewHasher(),
		ahead: o.Ahead.Milliseconds(), busy: o.Busy, leases: o.Leases,
	}
	for i := range b.stripes {
		b.stripes[i].Most, b.stripes[i].holding = o.MaxKeys/keyed.Stripes, make(map[*lease]struct{})
	}
	b.closed, b.cancel = context.WithCancel(context.Background())
	b.sweeping.Go(func() {
		every.Do(b.closed, max(b.silence()/sweeps, time.Millisecond), func() { b.sweep(b.closed.Done()) })
	})
	return b, nil
}

// complete fills in the defaults, and returns an error if o is invalid.
func (o *Options) complete() error {
	o.Ahead, o.Busy, o.MaxKeys = cmp.Or(o.Ahead, DefaultAhead), cmp.Or(o.Busy, DefaultBusy), cmp.Or(o.MaxKeys, DefaultMaxKeys)
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.System{})
	switch {
	case o.Ahead < 10*time.Millisecond || o.Ahead > time.Minute || o.Ahead%time.Millisecond != 0:
		return invalid.Errorf("leased: Ahead is %v; it must be whole milliseconds from 10ms to 1m, or 0 for %v", o.Ahead, DefaultAhead)
	case o.Busy < 1:
		return invalid.Errorf("leased: Busy is %d; it must be 1 or more, or 0 for %d", o.Busy, DefaultBusy)
	case o.MaxKeys < keyed.Stripes:
		return invalid.Errorf("leased: MaxKeys is %d; it must be %d or more, or 0 for %d", o.MaxKeys, keyed.Stripes, DefaultMaxKeys)
	}
	return nil
}

// Leases returns the result of Options.Leases for p, or true if Options.Leases is nil.
func (b *Backend) Leases(p *quota.Policy) bool { return b.leases == nil || b.leases(p) }

// Close gives back all leases. Later takes go to the other backend one by one. The error is
// about a lease that couldn't be given back, or ctx's: units count as used until their windows
// end, unless a second Close gives them back.
func (b *Backend) Close(ctx context.Context) error {
	b.cancel()
	quiet := make(chan struct{})
	go func() {
		defer close(quiet)
		b.sweeping.Wait()
		b.renewals.Lock() // a renewal in progress may lease more than it spends
		defer b.renewals.Unlock()
	}()
	select {
	case <-quiet:
		return b.giveBackAll(ctx)
	case <-ctx.Done():
		return fmt.Errorf("leased: Close: takes or settlements have not ended: %w", ctx.Err())
	}
}

// Take implements driver.Backend.
func (b *Backend) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	cost := b.leasedCost(&r)
	if cost == 0 {
		return b.ask(ctx, r)
	}
	n, limits := b.nameOf(r.Charges()), b.limitsOf(r.Charges())
	s := b.stripeOf(n)
	s.mu.Lock()
	l := b.leaseFor(s, n, &r, cost)
	var late time.Time // when the server's time has passed since a wait began
	for {
		if l.Removed() { // during a wait
			l = b.leaseFor(s, n, &r, cost)
		}
		// Check again after a wait: the limits may have changed, or a window ended.
		if l.limits != limits {
			s.expire(l)
			l.limits = limits
		}
		if l.firstEnd > 0 && l.ended(r.Now) {
			s.expire(l)
			l.free = capacity(r.Charges())
		}
		next := l.next(r.Now, cost, b.busy)
		if next == wait && !late.IsZero() && time.Now().After(late) {
			next = askAlone // the time of the renewal in progress began later than this take's
		}
		switch next {
		case spend:
			d := l.spend(&r, cost)
			s.local++
			s.mu.Unlock()
			return d, nil
		case askAlone:
			s.mu.Unlock()
			d, err := b.askAlone(ctx, s, l, r)
			return b.askAgain(ctx, s, l, r, d, err)
		case renew:
			d, err := b.renew(ctx, s, l, r, cost)
			return b.askAgain(ctx, s, l, r, d, err)
		case wait:
			if late.IsZero() && r.ServerTime > 0 {
				late = time.Now().Add(r.ServerTime)
			}
			if err := s.await(ctx, l.renewal); err != nil {
				return driver.Decision{}, err
			}
		}
	}
}

// leaseFor returns the lease of name n in s, and notes in it that r asks for cost.
func (b *Backend) leaseFor(s *stripe, n keyed.Name, r *driver.Request, cost int64) *lease {
	l := s.get(n)
	if l.names == nil && len(r.Charges()) > 1 {
		l.names = b.namesOf(r.Charges())
		b.ofSeveral.Store(true)
	}
	l.demand.add(cost, r.Now)
	l.lastAsk = r.Now
	return l
}

// leasedCost returns the cost of r, or 0 if r goes to the other backend.
func (b *Backend) leasedCost(r *driver.Request) int64 {
	cost := leasable(r.Charges())
	if cost == 0 || r.Charges()[0].Mode != quota.Enforce || r.IsSplit() || b.closed.Err() != nil || !b.mayLease(r.Charges()) {
		return 0
	}
	return cost
}

// await waits for r with the lock released. After an error, the lock stays released.
func (s *stripe) await(ctx context.Context, r *renewal) error {
	r.waiters++
	s.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.failed() {
		return fmt.Errorf("leased: %w by this take, which waited for a lease: %w", driver.ErrNotSent, r.err)
	}
	s.mu.Lock()
	return nil
}

// Joins implements driver.Joiner. b joins several partitions if the other backend does and
// none of r's policies may be leased, since a lease covers one partition.
func (b *Backend) Joins(r driver.Request) bool {
	return b.leases != nil && driver.Joins(b.wrapped, &r) &&
		!slices.ContainsFunc(r.Charges(), func(c quota.Charge) bool { return b.leases(c.Policy) })
}

// mayLease reports whether the policies of all charges may be leased.
func (b *Backend) mayLease(charges []quota.Charge) bool {
	return b.leases == nil || !slices.ContainsFunc(charges, func(c quota.Charge) bool { return !b.leases(c.Policy) })
}

// Unwrap returns the backend whose units b leases.
func (b *Backend) Unwrap() driver.Backend { return b.wrapped }

func (b *Backend) ask(ctx context.Context, r driver.Request) (driver.Decision, error) {
	b.stats.takes.Add(1)
	held := int64(0)
	if c := r.Charges(); len(c) > 0 && c[0].Mode == quota.Check {
		held = b.heldFor(&r)
	}
	d, err := b.wrapped.Take(ctx, r)
	if err == nil && !d.Allowed {
		b.addHeld(&d, held)
	}
	return d, err
}

// askAlone asks the other backend about r alone, and notes in l how many units are free.
func (b *Backend) askAlone(ctx context.Context, s *stripe, l *lease, r driver.Request) (driver.Decision, error) {
	d, err := b.ask(ctx, r)
	if err == nil && !d.Degraded {
		s.mu.Lock()
		l.note(&d)
		s.mu.Unlock()
	}
	return d, err
}

// askAgain returns d and err, the answer to r, unless d refuses a cost that fits together with
// the units that l holds. Then it gives these back, and asks the other backend once more.
func (b *Backend) askAgain(ctx context.Context, s *stripe, l *lease, r driver.Request, d driver.Decision, err error) (driver.Decision, error) {
	if err != nil || d.Allowed || d.Degraded || !b.renewals.TryRLock() { // Close gives back all leases
		return d, err
	}
	defer b.renewals.RUnlock()
	s.mu.Lock()
	if l.held == 0 || l.ended(r.Now) || !sameResets(&l.granted, &d) || l.held+free(&d) < r.Charges()[0].Cost {
		s.mu.Unlock()
		return d, nil
	}
	st := l.refund()
	s.mu.Unlock()
	st.Now, st.ServerTime = r.Now, r.ServerTime
	if b.settle(context.WithoutCancel(ctx), &st) != nil { // a caller that leaves must not lose the lease
		return d, nil
	}
	return b.askAlone(ctx, s, l, r)
}

// Peek implements driver.Backend. It asks the other backend, and reports the units that
// this process holds as not used.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	held := b.heldFor(&r)
	d, err := b.wrapped.Peek(ctx, r)
	if err == nil {
		b.addHeld(&d, held)
	}
	return d, err
}

// heldFor returns how many units this process holds for takes of r.
func (b *Backend) heldFor(r *driver.Request) int64 {
	if s, l := b.find(r.Charges()); l != nil {
		defer s.mu.Unlock()
		if !l.ended(r.Now) && b.mayLease(r.Charges()) {
			return l.held
		}
	}
	return 0
}

// addHeld makes d, which charges nothing, report this process's held units as not used, but at
// most bound: d may not know of units leased during the call.
func (b *Backend) addHeld(d *driver.Decision, bound int64) {
	if bound == 0 || d.Degraded { // its counts don't contain leases
		return
	}
	if s, l := b.find(d.Charges()); l != nil {
		defer s.mu.Unlock()
		if held := min(l.held, bound); held > 0 && !l.ended(d.Request.Now) {
			addHeld(d, &l.granted, held)
		}
	}
}

// Settle implements driver.Backend. Units return to the lease, or come from it, if
// the process still has a lease of the same windows.
func (b *Backend) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	if st.PauseUntil > 0 {
		if err := b.checkPause(st.Charged.Charges()); err != nil {
			return driver.Decision{}, err
		}
	}
	units, even := extra(&st)
	if s, l := b.find(st.Charged.Charges()); l != nil {
		if even && l.held > max(units, 0) && !l.ended(st.Now) && sameWindows(&l.granted, &st.Charged) {
			defer s.mu.Unlock()
			r := st.Charged.Request
			r.Now = st.Now
			return l.spend(&r, units), nil
		}
		s.mu.Unlock()
	}
	return b.wrapped.Settle(ctx, st)
}

// Reset implements driver.Backend. It drops this process's leases of the counts at once.
// Other processes spend the units that they hold, and nothing after that.
func (b *Backend) Reset(ctx context.Context, r driver.Request) error {
	defer b.forget(r.Charges()) // after an error, too: counts that were not reset get their units back
	return b.wrapped.Reset(ctx, r)
}

// forget removes from the table each lease that covers any of charges, alone or with others.
func (b *Backend) forget(charges []quota.Charge) {
	names := b.namesOf(charges)
	for _, n := range names {
		s := b.stripeOf(n)
		s.mu.Lock()
		if l := s.Get(n); l != nil {
			s.forget(l)
		}
		s.mu.Unlock()
	}
	if !b.ofSeveral.Load() { // spares a look at all keys: every login may reset
		return
	}
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		for _, l := range slices.Clone(s.Values()) {
			if slices.ContainsFunc(l.names, func(n keyed.Name) bool { return slices.Contains(names, n) }) {
				s.forget(l)
			}
		}
		s.mu.Unlock()
	}
}

// checkPause returns an error if units of charges may be leased: other processes would spend
// the units that they hold in spite of a pause.
func (b *Backend) checkPause(charges []quota.Charge) error {
	for _, c := range charges {
		if c.Cost = 1; b.Leases(c.Policy) && leasable([]quota.Charge{c}) > 0 {
			return invalid.Errorf("leased: policy %q is leased, and a pause does not reach the units that processes hold; leave it out of Options.Leases", c.Policy.Name)
		}
	}
	return nil
}

// find returns the lease of charges, with its stripe's lock held, or nil and no lock.
func (b *Backend) find(charges []quota.Charge) (*stripe, *lease) {
	if leasable(charges) == 0 {
		return nil, nil
	}
	n := b.nameOf(charges)
	s := b.stripeOf(n)
	s.mu.Lock()
	if l := s.Get(n); l != nil && l.limits == b.limitsOf(charges) {
		return s, l
	}
	s.mu.Unlock()
	return nil, nil
}

func (b *Backend) stripeOf(n keyed.Name) *stripe { return &b.stripes[n[0]%keyed.Stripes] }
