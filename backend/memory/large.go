package memorybackend

import (
	"encoding/binary"

	"github.com/weir-go/weir/backend/handoff"
)

// large is a count whose stored form is too long for its entry.
type large struct {
	handoff.Stored

	// longest is the largest size of the state since its memory was last allocated to fit.
	// The charges that left a log still take memory.
	longest int
}

// largeBytes returns the most memory that a large count takes if its state was never larger
// than size. A log's entry is 10 bytes when stored, 16 on the heap, and a slice that has grown
// has at most twice the capacity that it needed.
func largeBytes(size int) int64 { return 256 + 4*int64(size) }

// larges are the large counts of a stripe. An entry stores its count's place in counts.
type larges struct {
	counts []*large
	free   []uint32
	bytes  int64
}

func (l *larges) find(e entry) *large { return l.counts[binary.LittleEndian.Uint32(e.hot.state[:])] }

// add makes e, whose state is packed, an entry of a large count.
func (l *larges) add(e entry, stored handoff.Stored) *large {
	var place uint32
	if n := len(l.free); n > 0 {
		place, l.free = l.free[n-1], l.free[:n-1]
	} else {
		place, l.counts = uint32(len(l.counts)), append(l.counts, nil)
	}
	c := &large{Stored: stored}
	l.counts[place] = c
	l.bytes += largeBytes(0)
	binary.LittleEndian.PutUint32(e.hot.state[:], place)
	e.flags |= isLarge
	e.stateLen = 0
	l.measure(c)
	return c
}

// measure updates the memory of c, whose state may have changed. If a log has lost half of its
// entries, measure frees their memory.
func (l *larges) measure(c *large) {
	size := c.State.Size()
	before := largeBytes(c.longest)
	if size < c.longest/2 {
		c.State = c.State.Clone()
		c.longest = size
	}
	c.longest = max(c.longest, size)
	l.bytes += largeBytes(c.longest) - before
}

// remove removes the large count of e.
func (l *larges) remove(e entry) {
	place := binary.LittleEndian.Uint32(e.hot.state[:])
	l.bytes -= largeBytes(l.counts[place].longest)
	l.counts[place] = nil
	l.free = append(l.free, place)
	e.flags &^= isLarge
}

// coarsen halves the logs of c.
func (l *larges) coarsen(c *large, entries int) {
	before := largeBytes(c.longest)
	c.State.Coarsen(entries)
	c.longest = c.State.Size()
	l.bytes += largeBytes(c.longest) - before
}
