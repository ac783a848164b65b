package fallback

import (
	"math/bits"
	"sync"

	"github.com/weir-go/weir/internal/names"
	"github.com/weir-go/weir/quota"
)

// table has the counts. All of one partition are in one stripe, under one lock.
type table struct {
	b         *Backend
	names     names.Hasher
	stripes   []stripe
	maxWeight int // of a stripe
}

type stripe struct {
	mu     sync.Mutex
	counts map[names.Name]*count
	weight int
	_      [64]byte // keeps the next lock off this one's cache line
}

const (
	maxStripes      = 64
	weightPerStripe = 256 // at least, that a lock is worth having for
	weightBytes     = 128 // of a key and a partition that count as one more
	lookAt          = 16  // counts among which one is chosen to make room
	lookTimes       = 4   // for a new one
	pooledPerPlace  = 64  // pooled counts of a policy, in all stripes
)

func (t *table) init(b *Backend, maxKeys int) {
	t.b = b
	t.names = names.NewHasher()
	stripes := min(maxStripes, max(maxKeys/weightPerStripe, 1))
	stripes = 1 << (bits.Len(uint(stripes)) - 1)
	t.stripes = make([]stripe, stripes)
	t.maxWeight = maxKeys / stripes
	for i := range t.stripes {
		t.stripes[i].counts = make(map[names.Name]*count)
	}
}

// stripeOf returns the stripe of charges, which have one partition.
func (t *table) stripeOf(charges []quota.Charge) *stripe {
	return &t.stripes[t.names.Partition(charges[0].Partition)&uint64(len(t.stripes)-1)]
}

// pooledName returns the name of the pooled count that replaces charge i of a
// decision, of a key with that name.
func (t *table) pooledName(c *quota.Charge, i int, of names.Name) names.Name {
	place := of[1] % uint64(max(pooledPerPlace/len(t.stripes), 1))
	return t.names.Numbered(c.Policy.Name, uint64(i), place)
}

// add returns a new count of that name, for c, or nil if there is no room.
func (s *stripe) add(t *table, n names.Name, c *quota.Charge, now int64) *count {
	weight := 1 + (len(c.Key)+len(c.Partition))/weightBytes
	for range lookTimes {
		if s.weight+weight <= t.maxWeight {
			break
		}
		victim := s.leastUsed(now)
		if victim == nil {
			return nil
		}
		s.remove(t, victim)
	}
	if s.weight+weight > t.maxWeight {
		return nil
	}
	s.weight += weight
	added := &count{name: n, weight: weight}
	s.counts[n] = added
	return added
}

// leastUsed looks at some counts. It returns one that has ended or, if none has, the
// one that has used the smallest part of its quota, if none is used up.
func (s *stripe) leastUsed(now int64) *count {
	var least *count
	leastPart, looked := float32(1), 0
	for _, c := range s.counts { // in an order that changes each time
		if looked++; looked > lookAt {
			break
		}
		used := c.used
		if c.until <= now {
			used = -1
		}
		if used < leastPart && c.replaying == nil && !c.busy && !c.pooled {
			least, leastPart = c, used
		}
	}
	return least
}

// remove removes c, and with it what was not handed over.
func (s *stripe) remove(t *table, c *count) {
	delete(s.counts, c.name)
	s.weight -= c.weight
	for _, u := range c.pending {
		t.b.stats.lost.Add(u.cost)
	}
	t.b.settled(c)
}

// pool returns the count of new keys that find no room.
func (s *stripe) pool(t *table, c *quota.Charge, i int, of names.Name) *count {
	n := t.pooledName(c, i, of)
	pooled := s.counts[n]
	if pooled == nil {
		pooled = &count{name: n, pooled: true}
		s.counts[n] = pooled
	}
	return pooled
}
