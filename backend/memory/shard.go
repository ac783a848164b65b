package memorybackend

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// shard is a part of the keys under one lock. All keys of a partition are in
// one, so a take of several charges needs one lock.
type shard struct {
	mu    sync.Mutex
	bound int
	keys  map[string]*entry
	name  []byte   // scratch for the name of a key
	_     [64]byte // keeps the next lock off this one's cache line
}

// entry is what one key keeps.
type entry struct {
	handoff.Stored
	arrived bool // from another backend, and not in the map yet

	// usedPart is the largest used / capacity of the limits when last charged.
	usedPart float64

	// When the state's reset-at last moved forward: how many ms it then had
	// to go, and what the monotonic clock showed.
	lifetime int64
	movedAt  int64
}

// life returns for how many ms e counts. Reading the clock is a good part of a
// take, and needed only for a count that is being moved.
func (e *entry) life(now int64) int64 {
	if e.Claim == nil {
		return e.Life(now, 0)
	}
	return e.Life(now, monotonic())
}

// entries are the entries of a decision's charges; nil where there is none.
type entries [throttler.MaxCharges]*entry

// states are the states of entries, on the stack of the decision.
type states [throttler.MaxCharges]*algorithm.State

// states fills all with the states of the first n entries, and returns them.
func (f *entries) states(all *states, n int) []*algorithm.State {
	for i, e := range f[:n] {
		if e != nil {
			all[i] = &e.State
		}
	}
	return all[:n]
}

// ends returns the reset time of each entry's state.
func (f *entries) ends(now int64) (ends [throttler.MaxCharges]int64) {
	for i, e := range f {
		if e == nil {
			break
		}
		ends[i] = e.State.ResetAt(now)
	}
	return ends
}

// note notes what d, which has changed the states, means for sweeping and for
// the clock's watch. ends are their reset times before it.
func (f *entries) note(d *throttler.Decision, ends *[throttler.MaxCharges]int64, now int64) {
	for i := range d.Charges {
		e := f[i]
		e.usedPart = 0
		for _, s := range algorithm.StatusesOf(d, i) {
			e.usedPart = max(e.usedPart, float64(s.Used)/float64(s.Limit.Capacity()))
		}
		if e.State.ResetAt(now) > ends[i] {
			e.movedAt = monotonic()
			e.lifetime = e.life(now)
		}
	}
}

// begin returns a new entry for c, and puts it into the map if it is to be kept.
func (s *shard) begin(c *throttler.Charge, kept bool) *entry {
	e := new(entry)
	if kept {
		s.keys[string(s.nameOf(c))] = e
	}
	return e
}

// find returns the entry of c, or nil. It drops one that only a clock that
// stepped back keeps alive: by the monotonic clock its time was long over.
func (s *shard) find(c *throttler.Charge, now int64) *entry {
	e := s.keys[string(s.nameOf(c))]
	if e == nil {
		return nil
	}
	if e.life(now) > e.lifetime && monotonic()-e.movedAt > e.lifetime+margin {
		delete(s.keys, string(s.nameOf(c)))
		return nil
	}
	return e
}

// nameOf returns what names c's count: its parts with their lengths, so that
// no two triples share a name. It is valid until the next call.
func (s *shard) nameOf(c *throttler.Charge) []byte {
	name := binary.AppendUvarint(s.name[:0], uint64(len(c.Policy.Name)))
	name = append(name, c.Policy.Name...)
	if c.Key == c.Partition { // the common case, half as long
		name = append(name, 0)
	} else {
		name = append(name, 1)
		name = binary.AppendUvarint(name, uint64(len(c.Partition)))
		name = append(name, c.Partition...)
	}
	s.name = append(name, c.Key...)
	return s.name
}

// margin is how many ms a state stays, by a clock that cannot be set, after its
// window was opened or has passed: wall clocks step, also back.
const margin = int64(algorithm.Margin / time.Millisecond)

var start = time.Now()

// monotonic returns the ms that this process has run, by a clock that nobody sets.
func monotonic() int64 { return time.Since(start).Milliseconds() }
