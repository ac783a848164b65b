package shares

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/quota"
)

// stripe is a part of the table of keys. Decisions about one limit hold its lock together,
// and take from a bucket by compare-and-swap. What concerns several buckets at once holds
// it alone.
type stripe struct {
	mu      sync.RWMutex
	byName  map[keyed.Name]*entry
	all     []*entry // in no order
	most    int
	next    int // where to look for a victim, in all
	evicted int64
	found   []*entry // by the last find of several
}

// entry is the buckets of a key under a policy.
type entry struct {
	name    keyed.Name
	policy  *policy
	hash    uint64 // of the key and the partition, the same in all processes
	index   int    // in all
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

// newEntry returns the entry of c, a charge under p, as it would begin.
func (b *Backend) newEntry(n keyed.Name, c *quota.Charge, p *policy) *entry {
	e := &entry{name: n, policy: p, hash: keyHash(c)}
	e.begin()
	return e
}

// get returns the entry of c, a new one if there was none, under the shares in force. Its
// caller holds the lock alone. If there is no room, a new one takes the place of another
// that is not in s.found. If there is none, there are a few too many for a while.
func (b *Backend) get(s *stripe, c *quota.Charge, now int64) *entry {
	n, p := b.names.Of(c), b.byName[c.Policy.Name]
	e := s.byName[n]
	if e == nil {
		if len(s.all) >= s.most {
			if victim := s.victim(now); victim != nil {
				s.remove(victim)
				s.evicted++
			}
		}
		e = b.newEntry(n, c, p)
		e.index = len(s.all)
		s.byName[n] = e
		s.all = append(s.all, e)
	}
	e.update()
	return e
}

// begin gives e, which was never asked, what it has.
func (e *entry) begin() {
	e.shares = e.policy.shares.Load()
	own := e.shares.of(e.hash)
	e.limits, e.buckets = own.limits, make([]bucket, len(own.fresh))
	for i := range e.buckets {
		e.buckets[i].word.Store(own.fresh[i].word.Load())
	}
}

// at returns when a request that read the clock at now is decided: not before the shares in
// force were, so that keys need not wait for a clock that was set back.
func (e *entry) at(now int64) int64 { return max(now, e.shares.since.Load()) }

// current reports whether e is under the shares in force.
func (e *entry) current() bool { return e.shares == e.policy.shares.Load() }

// update moves e to the shares in force, through all that were in force since it was last
// updated. Its caller holds the lock alone.
func (e *entry) update() {
	for next := e.shares.next.Load(); next != nil; next = e.shares.next.Load() {
		limits := next.of(e.hash).limits
		for i := range e.buckets {
			e.buckets[i].move(&e.limits[i], &limits[i], next.since.Load())
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
		most = max(most, 1-float64(s.whole(e.buckets[i].peek(s, now), now))/float64(s.capacity))
	}
	return most
}

// victim returns the one of a few entries that has used the least, or nil if all of
// them are in s.found.
func (s *stripe) victim(now int64) *entry {
	var victim *entry
	least := 0.0
	for range 16 {
		s.next = (s.next + 1) % len(s.all)
		e := s.all[s.next]
		if used := e.used(now); (victim == nil || used < least) && !slices.Contains(s.found, e) {
			victim, least = e, used
		}
	}
	return victim
}

func (s *stripe) remove(e *entry) {
	delete(s.byName, e.name)
	last := len(s.all) - 1
	s.all[e.index] = s.all[last]
	s.all[e.index].index = e.index
	s.all[last] = nil
	s.all = s.all[:last]
}

const (
	sweepEvery = 5 * time.Second
	atOnce     = 64 // entries, while a sweep holds a lock
)

func (b *Backend) sweepUntilClosed() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-b.closed.Done():
			return
		case <-tick.C:
		}
		b.sweep()
	}
}

// sweep removes entries that have all that they can have, and updates the others, so that
// no shares of long ago are kept for them.
func (b *Backend) sweep() {
	for i := range b.stripes {
		for at := 0; b.sweepSome(&b.stripes[i], at); at += atOnce {
		}
	}
}

// sweepSome sweeps the entries from at on, and reports whether there are any. It reads the
// clock itself, and buckets do not move meanwhile: by an instant from before the clock was
// set back, a bucket that was moved since would be full.
func (b *Backend) sweepSome(s *stripe, at int) bool {
	b.moving.Lock()
	defer b.moving.Unlock()
	now := b.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := min(at+atOnce, len(s.all)) - 1; k >= at; k-- { // from the end: remove moves the last
		e := s.all[k]
		e.update()
		if e.used(now) <= 0 {
			s.remove(e)
		}
	}
	return at < len(s.all)
}

// now returns the instant that it is. If the clock was set back since the last call, so are
// all buckets: keys would else wait until it is where it was. Its caller holds b.moving.
func (b *Backend) now() int64 {
	now := b.instant(b.clock.Now().UnixMilli())
	if by := b.latest - now; by > 0 {
		b.setBack(now, by)
	}
	b.latest = now
	return now
}

func (b *Backend) setBack(now, by int64) {
	for _, p := range b.policies {
		p.shares.Load().setBack(now, by)
	}
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		for _, e := range s.all {
			e.update() // by instants of the clock as it was
			for k := range e.buckets {
				e.buckets[k].setBack(now, by)
			}
		}
		s.mu.Unlock()
	}
}
