package memorybackend

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/handoff"
	"github.com/weir-go/weir/quota"
)

// stripe is a part of the counts under one lock. All keys of a partition are in
// one, so a take of several charges needs one lock.
type stripe struct {
	mu sync.Mutex

	// Keeps the lock in a line of the processor's cache of its own: a goroutine that
	// waits for it takes that line from the one that has it, and must not take the table.
	_ [56]byte

	entries  table
	seed     maphash.Seed
	larges   larges
	maxKeys  int
	maxBytes int64
	shares   uint32 // shared counts for each policy

	swept   uint32   // where the next sweep goes on
	hand    uint32   // where the next search for an entry to evict goes on
	victims []uint32 // entries that findRoom chose
	looked  int      // how many it looked at
	shared  int      // entries of shared counts
	evicted int64
	pooled  int64

	// What the decision in progress works on, one for each charge.
	all    []count
	counts [quota.MaxCharges]count
	states [quota.MaxCharges]*algorithm.State
	form   [maxPacked]byte // a state on its way to or from an entry

	// Makes stripes whole lines, so that locks and tables share none with other stripes.
	_ [40]byte
}

// count is the count of a charge during a decision.
type count struct {
	name  []byte
	hash  uint32
	place uint32 // of its entry, or nowhere

	// stored is the count to decide about, nil if there is none: the large one of
	// its entry, packed, or one that arrived.
	stored *handoff.Stored
	large  *large
	packed handoff.Stored // unpacked; its memory is reused by each decision

	arrived bool // from another backend
	shared  bool // with other keys
	isNew   bool // has no entry, and needs one if the decision is made
	nameBuf [maxName]byte
}

// moment is when a decision is made.
type moment struct {
	now    int64 // ms since the epoch, the decision's
	read   bool
	cached int64
}

// clock returns the ms that this process has run, and clockBase, by a clock that
// cannot be set. It reads the clock once: that is a good part of a take.
func (m *moment) clock() int64 {
	if !m.read {
		m.read, m.cached = true, clockBase+time.Since(start).Milliseconds()
	}
	return m.cached
}

var start = time.Now()

// clockBase keeps the clock positive where time began before start, as in a bubble
// of testing/synctest: claims are stored with their expiry, in six unsigned bytes.
const clockBase = 1 << 46

// margin is how many ms, by the process' own clock, a count stays beyond its
// window where the decision's clock says that it is still live: clocks step back.
const margin = int64(algorithm.Margin / time.Millisecond)

// open finds the counts of charges, and unpacks them.
func (s *stripe) open(charges []quota.Charge, long [][]byte, at *moment) {
	s.all = s.counts[:0]
	for i := range charges {
		s.all = s.counts[:i+1]
		c := &s.all[i]
		if long != nil && long[i] != nil {
			c.name = long[i]
		} else {
			c.name = appendName(c.nameBuf[:0], &charges[i])
		}
		c.hash = nameHash(s.seed, &charges[i], partitionHash(s.seed, &charges[i]))
		c.arrived, c.shared, c.isNew = false, false, false
		s.find(c, at)
	}
}

// find finds the count of c's name. One that only a clock that stepped back, or was
// ahead, keeps alive is dropped: by the process' own clock its time was long over.
func (s *stripe) find(c *count, at *moment) {
	c.stored, c.large = nil, nil
	c.place = s.entries.find(c.name, c.hash)
	if c.place == nowhere {
		return
	}
	e := s.entries.at(c.place)
	if at.now < e.openedAt && e.over(at) {
		s.remove(c.place)
		c.place = nowhere
		return
	}
	switch {
	case e.flags&isLarge != 0:
		c.large = s.larges.of(e)
		c.stored = &c.large.Stored
	case e.flags&isClaimed != 0:
		var err error
		if c.packed, err = handoff.Parse(e.appendState(s.form[:0])); err != nil {
			panic(err) // this stripe has written it
		}
		c.stored = &c.packed
	case e.flags&isWindow != 0:
		c.packed.Claim = nil
		c.packed.State.SetWindow(e.window())
		c.stored = &c.packed
	default:
		c.packed.Claim = nil
		if err := c.packed.State.Load(e.appendState(s.form[:0])); err != nil {
			panic(err) // this stripe has written it
		}
		c.stored = &c.packed
	}
}

// statesOf returns the states of the decision's counts, nil where there is none.
func (s *stripe) statesOf() []*algorithm.State {
	for i := range s.all {
		s.states[i] = nil
		if stored := s.all[i].stored; stored != nil {
			s.states[i] = &stored.State
		}
	}
	return s.states[:len(s.all)]
}

// begin gives c a count to charge, an empty one if it has none, and an entry if
// it is to have one.
func (s *stripe) begin(c *count) {
	if c.stored == nil {
		c.packed = handoff.Stored{}
		c.stored = &c.packed
	}
	if !c.isNew {
		return
	}
	c.place = s.entries.add(c.name, c.hash)
	c.isNew = false
	if c.shared {
		s.entries.at(c.place).flags = isShared
		s.shared++
	}
}

// save stores c's count, which was changed, in its entry, if it has one.
func (s *stripe) save(c *count, at *moment) {
	if c.place == nowhere {
		return
	}
	e := s.entries.at(c.place)
	if c.shared {
		c.stored.State.Coarsen(sharedLog)
	}
	resetAt := c.stored.State.ResetAt(at.now)
	claimed := c.stored.Claim != nil
	if resetAt > e.endsAt || claimed {
		e.openedAt = max(at.now, resetAt-c.stored.State.Life(at.now)) // by the clock that wrote it
		e.until = at.clock() + c.stored.Life(at.now, at.clock())
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
	e.flags &^= isWindow
	if w, ok := c.stored.State.Window(); ok && c.large == nil && c.stored.Claim == nil {
		e.setWindow(&w)
		e.flags |= isWindow
		return
	}
	if c.large == nil {
		if form := c.stored.Append(s.form[:0]); len(form) <= maxPacked {
			e.setState(form)
			return
		}
		c.large = s.larges.add(e, *c.stored)
		c.packed = handoff.Stored{} // its memory is the large one's now
		c.stored = &c.large.Stored
		return
	}
	if c.stored != &c.large.Stored {
		c.large.Stored = *c.stored
		c.stored = &c.large.Stored
	}
	s.larges.measure(c.large)
}

// remove removes an entry. Another one moves to its place.
func (s *stripe) remove(place uint32) {
	e := s.entries.at(place)
	if e.flags&isLarge != 0 {
		s.larges.remove(e)
	}
	if e.flags&isShared != 0 {
		s.shared--
	}
	s.entries.remove(place)
	moved := uint32(s.entries.n)
	for i := range s.all {
		if c := &s.all[i]; c.place == moved {
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
