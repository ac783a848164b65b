package memorybackend

import "encoding/binary"

// The layout of counts in memory.
//
// A table has an entry of 128 bytes for each name, in the order of arrival. An entry contains
// no pointer, so the garbage collector does not look inside: a million keys cost a collection
// nothing. When an entry is removed, the last one moves to its place, so entries are dense,
// and chunks at the end are freed.
//
// An index of cells says where a name's entry is. A cell is 32 bits of the name's hash and the
// entry's place plus 1; 0 is free. A name's cell is at its hash, modulo the number of cells,
// or at the next cell that was free. The hash is seeded, so a client cannot choose keys that
// collide; and entries contain the whole name, or its SHA-256 if it is long, so two keys never
// share a count.
//
//	cells    [ 0 | h,2 | h,1 | 0 | 0 | h,3 | ... ]    at most 3/4 taken
//	chunks   [ hot halves of entries 0 ... 63, cold ones ] [ 64 ... ] ...
//
// An entry's state is in the stored form that Redis and Memcached keep, too. A state longer
// than 44 bytes (three fixed windows, two token buckets, a leaky bucket, a log of two charges)
// is a Go object outside of the table; see large.go.
type table struct {
	cells  []uint64
	chunks []*chunk
	n      int // entries
}

const (
	chunkLen  = 64
	entrySize = 128
	cellSize  = 8
	minCells  = 16
	maxName   = 52
	nameHead  = 32
	maxPacked = 44
	stateHead = 20 // a window
)

// entry is the table's entry for one count, in two halves of 64 bytes, each a cache line. A
// take of a count that is one window needs only the hot half, if the name is not longer than
// nameHead. The hot halves of a chunk are adjacent: with many keys, each page of memory that
// is touched costs, too.
type entry struct {
	*hot
	*cold
}

type hot struct {
	// openedAt is when the reset time last moved forward, in ms: the decision's now, or a
	// later time if a clock ahead of it wrote the state.
	openedAt int64

	// used is the largest used / capacity of the limits when last charged, allUsed if a charge
	// was refused since.
	used usedPart

	stateLen, flags uint8
	state           [stateHead]byte // in its stored form, or the place of a large one
	name            [nameHead]byte
}

type cold struct {
	endsAt int64 // the reset time, in ms
	until  int64 // when the count and its claim are over, in ms by the process' own clock

	hash  uint32 // of the name
	name  [maxName - nameHead]byte
	state [maxPacked - stateHead]byte
}

type chunk struct {
	hot  [chunkLen]hot
	cold [chunkLen]cold
}

// hasName reports whether n is e's name.
func (e entry) hasName(n *name) bool {
	a, b, differ := e.hot.name[:], n[:nameHead], uint64(0)
	for i := 0; i < nameHead; i += 8 { // a comparison of arrays calls a function
		differ |= binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:])
	}
	return differ == 0 && (n[0] <= nameHead || e.cold.name == [maxName - nameHead]byte(n[nameHead:]))
}

// appendForm appends the stored form of e's state to b.
func (e entry) appendForm(b []byte) []byte {
	n := int(e.stateLen)
	b = append(b, e.hot.state[:min(n, stateHead)]...)
	return append(b, e.cold.state[:max(n-stateHead, 0)]...)
}

// setForm makes form, of at most maxPacked bytes, the state of e.
func (e entry) setForm(form []byte) {
	e.stateLen = uint8(len(form))
	n := copy(e.hot.state[:], form)
	copy(e.cold.state[:], form[n:])
}

// Flags of an entry.
const (
	isLarge   = 1 << iota // the state is a large one
	isClaimed             // the count has moved
	isPooled              // new keys are counted here together
)

const nowhere = ^uint32(0)

// entry returns the entry in that place. It is valid until an entry is removed.
func (t *table) entry(place uint32) entry {
	c := t.chunks[place/chunkLen]
	return entry{&c.hot[place%chunkLen], &c.cold[place%chunkLen]}
}

// find returns the place of the entry of that name, or nowhere.
func (t *table) find(n *name, hash uint32) uint32 {
	if len(t.cells) == 0 {
		return nowhere
	}
	mask := uint32(len(t.cells) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		cell := t.cells[i]
		if cell == 0 {
			return nowhere
		}
		if place := uint32(cell) - 1; uint32(cell>>32) == hash && t.entry(place).hasName(n) {
			return place
		}
	}
}

// add returns the place of a new, empty entry of that name, which must not have an entry yet.
func (t *table) add(n *name, hash uint32) uint32 {
	if needed := cellsFor(t.n + 1); needed > len(t.cells) {
		old := t.cells
		t.cells = make([]uint64, needed)
		for _, cell := range old {
			if cell != 0 {
				t.put(cell)
			}
		}
	}
	place := uint32(t.n)
	if t.n == len(t.chunks)*chunkLen {
		t.chunks = append(t.chunks, new(chunk))
	}
	t.n++
	e := t.entry(place)
	*e.hot, *e.cold = hot{name: [nameHead]byte(n[:])}, cold{hash: hash, name: [maxName - nameHead]byte(n[nameHead:])}
	t.put(uint64(hash)<<32 | uint64(place+1))
	return place
}

// cellsFor returns how many cells the index of n entries needs: a power of two.
func cellsFor(n int) int {
	cells := minCells
	for cells*3 < n*4 {
		cells *= 2
	}
	return cells
}

func (t *table) put(cell uint64) {
	mask := uint32(len(t.cells) - 1)
	i := uint32(cell>>32) & mask
	for t.cells[i] != 0 {
		i = (i + 1) & mask
	}
	t.cells[i] = cell
}

// remove removes the entry in that place. The last entry moves there from the place that is
// now t.n.
func (t *table) remove(place uint32) {
	t.free(t.cellOf(place))
	last := uint32(t.n - 1)
	if place != last {
		i := t.cellOf(last)
		t.cells[i] = t.cells[i]>>32<<32 | uint64(place+1)
		to, from := t.entry(place), t.entry(last)
		*to.hot, *to.cold = *from.hot, *from.cold
	}
	t.n--
	// One chunk is kept in reserve, for a table that grows and shrinks by one.
	if keep := (t.n+chunkLen-1)/chunkLen + 1; keep < len(t.chunks) {
		t.chunks[keep] = nil
		t.chunks = t.chunks[:keep]
	}
}

// cellOf returns which cell points to place.
func (t *table) cellOf(place uint32) uint32 {
	mask := uint32(len(t.cells) - 1)
	i := t.entry(place).hash & mask
	for uint32(t.cells[i]) != place+1 {
		i = (i + 1) & mask
	}
	return i
}

// free frees cell i, and moves back the cells behind it that were displaced past it, because a
// search ends at the first free cell.
func (t *table) free(i uint32) {
	mask := uint32(len(t.cells) - 1)
	for j := (i + 1) & mask; t.cells[j] != 0; j = (j + 1) & mask {
		home := uint32(t.cells[j]>>32) & mask
		if (j-home)&mask >= (j-i)&mask {
			t.cells[i] = t.cells[j]
			i = j
		}
	}
	t.cells[i] = 0
}
