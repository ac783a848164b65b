package fallback

import (
	"math/bits"
	"sync"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/quota"
)

// table holds the counts. All counts of a partition are in one stripe, under one lock.
type table struct {
	b       *Backend
	names   keyed.Hasher
	stripes []stripe
}

type stripe struct {
	mu sync.Mutex
	keyed.Stripe[*count]
	reports []func() // to make after mu is released, because an observer may ask about counts
	_       [64]byte // keeps the next lock off this one's cache line
}

const (
	weightPerStripe = 256 // the least weight of a stripe with its own lock
	weightBytes     = 128 // of a key and a partition that add 1 to the weight
	pooledPerPlace  = 64  // pooled counts of a policy at one place of decisions, in all stripes
)

func (t *table) init(b *Backend, maxKeys int) {
	t.b = b
	t.names = keyed.NewHasher()
	stripes := min(keyed.Stripes, max(maxKeys/weightPerStripe, 1))
	stripes = 1 << (bits.Len(uint(stripes)) - 1)
	t.stripes = make([]stripe, stripes)
	for i := range t.stripes {
		t.stripes[i].Most = maxKeys / stripes
	}
}

// unlock releases mu, and makes the reports.
func (s *stripe) unlock() {
	reports := s.reports
	s.reports = nil
	s.mu.Unlock()
	for _, report := range reports {
		report()
	}
}

// notCharged notes a report of units held for o that are not handed over. The caller holds mu.
func (s *stripe) notCharged(o *outage, policy string) {
	s.reports = append(s.reports, func() { o.report(policy, observe.ResultNotCharged) })
}

// stripeOf returns the stripe of charges, which have one partition.
func (t *table) stripeOf(charges []quota.Charge) *stripe {
	return &t.stripes[t.names.Partition(charges[0].Partition)&uint64(len(t.stripes)-1)]
}

// pooledName returns the name of the pooled count for c, charge i of a decision. hash is the
// name of c's own count.
func (t *table) pooledName(c *quota.Charge, i int, hash keyed.Name) keyed.Name {
	place := hash[1] % uint64(max(pooledPerPlace/len(t.stripes), 1))
	return t.names.Numbered(c.Policy.Name, uint64(i), place)
}

// add returns a new count of that name, for c, or nil if there is no room.
func (s *stripe) add(t *table, n keyed.Name, c *quota.Charge, now int64) *count {
	weight := 1 + (len(c.Key)+len(c.Partition))/weightBytes
	rank := func(c *count) float64 { return c.rank(now) }
	if !s.MakeRoom(weight, rank, func(c *count) { s.forget(t, c) }) {
		return nil
	}
	added := new(count)
	s.Add(n, weight, added)
	return added
}

// rank is the part of its quota that c has used, and less if it has ended. Counts that have
// used up their quota, or are in use, are kept.
func (c *count) rank(now int64) float64 {
	switch {
	case c.busy || c.replaying != nil || c.until > now && c.used >= 1:
		return keyed.Keep
	case c.until <= now:
		return -1
	}
	return float64(c.used)
}

// forget removes c, with the units that were not handed over.
func (s *stripe) forget(t *table, c *count) {
	s.Remove(c)
	if n := c.pending.cost; n > 0 {
		t.b.stats.Change(func(s *Stats) { s.Lost += n })
		s.notCharged(c.outage, c.charge.Policy.Name)
	}
	t.b.settled(c)
}

// pool returns the count of new keys that find no room.
func (s *stripe) pool(t *table, c *quota.Charge, i int, hash keyed.Name) *count {
	n := t.pooledName(c, i, hash)
	pooled := s.Get(n)
	if pooled == nil {
		pooled = &count{pooled: true}
		s.Add(n, 0, pooled)
	}
	return pooled
}
