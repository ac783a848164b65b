// Package synced decides in this process and agrees with other processes in the
// background. A decision makes no call and doesn't wait for one. It is for counts of many
// requests, where a little more or less than the quota does no harm: use backend/redis
// where it does, and local/leased where the quota must never be exceeded.
//
// Once per sync interval, each process sends its additions to the counters that it was asked
// about, and receives their totals: entries of some 50 bytes, in calls that a root acknowledges
// one by one. What a root has acknowledged is not sent again. Counters that no request charges cost
// nothing, however many there are; those that have used half of a quota are asked about for a few
// syncs more.
//
// Roots are plain Redis servers that know nothing of each other.
// Every process talks to all of them, and the largest total counts. No request notices a
// root that hangs, is gone, or has lost its memory, as long as another root has the counts. A root
// that has lost its memory has a counter again with the next charge of it. Between the syncs,
// processes resend it the others, the fullest first, in a quarter of its time: [Stats] has how
// many are to be sent. If one root can't keep up, divide the roots into groups, and each group
// keeps a part of the counters: see [Root].
//
// Between two syncs, a total is extrapolated with the rate at which other processes
// added to it. Units admitted beyond a quota are a debt that the next requests wait out. It is at
// most one capacity, and what a process could not send for four syncs fills a bucket to three
// quarters at most, so that the debt of an outage ends soon. A single charge of more than the
// capacity, recorded or settled, is kept in full.
//
// While no root of a count answers, decisions are Degraded, and an [observe.Warned] says so.
//
// # Limits
//
// A [quota.TokenBucket] is stored as the instant at which it will have drained. Time alone
// reaches that instant, so no process drains the bucket, and the instant only grows, so
// totals of several roots merge. Above [Options.Low] of its capacity, the chance of a
// refusal rises linearly, from 0 to certainty at the capacity.
//
// An aligned [quota.FixedWindow] is stored as a count, which begins at zero with each window.
//
// Charges under other algorithms are errors: a window that a key opens needs one process to
// open it, a log needs each charge, and a queue needs one order of all charges. [Supports]
// checks a policy at the start.
//
// A decision uses the limits of its charges, so each key may have different limits, and they
// may change at any time. The count continues: roots know nothing of quotas, and find a count
// by the names of policy and key, the algorithm and the length of the window. A bucket
// whose quota changes will have drained at the same instant as before, so it is as full
// in proportion. A window keeps its units.
//
// # Answers
//
// Used is the total of the last sync, plus the units that this process added since and that
// others probably added. It is an estimate. So are the reset and the retry time of a bucket.
// The reset time of an aligned window is exact.
package synced

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Defaults of Options.
const (
	DefaultSync    = 100 * time.Millisecond
	DefaultMaxKeys = 1 << 20
)

// MaxRoots is the maximum number of roots in a group.
const MaxRoots = 64

// Root is a Redis server at which processes agree on counters.
type Root struct {
	Name   string                // in errors and statistics
	Client redis.UniversalClient // of one server, not of a Cluster; the caller closes it. Its timeouts bound a round trip of up to 4,000 counters

	// Group names the root's group. All roots of a group keep the same counters. Rendezvous
	// hashing of a counter's key among the groups' names chooses its group, so each of n groups
	// keeps about 1/n of the counters. All processes need the same groups: a key has its quota
	// once more in each group where a process counts it. If no root names a group, there is one.
	Group string
}

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// Sync is the time between two syncs, from 10 ms to a minute. If zero,
	// DefaultSync. All processes need the same interval.
	Sync time.Duration

	// Low is the part of a bucket's capacity up to which all requests pass, from 0 to
	// 1. If zero, 1: the capacity itself decides.
	Low float64

	// Lows overrides Low for single policies, by their names.
	Lows map[string]float64

	// MaxKeys is the maximum number of keys counted in memory, from 64. Each takes about
	// 360 bytes with one limit and one root, whatever its length. A further key evicts, of a
	// few others, the key that has used the least of its quota. If all of them have
	// used it up, the new key is counted together with others: up to 64 quotas of each
	// policy and place among a request's charges of it, in all processes. If zero,
	// DefaultMaxKeys.
	MaxKeys int

	// Prefix begins every Redis key. If empty, "weir-sync:".
	Prefix string

	// Clock is the clock of the throttler in front. If nil, clock.System.
	Clock clock.Clock

	// Observer receives each sync, as a round trip, and whether the root answered. If nil,
	// weirlog.Default(), which logs when a root stops answering and when it answers again.
	Observer observe.Observer
}

// Backend is a driver.Backend that counts in this process, and agrees on the counts with
// other processes. It is safe for concurrent use. Close it.
type Backend struct {
	opts    Options
	perCall int   // counters
	began   int64 // ms since the epoch

	names       keyed.Hasher
	stripes     [keyed.Stripes]stripe
	aggregators []*aggregator // ordered by group
	stats       counters
	resets      resets
	swept       int // index of the stripe that is swept next

	closed  context.Context
	cancel  context.CancelFunc
	syncing sync.WaitGroup
}

var _ driver.Joiner = (*Backend)(nil)

// New returns a Backend that agrees with others at roots. It doesn't dial: while no root
// answers, each process decides alone. Errors are about arguments, and wrap quota.ErrInvalid.
func New(roots []Root, options *Options) (*Backend, error) {
	o := *cmp.Or(options, new(Options))
	if err := o.complete(); err != nil {
		return nil, err
	}
	servers, err := dial(roots, o.Prefix, max(2*o.Sync, minTimeout))
	if err != nil {
		return nil, err
	}
	b := newBackend(servers, &o)
	b.start()
	return b, nil
}

func newBackend(servers []server, o *Options) *Backend {
	b := &Backend{opts: *o, perCall: perCall, names: keyed.NewHasher(), began: time.Now().UnixMilli()}
	groups := groupsOf(servers)
	for _, g := range groups.groups {
		for i, s := range g.servers {
			b.aggregators = append(b.aggregators, &aggregator{server: s, group: g, index: i, list: g.first + i, resend: resend{part: parts}})
		}
	}
	for i := range b.stripes {
		b.stripes[i].init(&b.names, i, groups, &b.opts)
	}
	b.closed, b.cancel = context.WithCancel(context.Background())
	return b
}

// complete fills in the defaults, and returns an error if o is invalid.
func (o *Options) complete() error {
	o.Sync, o.Low, o.MaxKeys = cmp.Or(o.Sync, DefaultSync), cmp.Or(o.Low, 1), cmp.Or(o.MaxKeys, DefaultMaxKeys)
	o.Prefix, o.Clock = cmp.Or(o.Prefix, "weir-sync:"), cmp.Or[clock.Clock](o.Clock, clock.System{})
	o.Observer = weirlog.Ensure(o.Observer)
	for name, low := range o.Lows {
		if !(low > 0 && low <= 1) {
			return invalid.Errorf("synced: Lows[%q] is %v; it must be above 0 and at most 1", name, low)
		}
	}
	switch {
	case o.Sync < 10*time.Millisecond || o.Sync > time.Minute:
		return invalid.Errorf("synced: Sync is %v; it must be from 10ms to 1m, or 0 for %v", o.Sync, DefaultSync)
	case !(o.Low > 0 && o.Low <= 1):
		return invalid.Errorf("synced: Low is %v; it must be above 0 and at most 1, or 0 for 1", o.Low)
	case o.MaxKeys < keyed.Stripes:
		return invalid.Errorf("synced: MaxKeys is %d; it must be %d or more, or 0 for %d", o.MaxKeys, keyed.Stripes, DefaultMaxKeys)
	}
	return nil
}

// low returns Low for the policy of that name.
func (o *Options) low(policy string) float64 {
	if low, ok := o.Lows[policy]; ok {
		return low
	}
	return o.Low
}

func (b *Backend) start() {
	for _, a := range b.aggregators {
		b.syncing.Go(func() { b.syncUntilClosed(a) })
	}
	b.syncing.Go(func() { every.Do(b.closed, sweepEvery, func() { b.sweep() }) })
}

// Close sends the units that have not been sent, and ends the syncs. It tries for up to two seconds,
// or two syncs, if the root answered the last sync, and otherwise once.
func (b *Backend) Close() {
	b.cancel()
	b.syncing.Wait()
}

// Take implements driver.Backend. It makes no call.
func (b *Backend) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.decide(ctx, r, true)
}

// Peek implements driver.Backend. It makes no call: if this process is asked about a count
// for the first time, the units of other processes are known after the next sync.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.decide(ctx, r, false)
}

func (b *Backend) decide(ctx context.Context, r driver.Request, charge bool) (d driver.Decision, err error) {
	if err := ctx.Err(); err != nil {
		return d, err
	}
	if err := supported(r.Charges()); err != nil {
		return d, err
	}
	d = driver.NewDecision(r)
	charges := d.Charges()
	if len(charges) == 0 {
		d.Allowed = true
		return d, nil
	}
	first, locked := b.lock(charges)
	defer b.unlock(locked)
	found := b.find(first, charges, r.Now, nil)
	results, i := d.Results(), 0
	for n, c := range found {
		d.Degraded = d.Degraded || c.group.isSilent()
		mode := charges[n].Mode
		for k := range c.policy.Limits {
			c.counts[k].evaluate(&c.limits[k], mode.Asks(charges[n].Cost), r.Now, &results[i])
			if mode == quota.AtMost { // the used units determine how many fit
				c.counts[k].report(&c.limits[k], r.Now, &results[i])
			}
			i++
		}
	}
	d.Grant()
	charges, i = d.Charges(), 0
	for n, c := range found {
		if d.Allowed && charge {
			c.addToFormer(charges[n].Cost, r.Now, r.Now)
		}
		for k := range c.policy.Limits {
			if d.Allowed && charge {
				c.counts[k].add(&c.limits[k], charges[n].Cost, r.Now)
				results[i].Mark = c.counts[k].mark(&c.limits[k], r.Now)
				results[i].Mark.Note = c.note()
			}
			c.counts[k].report(&c.limits[k], r.Now, &results[i])
			i++
		}
	}
	return d, nil
}

// HasReceipt implements driver.Receiptless. No synced charge has a receipt.
func (*Backend) HasReceipt(*driver.Decision) error {
	return invalid.Errorf("synced: a count that processes agree on has no receipts: settle in the process that took")
}

// Settle implements driver.Backend. It makes no call.
func (b *Backend) Settle(ctx context.Context, st driver.Settlement) (d driver.Decision, err error) {
	if err := ctx.Err(); err != nil {
		return d, err
	}
	if st.Once {
		return d, b.HasReceipt(&st.Charged)
	}
	r := st.Charged.Request
	takenAt := r.Now
	r.Now = st.Now
	if err := supported(r.Charges()); err != nil {
		return d, err
	}
	if st.PauseUntil > 0 {
		return d, invalid.Errorf("synced: policy %q is synced, and cannot be paused; make it exact", r.Charges()[0].Policy.Name)
	}
	d = driver.NewDecision(r)
	d.Allowed = true
	charges, results, i := d.Charges(), d.Results(), 0
	if len(charges) == 0 {
		return d, nil
	}
	first, locked := b.lock(charges)
	defer b.unlock(locked)
	for n, c := range b.find(first, charges, r.Now, &st.Charged) {
		d.Degraded = d.Degraded || c.group.isSilent()
		change, charged := st.Costs[n]-charges[n].Cost, st.Charged.ResultsOf(n)
		if change > 0 || c.hasCharge(&charged[0].Mark) {
			c.addToFormer(change, takenAt, r.Now)
		}
		for k := range c.policy.Limits {
			l, units, mark := &c.limits[k], change, charged[k].Mark
			switch {
			case change >= 0:
			case !c.hasCharge(&mark):
				units = 0
			default:
				units = -min(-change, c.counts[k].undrained(l, mark, r.Now))
			}
			c.counts[k].add(l, units, r.Now)
			c.counts[k].report(&c.limits[k], r.Now, &results[i])
			i++
		}
	}
	return d, nil
}

// Reset implements driver.Backend. It makes no call: the count begins again in this process, and
// in the others when they hear of it, within two syncs. These also drop the units that they admitted
// until then and have not sent. A refund of an earlier charge does nothing. A key that this process
// counts together with others begins again in the others alone.
func (b *Backend) Reset(ctx context.Context, r driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	charges := r.Charges()
	if err := supported(charges); err != nil {
		return err
	}
	first, locked := b.lock(charges)
	defer b.unlock(locked)
	for n, c := range b.find(first, charges, r.Now, nil) {
		if c.pooled {
			c = b.stripeFor(c).outside(&charges[n], r.Now)
		}
		c.reset(max(r.Now, c.resetAt+1), -1, r.Now)
		c.isReset = true
	}
	return nil
}

// Raise makes the token buckets of c at least as full as in results, which another backend
// returned for c's limits at now. Other processes learn of it with the next units that this
// process sends. Raise doesn't change windows.
func (b *Backend) Raise(c quota.Charge, now int64, results []driver.Result) {
	r := driver.NewRequest(now, c)
	if supported(r.Charges()) != nil {
		return
	}
	first, locked := b.lock(r.Charges())
	defer b.unlock(locked)
	for _, found := range b.find(first, r.Charges(), now, nil) {
		for k := range found.policy.Limits {
			if found.limits[k].kind == bucket && k < len(results) && !found.pooled {
				found.counts[k].raise(&found.limits[k], float64(results[k].ResetAt))
			}
		}
	}
}

// Joins implements driver.Joiner. A Backend joins any partitions.
func (*Backend) Joins(driver.Request) bool { return true }

// Supports returns nil if charges of p, a valid policy, can be synced, or an error that
// wraps quota.ErrInvalid and says why not. Take returns that error, too.
func Supports(p *quota.Policy) error {
	if p == nil {
		return p.Validate()
	}
	for k := range p.Limits {
		if reason := unsupported(&p.Limits[k]); reason != "" {
			return invalid.Errorf("synced: policy %q: limit %d, %v, cannot be synced: %s", p.Name, k, p.Limits[k], reason)
		}
	}
	return nil
}

// supported returns nil if all of charges can be synced.
func supported(charges []quota.Charge) error {
	for i := range charges {
		if err := Supports(charges[i].Policy); err != nil {
			return err
		}
	}
	return nil
}

// unsupported returns why l cannot be synced, or "".
func unsupported(l *quota.Limit) string {
	switch {
	case l.Algorithm.Queues():
		return "a queue needs one order of all charges: it must be a token-bucket or an aligned fixed-window"
	case l.Algorithm.Drains():
		return ""
	case !l.Algorithm.ResetsAtOnce():
		return "its count is not a sum that processes can add to: it must be a token-bucket or an aligned fixed-window"
	case !l.Calendar.IsZero():
		return "a calendar's windows have no number since the epoch: it must be a token-bucket or an aligned fixed-window"
	case !l.Aligned:
		return "it must be aligned, because one process would have to open a window for all"
	}
	return ""
}
