package shares

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/quota"
)

// stripe is a part of the table of keys.
type stripe struct {
	mu sync.Mutex
	keyed.Stripe[*entry]
	evicted int64
	found   []*entry // by the last find
}

// entry contains the buckets of a key under a policy.
type entry struct {
	keyed.Entry
	policy  *policy
	hash    uint64 // of the key and the partition, the same in all processes
	shares  *shares
	limits  []share // of shares, for this key
	buckets []bucket
}

// keyHash returns a hash that is the same in all processes, and never 0. If a client makes
// two keys collide, they share a division, not a bucket.
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

// get returns the entry of c under the shares in force. If there is no entry, get makes one,
// and adds it to the table if keep is true. If there is no room, it first evicts an entry that
// is not in s.found, or else the table has a few entries too many for a while. Its caller
// holds the lock.
func (b *Backend) get(s *stripe, c *quota.Charge, now int64, keep bool) *entry {
	n := b.names.Name(c)
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

// rank returns the part of a share that e has used, or keyed.Keep if the request is about e.
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

// begin gives e, which was never asked for, the fresh buckets of the shares in force.
func (e *entry) begin() {
	e.shares = e.policy.shares.Load()
	share := e.shares.shareOf(e.hash)
	e.limits, e.buckets = share.limits, slices.Clone(share.fresh)
}

// update moves e to the shares in force, through all shares that were in force since its last
// update.
func (e *entry) update() {
	for next := e.shares.next.Load(); next != nil; next = e.shares.next.Load() {
		limits := next.shareOf(e.hash).limits
		for i := range e.buckets {
			e.buckets[i].move(&e.limits[i], &limits[i], next.since)
		}
		e.shares, e.limits = next, limits
	}
}

// used returns the largest part of a share's capacity that is used.
func (e *entry) used(now int64) float64 {
	greatest := 0.0
	for i := range e.buckets {
		s := &e.limits[i]
		if s.capacity == 0 {
			return 1
		}
		greatest = max(greatest, 1-float64(s.wholeUnits(s.capped(e.buckets[i], now), now))/float64(s.capacity))
	}
	return greatest
}

const sweepEvery = 5 * time.Second

// sweep removes entries with full buckets, and updates the others, so that old shares are
// not kept for them.
func (b *Backend) sweep() {
	for i := range b.stripes {
		for end := math.MaxInt; end > 0; {
			end = b.sweepSome(&b.stripes[i], end)
		}
	}
}

// sweepSome sweeps some entries before place end, and returns where to continue.
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
