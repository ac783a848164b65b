package fallback

import (
	"math/bits"
	"sync"

	"github.com/weir-go/weir/internal/names"
	"github.com/weir-go/weir/quota"
)

// table has the counts. Those of one partition are in one part, under one lock.
type table struct {
	b         *Backend
	names     names.Hasher
	parts     []part
	maxWeight int // of a part
}

type part struct {
	mu     sync.Mutex
	counts map[names.Name]*count
	weight int
	_      [64]byte // keeps the next lock off this one's cache line
}

const (
	maxParts       = 64
	weightPerPart  = 256 // at least, that a lock is worth having for
	weightBytes    = 128 // of a key and a partition that count as one more
	lookAt         = 16  // counts of which one is chosen to make room
	lookTimes      = 4   // for a new one
	pooledPerPlace = 64  // pooled counts of a policy, in all parts
)

func (t *table) init(b *Backend, maxKeys int) {
	t.b = b
	t.names = names.NewHasher()
	parts := min(maxParts, max(maxKeys/weightPerPart, 1))
	parts = 1 << (bits.Len(uint(parts)) - 1)
	t.parts = make([]part, parts)
	t.maxWeight = maxKeys / parts
	for i := range t.parts {
		t.parts[i].counts = make(map[names.Name]*count)
	}
}

// partOf returns the part of charges, which have one partition.
func (t *table) partOf(charges []quota.Charge) *part {
	return &t.parts[t.names.Partition(charges[0].Partition)&uint64(len(t.parts)-1)]
}

// pooledName returns the name of the pooled count that replaces charge i of a
// decision, of a key with that name.
func (t *table) pooledName(c *quota.Charge, i int, of names.Name) names.Name {
	place := of[1] % uint64(max(pooledPerPlace/len(t.parts), 1))
	return t.names.Numbered(c.Policy.Name, uint64(i), place)
}

// add returns a new count of that name, for c, or nil if there is no room.
func (p *part) add(t *table, n names.Name, c *quota.Charge, now int64) *count {
	weight := 1 + (len(c.Key)+len(c.Partition))/weightBytes
	for range lookTimes {
		if p.weight+weight <= t.maxWeight {
			break
		}
		victim := p.leastUsed(now)
		if victim == nil {
			return nil
		}
		p.remove(t, victim)
	}
	if p.weight+weight > t.maxWeight {
		return nil
	}
	p.weight += weight
	added := &count{name: n, weight: weight}
	p.counts[n] = added
	return added
}

// leastUsed looks at some counts. It returns one that has ended or, if none has, the
// one that has used the smallest part of its quota, if none is used up.
func (p *part) leastUsed(now int64) *count {
	var least *count
	leastPart, looked := float32(1), 0
	for _, c := range p.counts { // in an order that changes each time
		if looked++; looked > lookAt {
			break
		}
		used := c.used
		if c.until <= now {
			used = -1
		}
		if used < leastPart && c.handing == nil && !c.busy && !c.pooled {
			least, leastPart = c, used
		}
	}
	return least
}

// remove removes c, and with it what was not handed over.
func (p *part) remove(t *table, c *count) {
	delete(p.counts, c.name)
	p.weight -= c.weight
	for _, u := range c.pending {
		t.b.stats.lost.Add(u.cost)
	}
	t.b.settled(c)
}

// pool returns the count of new keys that find no room.
func (p *part) pool(t *table, c *quota.Charge, i int, of names.Name) *count {
	n := t.pooledName(c, i, of)
	pooled := p.counts[n]
	if pooled == nil {
		pooled = &count{name: n, pooled: true}
		p.counts[n] = pooled
	}
	return pooled
}
