package fallback

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
)

// Bounds of replays in the background.
const (
	replaysAtOnce = 8
	replayTimeout = 500 * time.Millisecond
)

// holder returns the outage that a count of r is held for, or nil.
func (b *Backend) holder(r *driver.Request) *outage {
	if b.held.Load() == 0 {
		return nil
	}
	charges := r.Charges()
	s := b.table.stripeOf(charges)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		if c := s.Get(b.table.names.Name(&charges[i])); c != nil && c.outage != nil {
			return c.outage
		}
	}
	return nil
}

// release replays the counts of r that are held here, so that the backend can decide. If it
// can't, it returns the outage that they are held for.
func (b *Backend) release(ctx context.Context, r *driver.Request) (*outage, error) {
	if b.held.Load() == 0 {
		return nil, nil
	}
	charges := r.Charges()
	s := b.table.stripeOf(charges)
	for i := range charges {
		for {
			c, inTime := s.whenReplayed(ctx, r.ServerTime, b.table.names.Name(&charges[i]))
			if c == nil || c.outage == nil {
				s.mu.Unlock()
				break
			}
			if o := c.outage; !inTime || !o.ready.Load() {
				s.mu.Unlock()
				return o, nil
			}
			err := b.replay(ctx, s, c, r)
			if err != nil && !failed(ctx, err) {
				return nil, err
			}
			if err != nil {
				return b.outageOf(err, r), nil
			}
		}
	}
	return nil, nil
}

// whenReplayed locks s when no replay of the count of that name is in progress, or when ctx is
// done or the server's time, if there is one, has passed. It returns the count, which may be nil.
func (s *stripe) whenReplayed(ctx context.Context, serverTime time.Duration, n keyed.Name) (c *count, inTime bool) {
	var late <-chan time.Time
	for {
		s.mu.Lock()
		c = s.Get(n)
		if c == nil || c.replaying == nil {
			return c, true
		}
		replaying := c.replaying
		s.mu.Unlock()
		if late == nil && serverTime > 0 {
			late = time.After(serverTime)
		}
		select {
		case <-replaying:
			continue
		case <-late:
		case <-ctx.Done():
		}
		s.mu.Lock()
		return s.Get(n), false
	}
}

// replay charges the units of c to the backend. If its outage is ready, the backend decides
// about c from then on. The caller holds s.mu, and replay releases it. After an error, units
// that may have been charged are not charged again, and others stay.
func (b *Backend) replay(ctx context.Context, s *stripe, c *count, r *driver.Request) error {
	u, charge, o := c.pending, c.charge, c.outage
	c.pending, c.replaying = units{}, make(chan struct{})
	s.mu.Unlock()

	var after driver.Decision
	var err error
	if u.cost > 0 && u.until > r.Now {
		after, err = b.wrapped.Settle(ctx, untaken(driver.NewRequest(u.instant, charge), []int64{u.cost}, r.ServerTime))
	} else {
		u.cost = 0
	}

	s.mu.Lock()
	defer s.unlock()
	switch {
	case err == nil:
		b.stats.Change(func(s *Stats) { s.HandedOver += u.cost })
	case driver.MayHaveCharged(err):
		b.stats.Change(func(s *Stats) { s.Lost += u.cost })
		s.notCharged(o, charge.Policy.Name)
		c.spend(charge.Policy.Limits, u.cost, b.processes, u.instant)
	default:
		for _, r := range c.refunds {
			r.subtract(&u)
		}
		c.pending = u.and(c.pending)
	}
	c.refunds = nil
	close(c.replaying)
	c.replaying = nil
	if c.pending.until > 0 {
		return err
	}
	state := c.state
	if len(after.Results()) > 0 && !after.Degraded {
		r := after.Request
		c.say(charge.Policy.Limits, r.Now, after.Results())
	}
	if c.state = state; o.ready.Load() {
		c.state = nil
		b.settled(c)
	}
	return err
}

// and returns u with later units.
func (u units) and(later units) units {
	if later.until == 0 {
		return u
	}
	return units{from: min(u.from, later.from), instant: later.instant, cost: u.cost + later.cost, until: max(u.until, later.until)}
}

// replayAll replays all counts that are held for o, while its shard answers and ctx is not
// done.
func (b *Backend) replayAll(ctx context.Context, o *outage) {
	var wg sync.WaitGroup
	defer wg.Wait()
	free := make(chan struct{}, replaysAtOnce)
	for i := range b.table.stripes {
		s := &b.table.stripes[i]
		for _, c := range s.heldBy(o) {
			if o.failed.Load() || ctx.Err() != nil { // the next look decides whether to continue
				return
			}
			free <- struct{}{}
			wg.Go(func() {
				defer func() { <-free }()
				b.replayOne(ctx, s, c, o)
			})
		}
	}
}

func (b *Backend) replayOne(ctx context.Context, s *stripe, c *count, o *outage) {
	// A call that is interrupted would leave open whether its charge was made.
	ctx = context.WithoutCancel(ctx)
	s.mu.Lock()
	if c.outage != o || c.replaying != nil || c.pending.until == 0 && !o.ready.Load() {
		s.mu.Unlock()
		return
	}
	r := driver.NewRequest(o.now(), c.charge)
	r.ServerTime = replayTimeout
	if err := b.replay(ctx, s, c, &r); err != nil {
		b.outageOf(err, &r)
	}
}

// heldBy returns the counts that are held for o.
func (s *stripe) heldBy(o *outage) []*count {
	s.mu.Lock()
	defer s.mu.Unlock()
	var held []*count
	for _, c := range s.Values() {
		if c.outage == o {
			held = append(held, c)
		}
	}
	return held
}

// holds reports whether counts are held for o.
func (b *Backend) holds(o *outage) bool {
	if b.held.Load() == 0 {
		return false
	}
	for i := range b.table.stripes {
		if len(b.table.stripes[i].heldBy(o)) > 0 {
			return true
		}
	}
	return false
}
