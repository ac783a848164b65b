package shares

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/quota"
)

// stripe is a part of the table of keys.
type stripe struct {
	mu sync.Mutex
	keyed.Stripe[*entry]
	evicted int64
	found   []*entry // by the last find
}

// entry is the buckets of a key under a policy.
type entry struct {
	keyed.Entry
	policy  *policy
	hash    uint64 // of the key and the partition, the same in all processes
	shares  *shares
	limits  []share // of shares, for this key
	buckets []bucket
}

// keyHash returns the same in all processes, and never 0. A client that makes two keys
// collide makes them share a division, not a bucket.
func keyHash(c *quota.Charge) uint64 {
	var d xxhash.Digest
	d.Reset()
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(len(c.Key)))
	_, _ = d.Write(size[:])
	_, _ = d.WriteString(c.Key)
	if c.Partition != c.Key {
		_, _ = d.WriteString(c.Partition)
	}
	return max(d.Sum64(), 1)
}

// get returns the entry of c under the shares in force, a new one if there was none, which
// is kept or not. Its caller holds the lock. If there is no room, a new one takes the
// place of another that is not in s.found. If there is none, there are a few too many for a
// while.
func (b *Backend) get(s *stripe, c *quota.Charge, now int64, keep bool) *entry {
	n := b.names.Of(c)
	e := s.Get(n)
	if e == nil {
		e = &entry{policy: b.byName[c.Policy.Name], hash: keyHash(c)}
		e.begin()
		if keep {
			s.MakeRoom(1, func(e *entry) float64 { return s.rank(e, now) }, s.evict)
			s.Add(n, 1, e)
		}
	}
	e.update()
	return e
}

// rank is the part of a share that e has used. Those that the request is about are kept.
func (s *stripe) rank(e *entry, now int64) float64 {
	if slices.Contains(s.found, e) {
		return keyed.Keep
	}
	return e.used(now)
}

func (s *stripe) evict(e *entry) {
	s.Remove(e)
	s.evicted++
}

// begin gives e, which was never asked, what it has.
func (e *entry) begin() {
	e.shares = e.policy.shares.Load()
	own := e.shares.of(e.hash)
	e.limits, e.buckets = own.limits, slices.Clone(own.fresh)
}

// update moves e to the shares in force, through all that were in force since it was last
// updated.
func (e *entry) update() {
	for next := e.shares.next.Load(); next != nil; next = e.shares.next.Load() {
		limits := next.of(e.hash).limits
		for i := range e.buckets {
			e.buckets[i].move(&e.limits[i], &limits[i], next.since)
		}
		e.shares, e.limits = next, limits
	}
}

// used returns the largest part of a share's capacity that is used.
func (e *entry) used(now int64) float64 {
	most := 0.0
	for i := range e.buckets {
		s := &e.limits[i]
		if s.capacity == 0 {
			return 1
		}
		most = max(most, 1-float64(s.whole(s.look(e.buckets[i], now), now))/float64(s.capacity))
	}
	return most
}

const sweepEvery = 5 * time.Second

// sweep removes entries that have all that they can have, and updates the others, so that
// no shares of long ago are kept for them.
func (b *Backend) sweep() {
	for i := range b.stripes {
		for end := math.MaxInt; end > 0; {
			end = b.sweepSome(&b.stripes[i], end)
		}
	}
}

// sweepSome sweeps some entries before place end, and returns where to go on.
func (b *Backend) sweepSome(s *stripe, end int) (next int) {
	b.moving.Lock()
	now := b.now()
	b.moving.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Sweep(end, func(e *entry) bool {
		e.update()
		return e.used(now) <= 0
	})
}
