package memorybackend

import (
	"hash/maphash"
	"sync"

	"github.com/weir-go/weir/backend/handoff"
)

// stripe is a part of the counts under one lock.
type stripe struct {
	mu sync.Mutex

	// Keeps the lock alone in a cache line: a goroutine that waits for the lock takes that
	// line from the goroutine that holds it, and must not take the table with it.
	_ [56]byte

	entries   table
	larges    larges
	maxKeys   int
	maxBytes  int64
	seed      maphash.Seed
	perPolicy uint32 // pooled counts for each policy

	swept       uint32   // where the next sweep continues
	hand        uint32   // where the next search for an entry to evict continues
	victims     []uint32 // entries that findRoom chose
	looked      int      // how many entries it looked at
	pooled      int      // entries of pooled counts
	evicted     int64
	pooledTakes int64

	counts []*count        // of the step in progress, in this stripe
	form   [maxPacked]byte // a state on its way to or from an entry

	// Fills whole cache lines, so that no two stripes share one.
	_ [44]byte
}

// numberOf returns the number of the stripe of a name with that hash.
func (b *Backend) numberOf(hash uint64) uint64 { return hash & uint64(len(b.stripes)-1) }

// find finds the count with c's name. It drops a count that is live only because a clock was
// ahead or stepped back: by the process' own clock, its time was long over.
func (s *stripe) find(c *count, now *moment) {
	c.stored, c.large = nil, nil
	c.place = s.entries.find(&c.name, c.hash)
	if c.place == nowhere {
		return
	}
	e := s.entries.entry(c.place)
	if now.now < e.openedAt && e.dead(now) {
		s.remove(c.place)
		c.place = nowhere
		return
	}
	if e.flags&isLarge != 0 {
		c.large = s.larges.find(e)
		c.stored = &c.large.Stored
		return
	}
	c.stored = &c.packed
	if err := c.packed.Load(e.appendForm(s.form[:0])); err != nil {
		panic(err) // this stripe has written it
	}
}

// save stores c's changed count in its entry, if it has one. It adds an entry if c is new.
func (s *stripe) save(c *count, now *moment) {
	if c.isNew {
		c.place = s.entries.add(&c.name, c.hash)
		if c.pooled {
			s.entries.entry(c.place).flags = isPooled
			s.pooled++
		}
	}
	if c.place == nowhere {
		return
	}
	e := s.entries.entry(c.place)
	if c.pooled {
		c.stored.State.Coarsen(pooledLog)
	}
	resetAt := c.stored.State.ResetAt(now.now)
	claimed := c.stored.Claim != nil
	if resetAt > e.endsAt || claimed {
		e.openedAt = max(now.now, resetAt-c.stored.State.Life(now.now)) // by the clock that wrote it
		e.until = now.clock() + c.stored.Life(now.now, now.clock())
	}
	e.endsAt = resetAt
	s.pack(c, e)
	e.flags &^= isClaimed
	if claimed {
		e.flags |= isClaimed
	}
}

// pack stores c's count in e, its entry.
func (s *stripe) pack(c *count, e entry) {
	switch {
	case c.large == nil:
		if form := c.stored.Append(s.form[:0]); len(form) <= maxPacked {
			e.setForm(form)
			return
		}
		c.large = s.larges.add(e, *c.stored)
		c.packed = handoff.Stored{} // the large count has its memory now
	case c.stored != &c.large.Stored:
		c.large.Stored = *c.stored
		s.larges.measure(c.large)
	default:
		s.larges.measure(c.large)
	}
	c.stored = &c.large.Stored
}

// remove removes an entry. Another one moves to its place.
func (s *stripe) remove(place uint32) {
	e := s.entries.entry(place)
	if e.flags&isLarge != 0 {
		s.larges.remove(e)
	}
	if e.flags&isPooled != 0 {
		s.pooled--
	}
	s.entries.remove(place)
	moved := uint32(s.entries.n)
	for _, c := range s.counts {
		if c.place == moved {
			c.place = place
		}
	}
	for i := range s.victims {
		if s.victims[i] == moved {
			s.victims[i] = place
		}
	}
}

// bytes returns the memory that counts take.
func (s *stripe) bytes() int64 {
	return int64(s.entries.n)*entrySize + int64(len(s.entries.cells))*cellSize + s.larges.bytes
}
