package refusals

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// ways is the number of slots that a refusal may be in.
const ways = 4

// table has refusals by the hashes of their charges. It never grows, and neither readers nor
// writers wait. If two writers choose one slot, the second refusal stays, or neither hash
// finds a refusal in the slot until it is replaced. With a lock, as in the tables of package
// keyed, an answer takes twice as long.
type table struct {
	groups []group
	ways   int // slots in use of each group; fewer than all in the smallest tables
}

// group is the slots of some hashes, in one cache line: a take that finds no refusal, like
// most, reads only that.
type group [ways]slot

type slot struct {
	id atomic.Uint64 // of the refusal
	f  atomic.Pointer[refusal]
}

// newTable returns a table of at most maxKeys slots.
func newTable(maxKeys int) table {
	n := min(maxKeys, ways)
	return table{groups: make([]group, maxKeys/n), ways: n}
}

// bucket returns the group of id.
func (t *table) bucket(id uint64) []slot {
	place, _ := bits.Mul64(id, uint64(len(t.groups)))
	return t.groups[place][:t.ways]
}

// find returns a refusal younger than maxAge that answers r, or nil.
func (t *table) find(id uint64, r *driver.Request, b *Backend, maxAge time.Duration) *refusal {
	group := t.bucket(id)
	for i := range group {
		if group[i].id.Load() != id {
			continue
		}
		f := group[i].f.Load()
		if f == nil || f.id != id || !f.isOf(r.Charges()) || !f.holds(r, b, maxAge) {
			continue
		}
		if !f.used.Load() { // seldom written, so that readers share its cache line
			f.used.Store(true)
		}
		return f
	}
	return nil
}

// put stores f, the refusal of r, in the slot of its group with the least worth, and reports
// whether the refusal in that slot could still have answered.
func (t *table) put(f *refusal, r *driver.Request, b *Backend) (pushedOut bool) {
	group := t.bucket(f.id)
	chosen, least := 0, worthOf(group[0].f.Load(), f, r, b)
	for i := 1; i < len(group); i++ {
		if w := worthOf(group[i].f.Load(), f, r, b); w.lessThan(least) {
			chosen, least = i, w
		}
	}
	group[chosen].f.Store(f)
	group[chosen].id.Store(f.id)
	return least.rank > old
}

// worth is how much a refusal is worth keeping: first by rank, then by youth.
type worth struct {
	rank  int
	began time.Duration
}

const (
	equal  = iota // a refusal of the same charges
	vacant        // no refusal, or one that has ended
	old           // it answers only if the backend fails
	unused        // it has answered nothing: keys that come once push out only each other
	used
)

func (w worth) lessThan(o worth) bool {
	return w.rank < o.rank || w.rank == o.rank && w.began < o.began
}

// worthOf returns the worth of present, the refusal in a slot or nil, when f, the refusal of
// r, needs a slot.
func worthOf(present, f *refusal, r *driver.Request, b *Backend) worth {
	switch {
	case present == nil:
		return worth{rank: vacant}
	case present.isOf(f.d.Charges()):
		return worth{rank: equal}
	case !present.holds(r, b, math.MaxInt64):
		return worth{rank: vacant}
	case !present.holds(r, b, b.maxAge):
		return worth{old, present.began}
	case !present.used.Load():
		return worth{unused, present.began}
	default:
		return worth{used, present.began}
	}
}

// len returns how many slots have a refusal.
func (t *table) len() int64 {
	n := int64(0)
	for i := range t.groups {
		for j := range t.groups[i] {
			if t.groups[i][j].f.Load() != nil {
				n++
			}
		}
	}
	return n
}
