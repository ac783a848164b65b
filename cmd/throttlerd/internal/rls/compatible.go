package rls

import (
	"context"
	"math"
	"slices"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
)

// prepare says how WEIR_COMPATIBLE charges: every count on its own, whatever the others have. A
// count that a request names again is charged again, after the first time.
func (c *call) prepare(ctx context.Context) error {
	cached := c.cached()
	for i := range c.items {
		item := &c.items[i]
		if item.kind != reports && item.kind != checks {
			continue
		}
		for j := range c.items[:i] {
			if peer := &c.items[j]; item.isCountOf(peer) {
				item.turn = max(item.turn, peer.turn+1)
			}
		}
		c.turns = max(c.turns, item.turn)
		if cached { // as STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT says
			item.kind = checks
		}
	}
	if !c.server.answers.StopIncrement || cached {
		return nil
	}
	return c.chargeOnlyOver(ctx)
}

// isCountOf reports whether two items are about one count.
func (item *item) isCountOf(peer *item) bool {
	return (peer.kind == reports || peer.kind == checks) && item.key == peer.key && item.policy.Name == peer.policy.Name && item.policy.Limits[0].Window == peer.policy.Limits[0].Window
}

// cached takes the items whose counts the local cache has as over. It reports whether the others
// are charged nothing then.
func (c *call) cached() bool {
	cache, found := c.server.cache, false
	if cache == nil {
		return false
	}
	now := c.server.throttler.Clock().Now().UnixMilli()
	for i := range c.items {
		item := &c.items[i]
		if item.kind != reports && item.kind != checks || !cache.contains(count{item.policy.Name, item.key}, now) {
			continue
		}
		found = true
		item.kind, item.exceeded = overBefore, true
		c.refuse(item, unknown)
		item.counters.refused(float64(item.cost), c.isShadow(item))
		item.counters.cached.Add(float64(item.cost))
		c.status(i, 0, (untilUnit(item.limit, now)+999)/1000)
	}
	return found && c.server.answers.StopIncrement
}

// chargeOnlyOver makes checks of all items, except those that will be over their limit, if there
// are any: STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT.
func (c *call) chargeOnlyOver(ctx context.Context) error {
	exceeding := make([]bool, len(c.items))
	for i := range c.items {
		item := &c.items[i]
		if item.kind != reports && item.kind != checks {
			continue
		}
		d, err := c.throttler.Peek(ctx, throttler.Charge{Policy: item.policy, Key: item.key})
		if err != nil {
			return err
		}
		if d.NumLimits() > 0 {
			s := d.Limit(0)
			exceeding[i] = s.Used+item.cost > item.capacity(&s)
		}
	}
	if !slices.Contains(exceeding, true) {
		return nil
	}
	for i := range c.items {
		if item := &c.items[i]; item.kind == reports && !exceeding[i] {
			item.kind = checks
		}
	}
	return nil
}

// capacity returns how many hits s has room for: 0 if every request is refused, because the
// policy that counts them has 1.
func (item *item) capacity(s *decision.Status) int64 {
	if item.limit.RequestsPerUnit == 0 && !item.changed {
		return 0
	}
	return s.Limit.Capacity()
}

// count adds the hits of an item, after which used are charged, to its counters: those over the
// limit, those near it, and those within it.
func (c *call) count(item *item, s *decision.Status) {
	n, capacity, used := item.counters, uint64(item.capacity(s)), uint64(s.Used)
	near := uint64(math.Floor(float64(float32(capacity) * float32(c.server.answers.NearLimitRatio))))
	hits := uint64(item.cost)
	before := used - hits // wraps around if the hits were not charged, as in envoyproxy/ratelimit
	if !item.exceeded {
		n.fitting.Add(float64(hits))
		switch {
		case used <= near:
		case before >= near:
			n.near.Add(float64(hits))
		default:
			n.near.Add(float64(used - near))
		}
		return
	}
	exceeded := hits
	if before < capacity {
		exceeded = used - capacity
		n.near.Add(float64(capacity - max(near, before)))
	}
	n.refused(float64(exceeded), c.isShadow(item))
	if cache := c.server.cache; cache != nil && (s.Limit.Aligned || !s.Limit.Calendar.IsZero()) {
		cache.add(count{item.policy.Name, item.key}, s.ResetAt.UnixMilli())
	}
}
