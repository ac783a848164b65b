package leased

import (
	"context"
	"errors"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
)

// renew takes a lease for l, and answers r from it. It is called with the stripe's lock
// held, and releases it. Other takes of the key wait for it.
func (b *Backend) renew(ctx context.Context, s *stripe, l *lease, r driver.Request, cost int64) (driver.Decision, error) {
	if !b.renewals.TryRLock() { // Close is returning all leases, and needs the stripe's lock
		s.mu.Unlock()
		return b.ask(ctx, r)
	}
	defer b.renewals.RUnlock()
	defer s.mu.Unlock()
	d, total, units, err := b.takeLease(ctx, s, l, &r, cost)
	if driver.MayHaveCharged(err) {
		share := cost
		if l.suffices(r.Now, cost) {
			share = 0
		}
		l.tally.lose(units, share)
		b.stats.stranded.Add(units - share)
	}
	switch {
	case err != nil:
	case d.Degraded: // the leased counts were not asked
		return d, nil
	case l.Removed(), l.limits != b.limitsOf(r.Charges()): // it was reset or evicted, or they changed, during the call
		return b.answerOnce(s, &r, d, cost), nil
	default:
		b.learn(s, l, &d, total, units)
		if d.Allowed {
			return l.answer(&r, &d, cost), nil
		}
	}
	if l.suffices(r.Now, cost) {
		return l.spend(&r, cost), nil
	}
	return d, err
}

// takeLease renews l: it calls lease with the stripe's lock released.
func (b *Backend) takeLease(ctx context.Context, s *stripe, l *lease, r *driver.Request, cost int64) (d driver.Decision, total, units int64, err error) {
	renewal := &renewal{done: make(chan struct{})}
	l.renewal, units, err = renewal, b.size(l, r.Now, cost), errPanicked
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		l.renewal, renewal.err, renewal.abandoned = nil, err, ctx.Err() != nil
		close(renewal.done)
	}()
	return b.lease(ctx, r, l.Name(), units, cost)
}

// learn updates l from d, a take of units for it that reports that total of the tally.
func (b *Backend) learn(s *stripe, l *lease, d *driver.Decision, total, units int64) {
	if !d.Allowed {
		units = 0
	}
	found := l.findLost(d, total, units)
	b.stats.found.Add(found)
	if d.Allowed {
		b.stats.leases.Add(1)
		if l.held > 0 && !sameWindows(&l.granted, d) {
			s.expire(l)
		}
		l.grant(d)
	}
	l.note(d)
	l.held += found
	s.holding[l] = struct{}{}
}

// answerOnce answers r by d, a take of a lease that answers no later request.
func (b *Backend) answerOnce(s *stripe, r *driver.Request, d driver.Decision, cost int64) driver.Decision {
	if !d.Allowed {
		return d
	}
	b.stats.leases.Add(1)
	l := &lease{}
	l.grant(&d)
	answer := l.answer(r, &d, cost)
	s.refund(l)
	return answer
}

var errPanicked = errors.New("leased: the other backend panicked")

// lease takes units, or as many as there are, but at least cost, and charges them to the
// tally's count of n, too. It returns that count's total and the units of the last take. A
// refusal is about cost.
func (b *Backend) lease(ctx context.Context, r *driver.Request, n keyed.Name, units, cost int64) (d driver.Decision, total, granted int64, err error) {
	for {
		var joint driver.Decision
		joint, err = b.ask(ctx, withTally(r, n, units))
		d, total = withoutTally(&joint, len(r.Charges()))
		if err != nil || d.Allowed && !d.Degraded || units == cost || len(d.Charges()) == 0 {
			return d, total, units, err
		}
		if d.Degraded { // nothing is leased of counts that are not shared
			if d.Allowed {
				st := driver.Settlement{Now: r.Now, ServerTime: r.ServerTime, Charged: joint, Costs: make([]int64, len(joint.Charges()))}
				_, _ = b.wrapped.Settle(ctx, st) // if it fails, the units count until the window ends
			}
			units = cost
			continue
		}
		units = max(min(free(&d), units/2), cost)
	}
}

// size returns how many units to lease.
func (b *Backend) size(l *lease, now, cost int64) int64 {
	if b.closed.Err() != nil || l.tally.failed {
		return cost // no more can be lost while the other backend doesn't answer
	}
	ahead := b.ahead
	if l.firstEnd > now {
		ahead = min(ahead, l.firstEnd-now)
	}
	return max(min(l.demand.perSecond(now)*ahead/1000, l.free/maxShare), cost)
}

// maxShare bounds a lease to an eighth of the free units. Eight processes that all hold a
// lease of a nearly empty quota hold single units of it.
const maxShare = 8
