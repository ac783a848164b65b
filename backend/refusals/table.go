package refusals

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// ways is how many refusals may be in the place of one. Four slots are a cache
// line.
const ways = 4

// table has refusals by the hashes of their charges. It never grows, and neither
// readers nor writers wait: two writers may choose one slot, and then the second
// stays.
type table struct {
	groups []group
	ways   int // slots in use of each group; fewer than all in the smallest tables
}

type group [ways]slot

// slot has one refusal. Its id is a copy of the refusal's, so that a reader that
// looks for another need not follow the pointer; for a moment it may be another's.
type slot struct {
	id      atomic.Uint64
	refusal atomic.Pointer[refusal]
}

// newTable returns a table of at most maxKeys slots.
func newTable(maxKeys int) table {
	n := min(maxKeys, ways)
	return table{groups: make([]group, maxKeys/n), ways: n}
}

func (t *table) group(id uint64) []slot {
	place, _ := bits.Mul64(id, uint64(len(t.groups)))
	return t.groups[place][:t.ways]
}

// find returns a refusal that answers r, or nil.
func (t *table) find(id uint64, r *driver.Request, b *Backend) *refusal {
	group := t.group(id)
	for i := range group {
		if group[i].id.Load() != id {
			continue
		}
		f := group[i].refusal.Load()
		if f == nil || !f.isOf(r.Charges()) || !f.holds(r, b) {
			continue
		}
		if !f.used.Load() { // seldom written, so that readers share its cache line
			f.used.Store(true)
		}
		return f
	}
	return nil
}

// put stores f, the refusal of r, in place of the one in its group that is worth
// the least, and reports whether that could still have answered.
func (t *table) put(f *refusal, r *driver.Request, b *Backend) (pushedOut bool) {
	group := t.group(f.id)
	chosen, least := 0, group[0].worth(f, r, b)
	for i := 1; i < len(group); i++ {
		if w := group[i].worth(f, r, b); w.lessThan(least) {
			chosen, least = i, w
		}
	}
	group[chosen].refusal.Store(f)
	group[chosen].id.Store(f.id)
	return least.rank > vacant
}

// worth is why to keep a refusal: its rank first, and how young it is.
type worth struct {
	rank  int
	asked time.Duration
}

const (
	same   = iota // a refusal of the same charges
	vacant        // nothing, or what has ended
	unused        // it has answered nothing: keys that come once push out only each other
	used
)

func (w worth) lessThan(o worth) bool {
	return w.rank < o.rank || w.rank == o.rank && w.asked < o.asked
}

// worth returns the worth of what is in s when f, the refusal of r, needs a slot.
func (s *slot) worth(f *refusal, r *driver.Request, b *Backend) worth {
	old := s.refusal.Load()
	switch {
	case old == nil:
		return worth{rank: vacant}
	case old.isOf(f.d.Charges()):
		return worth{rank: same}
	case !old.holds(r, b):
		return worth{rank: vacant}
	case !old.used.Load():
		return worth{unused, old.asked}
	default:
		return worth{used, old.asked}
	}
}

// len returns how many slots have a refusal.
func (t *table) len() int64 {
	n := int64(0)
	for i := range t.groups {
		for j := range t.groups[i] {
			if t.groups[i][j].refusal.Load() != nil {
				n++
			}
		}
	}
	return n
}
