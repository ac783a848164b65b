package rls

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
)

// charge decides about all items. What is enforced is all or nothing: a request that is
// refused charges nothing, but for what it reports, which has been used already.
func (c *call) charge(ctx context.Context) error {
	for i := range c.items {
		it := &c.items[i]
		if it.kind == refusesAll {
			it.over = true
			c.refuse(it, never)
			it.counters.refused(float64(it.cost), c.isShadow(it))
			c.status(i, 0, 0)
		}
	}
	if err := c.decide(ctx, checks, c.peek); err != nil {
		return err
	}
	if err := c.decide(ctx, reports, c.take); err != nil {
		return err
	}
	err := c.decide(ctx, enforced, c.takeOrPeek)
	if err == nil {
		err = c.observe(ctx)
	}
	if err == nil && c.quotasAreOver() {
		c.refused = true
		c.retryAt = max(c.retryAt, c.quotaRetryAt)
	}
	if err == nil && c.refused {
		c.server.giveBack(ctx, c.taken)
		c.taken = c.taken[:0]
	}
	return err
}

func (c *call) take(ctx context.Context, charges ...quota.Charge) (throttler.Decision, error) {
	return c.server.throttler.Take(ctx, charges...)
}

func (c *call) peek(ctx context.Context, charges ...quota.Charge) (throttler.Decision, error) {
	return c.server.throttler.Peek(ctx, charges...)
}

// takeOrPeek charges, unless the request is refused already.
func (c *call) takeOrPeek(ctx context.Context, charges ...quota.Charge) (throttler.Decision, error) {
	if c.refused {
		return c.peek(ctx, charges...)
	}
	d, err := c.take(ctx, charges...)
	if d.Allowed {
		c.taken = append(c.taken, d)
	}
	return d, err
}

// observe decides about each item that is in shadow_mode or quota_mode, as if it were
// alone.
func (c *call) observe(ctx context.Context) error {
	for i := range c.items {
		if c.items[i].kind != observed {
			continue
		}
		c.group, c.charges = append(c.group[:0], i), c.charges[:0]
		if err := c.ask(ctx, observed, c.takeOrPeek); err != nil {
			return err
		}
	}
	return nil
}

// quotasAreOver reports whether there are items in quota_mode, and all are over.
func (c *call) quotasAreOver() bool {
	some := false
	for i := range c.items {
		it := &c.items[i]
		if it.kind == free || !c.isQuota(it) {
			continue
		}
		if some = true; !it.over || c.isShadow(it) {
			return false
		}
	}
	return some
}

type ask func(ctx context.Context, charges ...quota.Charge) (throttler.Decision, error)

// decide asks about all items of a kind, as many at once as one decision can have: a count under
// two limits, as two overrides of the same entries may bring, is in two.
func (c *call) decide(ctx context.Context, k kind, ask ask) error {
	c.group, c.charges = c.group[:0], c.charges[:0]
	work := 0
	for i := range c.items {
		it := &c.items[i]
		if it.kind != k {
			continue
		}
		w := it.policy.Limits[0].Work()
		if len(c.group) == quota.MaxCharges || work+w > quota.MaxWork && len(c.group) > 0 || c.hasOther(it) {
			if err := c.ask(ctx, k, ask); err != nil {
				return err
			}
			c.group, c.charges, work = c.group[:0], c.charges[:0], 0
		}
		c.group = append(c.group, i)
		work += w
	}
	if len(c.group) == 0 {
		return nil
	}
	return c.ask(ctx, k, ask)
}

// hasOther reports whether the group has the count of it, an override, under another limit.
func (c *call) hasOther(it *item) bool {
	return it.rule == nil && slices.ContainsFunc(c.group, func(i int) bool {
		other := &c.items[i]
		return other.key == it.key && other.policy.Name == it.policy.Name && other.policy.Limits[0] != it.policy.Limits[0]
	})
}

// ask asks about the items of the group, and writes what it is answered to them.
func (c *call) ask(ctx context.Context, k kind, ask ask) error {
	for _, i := range c.group {
		it := &c.items[i]
		charge := quota.Charge{Policy: it.policy, Key: it.key, Cost: it.cost}
		if k == reports {
			charge.Mode = quota.Record
		}
		c.charges = append(c.charges, charge)
	}
	d, err := ask(ctx, c.charges...)
	if err != nil {
		return err
	}
	c.degraded = c.degraded || d.Degraded
	if d.NumLimits() == 0 { // decided without counts: an outage, and its policy is open
		return nil
	}
	for n, i := range c.group {
		s := d.Limit(c.place(&d.Decision, n, i))
		c.decided(i, k, &s, d.At().UnixMilli())
	}
	return nil
}

// place returns which limit of d is the one of item i, the n-th of the group: charges to
// one count are one.
func (c *call) place(d *decision.Decision, n, i int) int {
	all := d.Charges()
	if len(all) == len(c.group) {
		return n
	}
	for j := range all {
		if all[j].Key == c.items[i].key && all[j].Policy.Name == c.items[i].policy.Name {
			return j
		}
	}
	panic(errors.New("rls: a decision is not about what was asked"))
}

// decided writes what a decision at now says of item i.
func (c *call) decided(i int, k kind, s *decision.Status, now int64) {
	it := &c.items[i]
	switch k {
	case checks, reports: // all may be used
		it.over = s.Used > s.Limit.Capacity()
	default:
		it.over = s.Refused
	}
	if it.over {
		c.refuse(it, comesBack(s))
	}
	c.status(i, s.Remaining, untilReset(s, now))
	it.counters.count(it, s, c.server.answers.NearLimitRatio, c.isShadow(it))
}

// Retry times, in ms since the epoch.
const (
	never   = math.MaxInt64
	unknown = 0
)

// refuse notes that it is over its limit, and when there is room for it again. Of quotas the
// first that has room is enough.
func (c *call) refuse(it *item, retryAt int64) {
	switch {
	case c.isShadow(it):
	case !c.isQuota(it):
		c.refused, c.retryAt = true, max(c.retryAt, retryAt)
	case c.quotaRetryAt == unknown || retryAt < c.quotaRetryAt:
		c.quotaRetryAt = retryAt
	}
}

// comesBack returns when s, which is over, has room again, in ms since the epoch, or never.
func comesBack(s *decision.Status) int64 {
	switch {
	case s.Refused && s.RetryAt.Equal(decision.Never):
		return never
	case s.Refused:
		return s.RetryAt.UnixMilli()
	case !s.NextAt.IsZero():
		return s.NextAt.UnixMilli()
	}
	return s.ResetAt.UnixMilli()
}
