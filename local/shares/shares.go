// Package shares decides in this process, from its share of each quota, and needs no
// store. Processes that share a quota know each other, and divide it among themselves
// again and again, by their recent demand: see package division. A round counts when all
// members of the list take part, and divides the quotas. Otherwise each process keeps its
// shares until the next round, or until an operator changes the list.
//
// A decision makes no call and doesn't wait for one. So the quota is not exceeded, but while a
// process can't be reached, no other process can use its unused units.
//
// # Limits
//
// A limit must be a [quota.TokenBucket]: each process has a bucket with its share of
// the rate and of the capacity. All buckets of a key together admit no more in any time
// than one bucket would: the burst, plus the tokens that the rate adds in that time. If the
// whole fleet starts, all buckets are full, and together they equal that bucket. A process
// that starts later begins with the tokens of a full bucket of the least share, which add to
// this bound: with n members, each start adds 1/(20n) of the capacity of each key, or a unit.
//
// [New] refuses other algorithms. It also refuses quotas and bursts above 4,194,303, or with
// less than a unit for each member: see [Unsupported].
//
// # Keys
//
// The shares of a policy are the same for all but a few of its keys: they follow the
// process's demand for all keys together. A key that is asked for at one process
// alone gets the share of that process, which may be small. In each policy, the
// [Options.HotKeys] keys with the highest demand have their own divisions.
//
// # Answers
//
// Limits are the whole quotas. Remaining is the number of units that this process can still
// admit, so Used includes the units that other processes may use. The reset time is when
// this process's bucket is full. The retry time is when the charge fits here, at the
// present share. A charge that is larger than the share's capacity is refused until the
// share has grown: its retry time is a guess. If a process's share grows, the times come
// earlier than reported, and if it shrinks, later.
package shares

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/local/shares/internal/division"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// DefaultMaxKeys is the default of Options.MaxKeys.
const DefaultMaxKeys = 1 << 20

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// Refresh is the time between two divisions, from 10 ms to an hour. If zero,
	// DefaultRefresh. All processes need the same value. A member has a fifth of it to
	// reply, from 50 ms to a second.
	Refresh time.Duration

	// HotKeys is the number of keys of each policy that have their own divisions, at most
	// 64. If zero, 8; if negative, 0.
	HotKeys int

	// MaxKeys is the maximum number of keys with buckets in memory, from 64. Each takes about
	// 300 bytes with one limit, whatever its length. A further key evicts, of a few others,
	// the key that has used the least of its share. If zero, DefaultMaxKeys.
	MaxKeys int

	// ListChanged is called with each list of members that replaces another one, from
	// SetList or from another process. It must return soon, and not call the Backend.
	// May be nil.
	ListChanged func(List)

	// Clock is the clock of the throttler in front. If nil, clock.System.
	Clock clock.Clock

	// Observer receives each message to another member, as a round trip and as a check of the
	// member. If nil, weirlog.Default(), which logs when a member stops answering and when it
	// answers again.
	Observer observe.Observer
}

// Backend is a driver.Backend that decides from this process's shares. It is safe for
// concurrent use. Close it.
type Backend struct {
	opts   Options
	self   string
	epoch  atomic.Int64 // of the instants of buckets, in ms since 1970: minus the time that the clock was set back
	member *division.Member

	byName   map[string]*policy
	policies []*policy
	holds    atomic.Bool // shares

	moving sync.Mutex // held while shares move buckets, or now moves the epoch
	latest int64      // last result of now

	names   keyed.Hasher
	stripes [keyed.Stripes]stripe
	closed  context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

var _ driver.Backend = (*Backend)(nil)

// New returns a Backend that decides under policies, as the member self of list. Charges
// of other policies, or of a policy's name with other limits, are errors. Until the Backend
// has heard of the other members and has its first shares, it fails with errors that
// wrap driver.ErrUnavailable and driver.ErrFailClosed: no request is served, unless a
// fallback in front decides.
//
// All processes need the same policies, under the same names. Pass the messages of other
// members to Receive. Errors are about arguments, and wrap quota.ErrInvalid.
func New(self string, list List, transport Transport, policies []*quota.Policy, options *Options) (*Backend, error) {
	b, err := newBackend(self, len(list.Members), policies, options)
	if err != nil {
		return nil, err
	}
	o := &b.opts
	if o.Observer = weirlog.Ensure(o.Observer); transport != nil {
		transport = observed{transport, o.Observer, b.closed}
	}
	b.member, err = division.New(self, list, b.quotas(), transport, b.apply, &division.Options{Refresh: o.Refresh, Keys: o.HotKeys, ListChanged: o.ListChanged, Clock: o.Clock})
	if err != nil {
		return nil, err
	}
	b.running.Go(func() { b.member.Run(b.closed) }) // until Close
	b.running.Go(func() { every.Do(b.closed, sweepEvery, b.sweep) })
	return b, nil
}

// newBackend returns a Backend without a member.
func newBackend(self string, members int, policies []*quota.Policy, options *Options) (*Backend, error) {
	o := *cmp.Or(options, new(Options))
	o.Refresh, o.MaxKeys = cmp.Or(o.Refresh, division.DefaultRefresh), cmp.Or(o.MaxKeys, DefaultMaxKeys)
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.System{})
	if o.MaxKeys < keyed.Stripes {
		return nil, invalid.Errorf("shares: MaxKeys is %d; it must be %d or more, or 0 for %d", o.MaxKeys, keyed.Stripes, DefaultMaxKeys)
	}
	b := &Backend{opts: o, self: self, names: keyed.NewHasher()}
	var err error
	if b.byName, b.policies, err = newPolicies(policies, max(members, 1), 2*o.Refresh); err != nil {
		return nil, err
	}
	for i := range b.stripes {
		b.stripes[i].Most = o.MaxKeys / keyed.Stripes
	}
	b.closed, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// quotas returns the quotas that b's member divides.
func (b *Backend) quotas() (quotas []division.Quota) {
	for _, p := range b.policies {
		for k := range p.Limits {
			quotas = append(quotas, p.divided(k))
		}
	}
	return quotas
}

// Close ends this process's part in the division. The others keep their shares until its
// successor takes part, or a list leaves it out.
func (b *Backend) Close() {
	b.cancel()
	b.running.Wait()
}

// Receive processes a message of another member and returns the reply.
func (b *Backend) Receive(ctx context.Context, message []byte) (reply []byte, err error) {
	return b.member.Receive(ctx, message)
}

// SetList replaces the list of members by a list with a higher epoch. It is enough to do so
// in one process. A list that is not valid, or too long for a limit to have a unit for each
// member, is an error that wraps quota.ErrInvalid.
func (b *Backend) SetList(list List) error {
	for _, p := range b.policies {
		if err := divisible(p.Policy, len(list.Members)); err != nil {
			return err
		}
	}
	return b.member.SetList(list)
}

// Status is the state of the division and of the keys in a Backend.
type Status struct {
	division.Status

	Keys    int   `json:"keys_in_memory"`
	Evicted int64 `json:"keys_evicted"` // to make room for others
}

// Status returns the state of the division as this process knows it.
func (b *Backend) Status() Status {
	s := Status{Status: b.member.Status()}
	for i := range b.stripes {
		t := &b.stripes[i]
		t.mu.Lock()
		s.Keys += len(t.Values())
		s.Evicted += t.evicted
		t.mu.Unlock()
	}
	return s
}

// apply puts shares in force. Once it returns, no decision uses the previous shares.
func (b *Backend) apply(divided division.Shares) {
	b.moving.Lock()
	defer b.moving.Unlock()
	now := b.now()
	if !divided.Valid {
		b.holds.Store(false)
	}
	for _, p := range b.policies {
		p.apply(divided.Quotas[:len(p.Limits)], divided.First, now)
		divided.Quotas = divided.Quotas[len(p.Limits):]
	}
	if divided.Valid {
		b.holds.Store(true)
	}
	for i := range b.stripes {
		b.stripes[i].mu.Lock()
		b.stripes[i].mu.Unlock() //nolint:staticcheck // it waits for decisions under the shares before
	}
}

// Nothing was charged, so that a refund can be made again.
var errNoShares = fmt.Errorf("%w: %w: this process holds no shares, because it has not heard of all members since it started, or is not on their list", driver.ErrFailClosed, driver.ErrNotSent)

func (b *Backend) noShares() error {
	return &driver.UnavailableError{Backend: "shares", Shard: b.self, Err: errNoShares}
}

// now returns the present instant of buckets. It never falls: if the clock was set back since
// the last call, buckets continue from where they were. Otherwise keys would wait for the
// clock to catch up. Its caller holds b.moving.
func (b *Backend) now() int64 {
	now := b.opts.Clock.Now().UnixMilli() - b.epoch.Load()
	if step := b.latest - now; step > 0 {
		b.epoch.Add(-step)
		now = b.latest
	}
	b.latest = now
	return now
}

// begin prepares a decision about r, or returns an error if it can't be made. It returns
// the decision's instant, and its stripe, which is nil if r charges nothing.
func (b *Backend) begin(ctx context.Context, r driver.Request) (d driver.Decision, s *stripe, now moment, err error) {
	if err := ctx.Err(); err != nil {
		return d, nil, now, err
	}
	if err := b.check(r.Charges()); err != nil {
		return d, nil, now, err
	}
	now.epoch = b.epoch.Load()
	now.now = r.Now - now.epoch
	if !b.holds.Load() {
		return d, nil, now, b.noShares()
	}
	d = driver.NewDecision(r)
	d.Allowed = true
	if charges := d.Charges(); len(charges) > 0 {
		s = b.stripeOf(charges[0].Partition)
	}
	return d, s, now, nil
}

// moment is an instant of buckets, and the epoch: their sum is in ms since 1970.
type moment struct{ now, epoch int64 }

// since returns the moment of a decision at m about e: not before e's shares are in force, so
// that keys need not wait for a clock that was set back.
func (m moment) since(e *entry) moment { return moment{max(m.now, e.shares.since), m.epoch} }

// Take implements driver.Backend. It makes no call.
func (b *Backend) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.decide(ctx, r, true)
}

// Peek implements driver.Backend. It makes no call.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.decide(ctx, r, false)
}

func (b *Backend) decide(ctx context.Context, r driver.Request, charge bool) (driver.Decision, error) {
	d, s, now, err := b.begin(ctx, r)
	if err != nil || s == nil {
		return d, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := b.find(s, d.Charges(), now, charge); err != nil {
		return driver.Decision{}, err
	}
	charges, results, i := d.Charges(), d.Results(), 0
	if charge {
		s.addDemand(charges, now)
	}
	for n, e := range s.found {
		for k := range e.buckets {
			b.evaluate(e, k, charges[n].Mode.Asks(charges[n].Cost), now.since(e), &results[i])
			i++
		}
	}
	d.Grant()
	charges, i = d.Charges(), 0
	for n, e := range s.found {
		charged := charge && d.Allowed && charges[n].Cost > 0
		for k := range e.buckets {
			v := e.limits[k].capped(e.buckets[k], now.since(e).now)
			if charged {
				v = e.buckets[k].charge(&e.limits[k], charges[n].Cost, now.since(e).now)
			}
			if mark := b.report(e, k, v, now.since(e), &results[i]); charged {
				results[i].Mark = mark
			}
			i++
		}
	}
	return d, nil
}

// addDemand counts charges as demand, if they can be admitted at all.
func (s *stripe) addDemand(charges []quota.Charge, now moment) {
	for n, e := range s.found {
		if charges[n].Mode.Asks(charges[n].Cost) > e.policy.greatest {
			return
		}
	}
	for n, e := range s.found {
		if charges[n].Mode != quota.Check {
			e.policy.addDemand(now.since(e), e.hash, charges[n].Cost)
		}
	}
}

// evaluate sets r.Used for limit k, and r.RetryAt if cost doesn't fit now.
func (b *Backend) evaluate(e *entry, k int, cost int64, now moment, r *driver.Result) {
	s, capacity := &e.limits[k], e.policy.Limits[k].Capacity()
	v := s.capped(e.buckets[k], now.now)
	r.Used = capacity - s.wholeUnits(v, now.now)
	switch {
	case cost <= s.capacity && s.holds(v, cost, now.now):
	case cost > capacity:
		r.RetryAt = driver.NeverFits
	default:
		r.RetryAt = b.hasAt(s, v, cost, now)
	}
}

// find sets s.found to the entries of charges. It adds new entries to the table if keep is
// true. Its caller holds the lock.
func (b *Backend) find(s *stripe, charges []quota.Charge, now moment, keep bool) error {
	s.found = s.found[:0]
	for i := range charges {
		s.found = append(s.found, b.get(s, &charges[i], now.now, keep))
	}
	// The shares may have been dropped since begin. That is an error, not a refusal.
	if !b.holds.Load() {
		return b.noShares()
	}
	return nil
}

// report sets Used and ResetAt of r by v, for limit k, and NextAt if no token is left. It
// returns the mark of a charge that left v. The mark is an instant of buckets, so that it
// stays right when the clock is set back.
func (b *Backend) report(e *entry, k int, v bucket, now moment, r *driver.Result) driver.Mark {
	s := &e.limits[k]
	units := s.wholeUnits(v, now.now)
	full, remainder := s.hasAt(v, s.capacity)
	r.Used = e.policy.Limits[k].Capacity() - units
	r.ResetAt = now.epoch + full + min(remainder, 1)
	if units < 1 {
		r.NextAt = b.hasAt(s, v, 1, now)
	}
	return driver.Mark{At: full, Fraction: remainder}
}

// hasAt returns the instant, in ms since 1970, at which v has n tokens.
func (b *Backend) hasAt(s *share, v bucket, n int64, now moment) int64 {
	wait := int64(0)
	if n > s.capacity { // it may fit when the share has grown
		n, wait = s.capacity, b.opts.Refresh.Milliseconds()
	}
	instant, remainder := s.hasAt(v, n)
	return now.epoch + max(instant+min(remainder, 1), now.now+wait)
}

// HasReceipt implements driver.Receiptless. No charge has a receipt.
func (*Backend) HasReceipt(*driver.Decision) error {
	return invalid.Errorf("shares: a count that is divided among processes has no receipts: settle in the process that took")
}

// Settle implements driver.Backend. It makes no call.
func (b *Backend) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	if st.Once {
		return driver.Decision{}, b.HasReceipt(&st.Charged)
	}
	r := st.Charged.Request
	r.Now = st.Now
	if st.PauseUntil > 0 {
		return driver.Decision{}, invalid.Errorf("shares: PauseUntil is set; a share of a quota cannot be paused, because other processes have theirs")
	}
	d, s, at, err := b.begin(ctx, r)
	if err != nil || s == nil {
		return d, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := b.find(s, d.Charges(), at, true); err != nil {
		return driver.Decision{}, err
	}
	results, i := d.Results(), 0
	for n, e := range s.found {
		added := st.Costs[n] - d.Charges()[n].Cost
		e.policy.addDemand(at.since(e), e.hash, max(added, 0))
		for k, mark := range st.Charged.ResultsOf(n) {
			v, now := &e.buckets[k], at.since(e).now
			if added >= 0 {
				v.charge(&e.limits[k], added, now)
			} else {
				v.giveBack(&e.limits[k], -added, mark.Mark.At, mark.Mark.Fraction, now)
			}
			b.report(e, k, *v, at.since(e), &results[i])
			i++
		}
	}
	return d, nil
}

// Reset implements driver.Backend. It returns an error that wraps quota.ErrInvalid: each
// process has a part of a count, and can't reset the parts of others.
func (b *Backend) Reset(context.Context, driver.Request) error {
	return invalid.Errorf("shares: a count is divided among processes, and cannot be reset; it is full again at its reset time")
}

func (b *Backend) stripeOf(partition string) *stripe {
	return &b.stripes[b.names.Partition(partition)%keyed.Stripes]
}

// observed reports messages to an observer.
type observed struct {
	division.Transport
	observer observe.Observer
	closed   context.Context // of the Backend
}

func (o observed) Send(ctx context.Context, to string, message []byte) (reply []byte, err error) {
	start := time.Now()
	reply, err = o.Transport.Send(ctx, to, message)
	o.observer.Sent(observe.Sent{Backend: "shares", Shard: to, Start: start, Duration: time.Since(start), Err: err})
	if o.closed.Err() == nil { // a message that Close ends says nothing
		o.observer.Checked(observe.Checked{Backend: "shares", Shard: to, Server: "member", Open: err != nil, Err: err})
	}
	return reply, err
}
