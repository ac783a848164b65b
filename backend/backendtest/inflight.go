package backendtest

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func inFlightCases() []testCase {
	const s = time.Second
	held := throttler.Limit{Quota: 3, Window: 30 * s, Algorithm: throttler.InFlight}
	core := charging(held)
	points := charging(throttler.Limit{Quota: 20, Window: time.Minute}, held)
	return []testCase{
		{
			name:        "a decision holds one unit, whatever it costs, until it is settled or refunded",
			explanation: inFlightCounts,
			steps: []step{
				{at: 0, take: core(1), as: "a", want: room(1, 2, 30*s)},
				{at: s, take: core(7), as: "b", want: room(2, 1, 31*s)},
				{at: s, take: core(2), as: "c", want: room(3, 0, 31*s)},
				{at: 2 * s, take: core(1), want: full(3, 0, 31*s, 3*s)},
				{at: 2 * s, refund: "a", want: room(2, 1, 31*s)},
				{at: 3 * s, settle: "b", costs: []int64{9}, want: room(1, 2, 31*s)},
				{at: 4 * s, take: core(1), as: "d", want: room(2, 1, 34*s)},
				{at: 4 * s, settle: "d", costs: []int64{1}, want: room(1, 2, 31*s)},
				{at: 5 * s, settle: "c", costs: []int64{1}, want: room(0, 3, 5*s)},
			},
		},
		{
			name:        "with a rate, all or nothing, and what is settled keeps the rate's cost",
			explanation: allOrNothing,
			steps: []step{
				{at: 0, take: points(5), as: "a", want: all(room(5, 15, 60*s), room(1, 2, 30*s))},
				{at: 0, take: points(5), as: "b", want: all(room(10, 10, 60*s), room(2, 1, 30*s))},
				{at: 0, take: points(11), want: all(full(10, 10, 60*s, 60*s), room(2, 1, 30*s))},
				{at: 0, take: points(5), as: "c", want: all(room(15, 5, 60*s), room(3, 0, 30*s))},
				{at: 0, take: points(1), want: all(room(15, 5, 60*s), full(3, 0, 30*s, s))},
				{at: s, settle: "a", costs: []int64{5}, want: all(room(15, 5, 60*s), room(2, 1, 30*s))},
				{at: s, settle: "b", costs: []int64{2}, want: all(room(12, 8, 60*s), room(1, 2, 30*s))},
				{at: s, settle: "c", costs: []int64{8}, want: all(room(15, 5, 60*s), room(0, 3, s))},
				{at: 2 * s, take: points(1), as: "d", want: all(room(16, 4, 60*s), room(1, 2, 32*s))},
				{at: 2 * s, refund: "d", want: all(room(15, 5, 60*s), room(0, 3, 2*s))},
			},
		},
		{
			name:        "a unit lapses a lease after it was taken, and what is settled then gives nothing back",
			explanation: inFlightCounts,
			steps: []step{
				{at: 0, take: core(1), as: "a", want: room(1, 2, 30*s)},
				{at: 10 * s, take: core(1), as: "b", want: room(2, 1, 40*s)},
				{at: 30 * s, take: core(1), as: "c", want: room(2, 1, 60*s)},
				{at: 30 * s, refund: "a", want: room(2, 1, 60*s)},
				{at: 39*s + 999*time.Millisecond, peek: core(1), want: room(2, 1, 60*s)},
				{at: 40 * s, peek: core(1), want: room(1, 2, 60*s)},
			},
		},
		{
			name:        "a shorter lease: what is held stays held",
			explanation: looserOfBoth,
			steps: []step{
				{at: 0, take: core(1), as: "a", want: room(1, 2, 30*s)},
				{at: 0, take: core(1), as: "b", want: room(2, 1, 30*s)},
				{at: 10 * s, process: 1, take: charging(throttler.Limit{Quota: 3, Window: 5 * s, Algorithm: throttler.InFlight})(1), as: "c", want: room(3, 0, 30*s)},
				{at: 10 * s, take: core(1), want: full(3, 0, 30*s, 11*s)},
				{at: 11 * s, process: 1, refund: "c", want: room(2, 1, 30*s)},
				{at: 12 * s, refund: "a", want: room(1, 2, 30*s)},
			},
		},
		{name: "with another lease, a lapsed unit needs room", explanation: looserOfBoth, run: lapsesUnderAnotherLease},
		{name: "units that are renewed under a longer lease count under a shorter one", explanation: looserOfBoth, run: countsUnderAnotherLease},
		{name: "a renewed unit is held for one more lease, and taken again if it has lapsed and there is room", explanation: inFlightRenews, run: renewsHeld},
		{name: "in a policy with a rate, and in two partitions", explanation: inFlightRenews, run: renewsTogether},
		{name: "if one of several is not held any more, none is", explanation: inFlightRenews, run: renewsAllOrNone},
		{name: "a charge in mode Check has no unit to renew", explanation: inFlightRenews, run: renewsNoneOfChecks},
	}
}

// leases is two processes with two leases of a limit of 3.
type leases struct {
	*throttler.Throttler
	clock       *clock.Manual
	long, short *throttler.Policy
}

func newLeases(backend driver.Backend, long, short time.Duration) *leases {
	policy := func(lease time.Duration) *throttler.Policy {
		return &throttler.Policy{Name: "held", Limits: []throttler.Limit{{Quota: 3, Window: lease, Algorithm: throttler.InFlight}}}
	}
	c := clock.NewManual(t0)
	return &leases{throttler.New(backend, &throttler.Options{Clock: c}), c, policy(long), policy(short)}
}

// take takes so many units under p, of which so many are allowed, and returns those.
func (l *leases) take(ctx context.Context, p *throttler.Policy, n, allowed int) (decisions []throttler.Decision, err error) {
	for range n {
		d, err := l.Take(ctx, p.Charge("k"))
		if err != nil {
			return nil, err
		}
		if d.Allowed {
			decisions = append(decisions, d)
		}
	}
	if len(decisions) != allowed {
		return nil, fmt.Errorf("at t0+%v: %d of %d units were taken under %v; want %d", l.clock.Now().Sub(t0), len(decisions), n, p.Limits[0], allowed)
	}
	return decisions, nil
}

func lapsesUnderAnotherLease(ctx context.Context, backend driver.Backend) error {
	l := newLeases(backend, 15*time.Second, 10*time.Second)
	lapsed, err := l.take(ctx, l.long, 1, 1)
	if err != nil {
		return err
	}
	l.clock.Advance(20 * time.Second)
	if _, err := l.take(ctx, l.short, 4, 3); err != nil {
		return err
	}
	if d, err := l.Renew(ctx, lapsed[0]); err != nil || d.Allowed {
		return fmt.Errorf("renewed beside 3 of 3: %v, %w", d, err)
	}
	return nil
}

func countsUnderAnotherLease(ctx context.Context, backend driver.Backend) error {
	l := newLeases(backend, 30*time.Second, 3*time.Second)
	held, err := l.take(ctx, l.long, 2, 2)
	if err != nil {
		return err
	}
	for range 4 {
		l.clock.Advance(9500 * time.Millisecond)
		added, err := l.take(ctx, l.short, 3, 1)
		if err != nil {
			return err
		}
		for _, d := range held {
			if renewed, err := l.Renew(ctx, d); err != nil || !renewed.Allowed {
				return fmt.Errorf("at t0+%v: renewed: %v, %w", l.clock.Now().Sub(t0), renewed, err)
			}
		}
		if _, err := l.Settle(ctx, added[0]); err != nil {
			return err
		}
	}
	for _, d := range held {
		if _, err := l.Settle(ctx, d); err != nil {
			return err
		}
	}
	_, err = l.take(ctx, l.short, 4, 3)
	return err
}

// renewsHeld has a decision that is renewed, one that is not, and one that comes too late.
func renewsHeld(ctx context.Context, backend driver.Backend) error {
	c := clock.NewManual(t0)
	t := throttler.New(backend, &throttler.Options{Clock: c})
	charge := (&throttler.Policy{Name: "held", Limits: []throttler.Limit{{Quota: 2, Window: 30 * time.Second, Algorithm: throttler.InFlight}}}).Charge("k")
	held := make(map[string]throttler.Decision)
	for _, s := range []struct {
		name    string
		after   time.Duration
		ask     func(context.Context, throttler.Decision) (throttler.Decision, error) // nil: a take
		of, as  string
		allowed bool
		used    int64
		resetAt time.Duration
	}{
		{name: "taken", as: "kept", allowed: true, used: 1, resetAt: 30 * time.Second},
		{name: "and another", as: "lost", allowed: true, used: 2, resetAt: 30 * time.Second},
		{"renewed", 20 * time.Second, t.Renew, "kept", "kept", true, 2, 50 * time.Second},
		{"renewed again", 20 * time.Second, t.Renew, "kept", "kept", true, 1, 70 * time.Second},
		{"lapsed, with room", 0, t.Renew, "lost", "late", true, 2, 70 * time.Second},
		{"after all have lapsed", 30 * time.Second, nil, "", "", true, 1, 100 * time.Second},
		{"and another", 0, nil, "", "other", true, 2, 100 * time.Second},
		{"lapsed, without room", time.Second, t.Renew, "late", "refused", false, 2, 100 * time.Second},
		{"what was not renewed is settled", 0, settled(t), "late", "", true, 2, 100 * time.Second},
		{"renewed after it was settled", 0, t.Renew, "late", "", true, 2, 70 * time.Second}, // as it was
		{"what has lapsed is settled", 0, settled(t), "kept", "", true, 2, 100 * time.Second},
		{"settled", 0, settled(t), "other", "", true, 1, 100 * time.Second},
	} {
		c.Advance(s.after)
		var d throttler.Decision
		var err error
		if s.ask == nil {
			d, err = t.Take(ctx, charge)
		} else {
			d, err = s.ask(ctx, held[s.of])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if l := d.Limit(0); d.Allowed != s.allowed || l.Used != s.used || !l.ResetAt.Equal(t0.Truncate(time.Millisecond).Add(s.resetAt)) {
			return fmt.Errorf("%s: allowed %t, %d used until %v; want %t, %d, %v", s.name, d.Allowed, l.Used, l.ResetAt.Sub(t0), s.allowed, s.used, s.resetAt)
		}
		held[s.as] = d
	}
	refused := held["refused"]
	if retry := refused.RetryAt(); !retry.Equal(refused.At().Add(time.Second)) {
		return fmt.Errorf("a renewal that is refused says %v, want a second later", retry)
	}
	return nil
}

// settled returns a function that settles all of a decision.
func settled(t *throttler.Throttler) func(context.Context, throttler.Decision) (throttler.Decision, error) {
	return func(ctx context.Context, d throttler.Decision) (throttler.Decision, error) { return t.Settle(ctx, d) }
}

// renewsTogether renews a decision about keys of two partitions, under a policy that has a
// rate, too, until another decision takes the room of one key.
func renewsTogether(ctx context.Context, backend driver.Backend) error {
	c := clock.NewManual(t0)
	t := throttler.New(backend, &throttler.Options{Clock: c})
	held := throttler.Limit{Quota: 1, Window: 30 * time.Second, Algorithm: throttler.InFlight}
	p := &throttler.Policy{Name: "both", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour}, held}}
	d, err := t.Take(ctx, p.Charge("alice"), p.Charge("acme"))
	if err != nil {
		return err
	}
	used := func(want ...int64) error {
		now, err := t.Peek(ctx, p.Charge("alice"), p.Charge("acme"))
		if err != nil {
			return err
		}
		var got []int64
		for _, l := range now.Limits() {
			got = append(got, l.Used)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("at t0+%v: used %v, want %v", c.Now().Sub(t0), got, want)
		}
		return nil
	}
	for range 3 {
		c.Advance(20 * time.Second)
		if renewed, err := t.Renew(ctx, d); err != nil || !renewed.Allowed {
			return fmt.Errorf("renewed: %v, %w", renewed, err)
		}
		if err := used(1, 1, 1, 1); err != nil {
			return err
		}
	}
	c.Advance(40 * time.Second) // all has lapsed
	if d, err := t.Take(ctx, p.Charge("acme")); err != nil || !d.Allowed {
		return fmt.Errorf("taken: %v, %w", d, err)
	}
	if renewed, err := t.Renew(ctx, d); err != nil || renewed.Allowed {
		return fmt.Errorf("renewed without room: %v, %w", renewed, err)
	}
	if err := used(1, 0, 2, 1); err != nil { // neither unit is held
		return err
	}
	if _, err := t.Refund(ctx, d); err != nil {
		return err
	}
	return used(0, 0, 1, 1)
}

// renewsAllOrNone renews a decision that has lost one of its two units.
func renewsAllOrNone(ctx context.Context, backend driver.Backend) error {
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	p := &throttler.Policy{Name: "held", Limits: []throttler.Limit{{Quota: 1, Window: 30 * time.Second, Algorithm: throttler.InFlight}}}
	d, err := t.Take(ctx, p.Charge("alice"), p.Charge("bob").Within("alice"))
	if err != nil {
		return err
	}
	if err := t.Reset(ctx, p.Charge("bob").Within("alice")); err != nil {
		return err
	}
	if second, err := t.Take(ctx, p.Charge("bob").Within("alice")); err != nil || !second.Allowed {
		return fmt.Errorf("taken after a reset: %v, %w", second, err)
	}
	if renewed, err := t.Renew(ctx, d); err != nil || renewed.Allowed {
		return fmt.Errorf("renewed without room: %v, %w", renewed, err)
	}
	if free, err := t.Take(ctx, p.Charge("alice")); err != nil || !free.Allowed {
		return fmt.Errorf("the other unit: %v, %w; want that it was given back", free, err)
	}
	return nil
}

// renewsNoneOfChecks renews decisions that take a unit of alice and find room for one of bob,
// in one partition and in two, while bob has room and when not.
func renewsNoneOfChecks(ctx context.Context, backend driver.Backend) error {
	held := throttler.Limit{Quota: 1, Window: 30 * time.Second, Algorithm: throttler.InFlight}
	now := clock.NewManual(t0)
	t := throttler.New(backend, &throttler.Options{Clock: now})
	for _, p := range []*throttler.Policy{
		{Name: "held", Limits: []throttler.Limit{held}},
		{Name: "both", Limits: []throttler.Limit{held, {Quota: 10, Window: time.Hour}}},
	} {
		for _, partition := range []string{"alice", "bob"} {
			c := &checked{t, ctx, now, p.Charge("alice"), p.Charge("bob").Within(partition)}
			if err := c.run(); err != nil {
				return fmt.Errorf("policy %s, bob in partition %s: %w", p.Name, partition, err)
			}
		}
	}
	return nil
}

// checked is a Throttler, and the charges that it takes and checks.
type checked struct {
	*throttler.Throttler
	ctx        context.Context
	clock      *clock.Manual
	alice, bob throttler.Charge
}

func (c *checked) run() error {
	check := c.bob
	check.Mode = quota.Check
	alone, err := c.Take(c.ctx, check)
	if err != nil {
		return err
	}
	if err := c.renew(alone, 0, 0); err != nil {
		return fmt.Errorf("bob alone: %w", err)
	}
	d, err := c.Take(c.ctx, c.alice, check)
	if err != nil {
		return err
	}
	if err := c.renew(d, 1, 0); err != nil {
		return fmt.Errorf("bob has room: %w", err)
	}
	second, err := c.Take(c.ctx, c.bob)
	if err != nil {
		return err
	}
	if err := c.renew(d, 1, 1); err != nil {
		return fmt.Errorf("bob is full: %w", err)
	}
	if _, err := c.Settle(c.ctx, d); err != nil {
		return err
	}
	if err := c.used(0, 1); err != nil {
		return fmt.Errorf("settled: %w", err)
	}
	_, err = c.Settle(c.ctx, second)
	return err
}

// renew renews d a second later, and expects so many units of each in flight.
func (c *checked) renew(d throttler.Decision, alice, bob int64) error {
	c.clock.Advance(time.Second)
	if after, err := c.Renew(c.ctx, d); err != nil || !after.Allowed {
		return fmt.Errorf("renewed: %v, %w", after, err)
	}
	return c.used(alice, bob)
}

func (c *checked) used(alice, bob int64) error {
	now, err := c.Peek(c.ctx, c.alice, c.bob)
	if err != nil {
		return err
	}
	first, second := now.Limit(0).Used, now.Limit(now.NumLimits()/2).Used
	if first != alice || second != bob {
		return fmt.Errorf("at t0+%v: alice has %d in flight and bob %d; want %d and %d", c.clock.Now().Sub(t0), first, second, alice, bob)
	}
	return nil
}
