package synced

import (
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// stripe is a part of the table of counters. A background task holds its lock for at
// most keyed.AtOnce counters.
type stripe struct {
	mu sync.Mutex
	keyed.Stripe[*counter]
	hasher *keyed.Hasher
	groups *groups
	opts   *Options
	sync   int64                     // ms
	limits map[*quota.Policy][]limit // of recently charged policies
	dirty  [][]*counter              // by aggregator.list: the counters of its next sync
	found  []*counter                // result of the last find with this stripe as the first
	index  int                       // of the stripe
	added  int                       // counters since its last sweep
}

// counter contains the counts of a key under a policy, or of new keys together.
type counter struct {
	keyed.Entry
	root    name          // at roots
	stripe  uint8         // index
	pooled  bool          // new keys are counted here together
	isReset bool          // by this process, and no root has acknowledged it
	resets  uint8         // how often it was reset
	heard   uint32        // version of the recent resets that it has been compared with
	group   *group        // its roots keep the counter
	policy  *quota.Policy // as charged last
	limits  []limit       // its limits, and former ones of other lengths that still count
	counts  []count       // of each limit
	dirty   uint64        // the roots of its group with the counter in their lists
	lastAsk int64         // ms
	resetAt int64         // ms, of the last known reset by any process; 0 if there was none

	// watched is the time until which a contested counter stays in the lists, in ms: each
	// request for it adds one sync, and it stays as long as others add to it. A counter with
	// room costs one entry in each sync in which it is asked for.
	watched int64
}

// notePooled is in the driver.Mark.Note of a charge to a pooled counter. The other bits are the
// resets of the counter until then.
const notePooled = 1

func (c *counter) note() uint8 {
	if c.pooled {
		return notePooled
	}
	return c.resets << 1
}

// hasCharge reports whether a charge of that mark went to c, and c was not reset since.
func (c *counter) hasCharge(mark *driver.Mark) bool { return mark.Note == c.note() }

// watchMost is the longest time that a counter is watched after its last request, in ms, and that
// the others' rates hold without a reply.
const watchMost = 10_000

func (s *stripe) init(hasher *keyed.Hasher, index int, groups *groups, opts *Options) {
	s.hasher, s.index, s.Most = hasher, index, opts.MaxKeys/keyed.Stripes
	s.groups, s.opts, s.sync = groups, opts, opts.Sync.Milliseconds()
	s.limits = make(map[*quota.Policy][]limit)
	s.dirty = make([][]*counter, groups.roots)
}

func (b *Backend) stripeOf(partition string) *stripe {
	return &b.stripes[b.names.Partition(partition)%keyed.Stripes]
}

// lock locks the stripes of charges in the order of their indexes, so that decisions don't
// deadlock. It returns the first charge's stripe, and a bit for each stripe, by its index.
func (b *Backend) lock(charges []quota.Charge) (first *stripe, locked uint64) {
	first = b.stripeOf(charges[0].Partition)
	locked = 1 << first.index
	for i := range charges {
		if charges[i].Partition != charges[0].Partition {
			locked |= 1 << b.stripeOf(charges[i].Partition).index
		}
	}
	for mask := locked; mask != 0; mask &= mask - 1 {
		b.stripes[bits.TrailingZeros64(mask)].mu.Lock()
	}
	return first, locked
}

func (b *Backend) unlock(locked uint64) {
	for ; locked != 0; locked &= locked - 1 {
		b.stripes[bits.TrailingZeros64(locked)].mu.Unlock()
	}
}

// find returns the counters of charges, with their windows as of now, and notes that they
// were asked for. It adds counters that are missing. The first charge is in stripe first. If
// charged is not nil, it says which charges went to a pooled counter. The next call reuses
// the slice. The stripes are locked.
func (b *Backend) find(first *stripe, charges []quota.Charge, now int64, charged *driver.Decision) []*counter {
	first.found = first.found[:0]
	for i := range charges {
		charge, s := &charges[i], first
		if charge.Partition != charges[0].Partition {
			s = b.stripeOf(charge.Partition)
		}
		var c *counter
		if charged != nil && charged.ResultsOf(i)[0].Mark.Note&notePooled != 0 {
			c = s.getPooled(charge.Policy.Name, placeOf(charges, i))
		} else if n := s.hasher.Name(charge); s.Get(n) != nil {
			c = s.Get(n)
		} else if s.MakeRoom(1, func(c *counter) float64 { return c.rank(first.found, now) }, s.Remove) {
			c = s.newCounter(nameOf(charge), false)
			s.Add(n, 1, c)
			s.added++
		} else {
			c = s.getPooled(charge.Policy.Name, placeOf(charges, i))
		}
		if c.policy != charge.Policy {
			s.use(c, charge.Policy, now)
		}
		b.resets.apply(c, now)
		if c.dirty == 0 && now-c.lastAsk > watchMost {
			c.unwatch()
		}
		c.lastAsk = now
		c.watched = min(max(c.watched, now)+s.sync, now+watchMost)
		if c.dirty != c.group.roots {
			for r := range c.group.servers {
				s.markDirty(c, r)
			}
		}
		alone := c.group.alone.Load()
		for k := range c.policy.Limits {
			c.counts[k].roll(&c.limits[k], now)
			c.counts[k].alone = alone != 0
			if alone > c.counts[k].time {
				c.counts[k].isolate(&c.limits[k], now)
			}
		}
		first.found = append(first.found, c)
	}
	return first.found
}

func (s *stripe) newCounter(root name, pooled bool) *counter {
	return &counter{root: root, stripe: uint8(s.index), group: s.groups.choose(string(root[:])), pooled: pooled}
}

// outside returns a new counter of charge that is in no table, and goes to the roots.
func (s *stripe) outside(charge *quota.Charge, now int64) *counter {
	c := s.newCounter(nameOf(charge), false)
	s.use(c, charge.Policy, now)
	for r := range c.group.servers {
		s.markDirty(c, r)
	}
	return c
}

func (b *Backend) stripeFor(c *counter) *stripe { return &b.stripes[c.stripe] }

// markDirty adds c to the list of its group's root r.
func (s *stripe) markDirty(c *counter, r int) {
	if c.dirty&(1<<r) != 0 {
		return
	}
	list := c.group.first + r
	if len(s.dirty[list]) >= 2*s.Most {
		s.forgetRemoved(list)
	}
	s.dirty[list] = append(s.dirty[list], c)
	c.dirty |= 1 << r
}

// forgetRemoved removes evicted counters from a root's list: while the root doesn't answer,
// a flood of keys would make the list grow without bound.
func (s *stripe) forgetRemoved(list int) {
	s.dirty[list] = slices.DeleteFunc(s.dirty[list], (*counter).Removed)
}

// rank returns the part of a quota that c has used. It is keyed.Keep for the counters of the
// request, and for counters that have used up a quota: to forget one would give its key a
// second quota. If all are kept, new keys are counted together.
func (c *counter) rank(found []*counter, now int64) float64 {
	if slices.Contains(found, c) {
		return keyed.Keep
	}
	return c.fill(now)
}

// placeOf returns the place of charge i among those of its policy. A settlement finds it again,
// even if it is about more charges of other policies.
func placeOf(charges []quota.Charge, i int) (place int) {
	for k := range charges[:i] {
		if charges[k].Policy.Name == charges[i].Policy.Name {
			place++
		}
	}
	return place
}

// getPooled returns the counter of new keys while there is no room for their own: one for each
// policy, stripe and place. No two keys of one request are counted in the same one.
func (s *stripe) getPooled(policy string, place int) *counter {
	number := 1 + s.index*quota.MaxCharges + place
	n := s.hasher.Numbered(policy, uint64(number), 0)
	c := s.Get(n)
	if c == nil {
		c = s.newCounter(pooledName(policy, number), true)
		s.Add(n, 0, c)
	}
	return c
}

// use makes c count under the limits of p. The count of a limit is found by the algorithm
// and the window, as in stores, and continues under another quota. A limit without a count
// continues from the count of its algorithm with the nearest window. Counts of limits that p
// doesn't have live until they end.
func (s *stripe) use(c *counter, p *quota.Policy, now int64) {
	former := c.policy
	c.policy = p
	if former != nil && slices.Equal(former.Limits, p.Limits) {
		return
	}
	limits, counts := s.limitsOf(p), make([]count, len(p.Limits))
	roots := len(c.group.servers)
	views := make([]view, roots*len(counts))
	for k := range counts {
		l, count := &limits[k], &counts[k]
		i := nearest(c.limits, l)
		switch {
		case i >= 0 && c.limits[i].length == l.length:
			*count = c.counts[i]
			count.goOn(&c.limits[i])
			continue
		case i >= 0:
			count.begin(l, &c.counts[i], &c.limits[i], now)
		}
		count.views = views[k*roots : (k+1)*roots : (k+1)*roots]
	}
	for i := range c.counts {
		l, former := &c.limits[i], &c.counts[i]
		if l.kind == bucket {
			former.endsAt = roundUp(former.value(l, former.total), lastInstant)
		}
		if n := nearest(limits, l); (n < 0 || limits[n].length != l.length) && former.endsAt > now && len(counts) < 2*quota.MaxLimits {
			limits, counts = append(slices.Clip(limits), *l), append(counts, *former)
		}
	}
	c.limits, c.counts = limits, counts
}

// addToFormer adds units to the counts of former limits: other processes, or other requests
// of this one, may still decide under them. A refund of a charge, made at takenAt, goes only to
// a window that contains the charge's time.
func (c *counter) addToFormer(units, takenAt, now int64) {
	c.forgetFormer(now)
	for k := len(c.policy.Limits); k < len(c.counts); k++ {
		if l := &c.limits[k]; units > 0 || l.kind == window && l.windowAt(takenAt) == c.counts[k].window {
			c.counts[k].add(l, units, now)
		}
	}
}

// forgetFormer removes counts of former limits that would have ended by now without the
// units added under other limits.
func (c *counter) forgetFormer(now int64) {
	for k := len(c.counts) - 1; k >= len(c.policy.Limits); k-- {
		if c.counts[k].endsAt <= now {
			c.limits, c.counts = slices.Delete(c.limits, k, k+1), slices.Delete(c.counts, k, k+1)
		}
	}
}

// nearest returns the index of the limit of l's kind whose length is nearest to l's, by
// their ratio, or -1.
func nearest(limits []limit, l *limit) int {
	best, least := -1, math.Inf(1)
	for i := range limits {
		if apart := math.Abs(math.Log(float64(limits[i].length) / float64(l.length))); limits[i].kind == l.kind && apart < least {
			best, least = i, apart
		}
	}
	return best
}

// limitsMost is the maximum number of policies whose limits a stripe keeps for its counters.
const limitsMost = 64

// limitsOf returns the limits of p.
func (s *stripe) limitsOf(p *quota.Policy) []limit {
	limits := s.limits[p]
	if limits == nil {
		low := s.opts.low(p.Name)
		for i := range p.Limits {
			limits = append(limits, newLimit(&p.Limits[i], low, s.opts.Sync))
		}
		if len(s.limits) >= limitsMost {
			clear(s.limits)
		}
		s.limits[p] = limits
	}
	return limits
}

// isContested reports whether a limit may refuse soon: half of the units up to which all
// requests pass are used or, of a window so short that this process may be asked in a few of them
// only, are used of a window at the usual rates. The others' units matter to these counters even
// if this process has none to send.
func (c *counter) isContested(now int64) bool {
	for k := range c.counts {
		count, l := &c.counts[k], &c.limits[k]
		usual := 0.0
		if l.kind == window && l.ms <= watchMost {
			usual = (count.usual + count.local) * l.ms
		}
		if usual >= l.low/2 || count.used(l, now) >= l.low/2 && (l.kind == bucket || now < count.endsAt) {
			return true
		}
	}
	return false
}

// unwatch forgets the rates: no reply says whether they have changed.
func (c *counter) unwatch() {
	for k := range c.counts {
		c.counts[k].rate, c.counts[k].usual, c.counts[k].local = 0, 0, 0
	}
}

// fill returns the largest part of a quota that is used, or keyed.Keep if one has no unit
// left.
func (c *counter) fill(now int64) float64 {
	highest := 0.0
	for k := range c.counts {
		l := &c.limits[k]
		if l.kind == window && l.windowAt(now) > c.counts[k].window {
			continue
		}
		used := c.counts[k].used(l, now)
		if used+1 > float64(l.capacity)+l.slack {
			return keyed.Keep
		}
		highest = max(highest, used/float64(l.capacity))
	}
	return highest
}

// A stripe is swept when an eighth of its counters are new, so that sweeps cost no more than charges
// of new keys. Each second, one stripe is swept in any case.
const (
	sweepEvery  = time.Second
	sweepGrowth = 8
)

// sweep removes counters that were not asked for lately and count nothing. It returns how many it
// has looked at.
func (b *Backend) sweep() (looked int) {
	now := b.opts.Clock.Now().UnixMilli()
	for i := range b.stripes {
		s := &b.stripes[i]
		for end := s.sweepFrom(i == b.swept); end > 0; {
			s.mu.Lock()
			end = s.Sweep(end, func(c *counter) bool {
				looked++
				if c.dirty != 0 || c.lastAsk >= now-watchMost {
					return false
				}
				c.unwatch()
				return c.fill(now) <= 0
			})
			s.mu.Unlock()
		}
	}
	b.swept = (b.swept + 1) % len(b.stripes)
	return looked
}

// sweepFrom returns where a sweep of s begins: 0 if it needs none and it is not its turn.
func (s *stripe) sweepFrom(turn bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.Values())
	if !turn && s.added*sweepGrowth < max(n, 1) {
		return 0
	}
	s.added = 0
	return n
}
