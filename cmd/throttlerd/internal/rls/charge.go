package rls

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/quota"
)

// charge decides about all items. Enforced items are all charged, or none: a refused request
// charges only the items that it reports, whose hits have been used already.
func (c *call) charge(ctx context.Context) error {
	for i := range c.items {
		item := &c.items[i]
		switch item.kind {
		case refusesAll:
			item.exceeded = true
			now := c.server.throttler.Clock().Now().UnixMilli()
			ms := untilUnit(item.limit, now)
			c.refuse(item, now+ms)
			item.counters.refused(float64(item.cost), c.isShadow(item))
			c.status(i, 0, (ms+999)/1000)
		case blocked:
			c.block(ctx, i)
		case free, overBefore, checks, enforced, reports, observed:
		}
	}
	if c.server.answers.Compatible {
		if err := c.prepare(ctx); err != nil {
			return err
		}
	}
	for ; c.turn <= c.turns; c.turn++ {
		for _, step := range []struct {
			kind kind
			ask  ask
		}{
			{checks, c.throttler.Peek}, {reports, c.throttler.Take}, {enforced, c.takeOrPeek(c.throttler)}, {observed, c.takeOrPeek(c.throttler)},
		} {
			if err := c.decide(ctx, step.kind, step.ask); err != nil {
				return err
			}
		}
	}
	if c.quotasAreOver() {
		c.refused = true
		c.retryAt = max(c.retryAt, c.quotaRetryAt)
	}
	if c.refused {
		c.server.giveBackLater(ctx, c.server.giveBack(ctx, c.charged)) // what could not be refunded at once
		c.charged = c.charged[:0]
	}
	return nil
}

// block refuses item i, and reports that like a throttler with the table.
func (c *call) block(ctx context.Context, i int) {
	item, start := &c.items[i], time.Now()
	now := c.server.throttler.Clock().Now().UnixMilli()
	retryAt := cmp.Or(item.override.RetryAt(), forever)
	item.exceeded = true
	c.refuse(item, retryAt)
	item.counters.refused(float64(item.cost), false)
	reset := int64(0)
	if retryAt != forever {
		reset = (retryAt - now + 999) / 1000
	}
	c.status(i, 0, reset)
	if item.cost > 0 && !c.server.answers.ShadowMode {
		c.server.observer.Decided(ctx, observe.Decided{
			Op: observe.OpTake, Outcome: observe.OutcomeRefused, Policy: item.policy.Name, Limit: 0, Binding: blockedLimit{},
			Key: item.key, RetryAt: timeOf(retryAt), Start: start, Duration: time.Since(start),
		})
	}
}

// blockedLimit is the limit of a blocked key, in words.
type blockedLimit struct{}

func (blockedLimit) MarshalText() ([]byte, error) { return []byte("blocked"), nil }

func timeOf(ms int64) time.Time {
	if ms == forever {
		return decision.Never
	}
	return time.UnixMilli(ms).UTC()
}

// takeOrPeek returns an ask that charges, unless the request is refused already.
func (c *call) takeOrPeek(t *throttler.Throttler) ask {
	return func(ctx context.Context, charges ...quota.Charge) (throttler.Decision, error) {
		if c.refused {
			return t.Peek(ctx, charges...)
		}
		d, err := t.Take(ctx, charges...)
		if d.Allowed {
			c.charged = append(c.charged, d)
		}
		return d, err
	}
}

// quotasAreOver reports whether there are items in quota_mode, and all are over.
func (c *call) quotasAreOver() bool {
	present := false
	for i := range c.items {
		item := &c.items[i]
		if !c.isQuota(item) || item.kind == free && (!c.server.answers.Compatible || item.isUnlimited()) {
			continue
		}
		if present = true; !item.exceeded || c.isShadow(item) {
			return false
		}
	}
	return present
}

type ask func(ctx context.Context, charges ...quota.Charge) (throttler.Decision, error)

// decide asks about all items of a kind, with as many in each decision as it can hold. Two
// decisions are needed for a count under two limits, as two overrides of the same entries may
// bring. Each observed item is decided alone.
func (c *call) decide(ctx context.Context, k kind, ask ask) error {
	var group []int // of items that are decided at once
	work := 0
	for i := range c.items {
		item := &c.items[i]
		if item.kind != k || item.turn != c.turn {
			continue
		}
		w := 0
		for j := range item.policy.Limits {
			w += item.policy.Limits[j].Work()
		}
		full := k == observed || len(group) == quota.MaxCharges || work+w > quota.MaxWork || c.hasOther(group, item)
		if full && len(group) > 0 {
			if err := c.ask(ctx, k, group, ask); err != nil {
				return err
			}
			group, work = group[:0], 0
		}
		group = append(group, i)
		work += w
	}
	if len(group) == 0 {
		return nil
	}
	return c.ask(ctx, k, group, ask)
}

// hasOther reports whether group contains the count of item, an override, under another limit.
func (c *call) hasOther(group []int, item *item) bool {
	return item.rule == nil && slices.ContainsFunc(group, func(i int) bool {
		peer := &c.items[i]
		return peer.key == item.key && peer.policy.Name == item.policy.Name && !slices.Equal(peer.policy.Limits, item.policy.Limits)
	})
}

// ask asks about the items of group, and stores the answer in them.
func (c *call) ask(ctx context.Context, k kind, group []int, ask ask) error {
	charges := make([]quota.Charge, len(group))
	for n, i := range group {
		item := &c.items[i]
		charges[n] = quota.Charge{Policy: item.policy, Key: item.key, Cost: item.cost}
		if k == reports {
			charges[n].Mode = quota.Record
		}
	}
	if k == observed && c.isShadow(&c.items[group[0]]) {
		ask = c.takeOrPeek(c.server.quiet)
	}
	d, err := ask(ctx, charges...)
	if err != nil {
		return err
	}
	c.degraded = c.degraded || d.Degraded
	if d.NumLimits() == 0 { // decided without counts: an outage, and its policy is open
		return nil
	}
	for n, i := range group {
		first := place(&d.Decision, len(group), n, &charges[n])
		position, s, retryAt := first, d.Limit(first), int64(unknown)
		item := &c.items[i]
		for j := first; j < first+len(item.policy.Limits); j++ {
			o := d.Limit(j)
			exceeded := c.isOver(item, &o)
			if exceeded {
				retryAt = max(retryAt, comesBack(&o))
			}
			if exceeded && !item.exceeded || exceeded == item.exceeded && o.BindsBefore(&s) {
				position, s, item.exceeded = j, o, exceeded
			}
		}
		c.decided(i, &s, retryAt, d.At().UnixMilli())
		if c.server.answers.Compatible {
			c.count(item, &s)
		} else if !item.exceeded {
			item.counters.allowed(item.cost, s.Used-d.Driver().Results()[position].More, s.Limit.Capacity(), c.server.answers.NearLimitRatio)
		}
	}
	return nil
}

// isOver reports whether a limit is over. Checks and reports are over if it is exceeded, and not
// if it is used up.
func (c *call) isOver(item *item, s *decision.Status) bool {
	if item.kind == checks || item.kind == reports {
		return s.Used > item.capacity(s)
	}
	return s.Refused
}

// place returns the index in d of the first limit of c, the n-th of the charges asked: a decision
// merges charges to the same count.
func place(d *decision.Decision, requested, n int, c *quota.Charge) (first int) {
	list := d.Charges()
	for j := range list {
		if len(list) == requested && j == n || len(list) != requested && list[j].Key == c.Key && list[j].Policy.Name == c.Policy.Name {
			return first
		}
		first += len(list[j].Policy.Limits)
	}
	panic(errors.New("rls: a decision is about other charges than those asked for"))
}

// decided stores the result of a decision at now in item i: the status of the limit that binds,
// and when all limits that are over have room.
func (c *call) decided(i int, s *decision.Status, retryAt, now int64) {
	item := &c.items[i]
	if item.exceeded {
		c.refuse(item, retryAt)
		if !c.server.answers.Compatible {
			item.counters.refused(float64(item.cost), c.isShadow(item))
		}
	}
	if item.changed {
		item.limit = descriptors.LimitOf(&s.Limit, item.limit.GetName())
	}
	c.status(i, min(s.Remaining, item.capacity(s)), untilReset(s, now))
}

// Retry times, in ms since the epoch.
const (
	forever = math.MaxInt64
	unknown = 0
)

// refuse records that an item is over its limit, and when the limit has room again. In quota_mode,
// the first limit that has room is enough.
func (c *call) refuse(item *item, retryAt int64) {
	switch {
	case c.isShadow(item): // a block refuses in any mode
	case !c.isQuota(item):
		c.refused, c.retryAt = true, max(c.retryAt, retryAt)
	case c.quotaRetryAt == unknown || retryAt < c.quotaRetryAt:
		c.quotaRetryAt = retryAt
	}
}

// comesBack returns when s, which is over, has room again, in ms since the epoch, or never.
func comesBack(s *decision.Status) int64 {
	switch {
	case s.Refused && s.RetryAt.Equal(decision.Never):
		return forever
	case s.Refused:
		return s.RetryAt.UnixMilli()
	case !s.NextAt.IsZero():
		return s.NextAt.UnixMilli()
	}
	return s.ResetAt.UnixMilli()
}
