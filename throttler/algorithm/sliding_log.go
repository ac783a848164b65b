package algorithm

import (
	"cmp"
	"slices"

	"github.com/weir-go/weir/throttler/driver"
)

// slidingLog keeps every charge's instant. A charge counts while now is less than
// a window after it, so no window of that length, wherever it starts, holds more
// than the quota. Charges of one millisecond share an entry.
type slidingLog struct{}

type entry struct{ ms, cost int64 }

// live returns the entries that count at now, and their sum.
func (slidingLog) live(r *record, now int64) ([]entry, int64) {
	dead, sum := 0, r.count
	for dead < len(r.log) && r.log[dead].ms+r.window <= now {
		sum -= r.log[dead].cost
		dead++
	}
	return r.log[dead:], sum
}

func (s slidingLog) used(r *record, _ limit, now int64) int64 {
	_, sum := s.live(r, now)
	return min(sum, maxCount)
}

func (slidingLog) resetAt(r *record, now int64) int64 {
	if len(r.log) == 0 {
		return now
	}
	return max(r.log[len(r.log)-1].ms+r.window, now)
}

func (s slidingLog) retryAt(r *record, l limit, cost, now int64) int64 {
	log, sum := s.live(r, now)
	excess := sum + cost - l.capacity
	for _, e := range log {
		excess -= e.cost
		if excess <= 0 {
			return e.ms + r.window
		}
	}
	return now
}

// If time stepped back, the charge is logged at the last instant: entries stay in order.
func (s slidingLog) charge(r *record, _ limit, cost, now int64) charged {
	r.log, r.count = s.live(r, now)
	cost = min(cost, maxLogCost)
	last := len(r.log) - 1
	if last < 0 || r.log[last].ms < now {
		r.log = append(r.log, entry{ms: now, cost: cost})
		r.count += cost
		return charged{mark: driver.Mark{At: now}}
	}
	before := r.log[last].cost
	r.log[last].cost = min(before+cost, maxLogCost)
	r.count += r.log[last].cost - before
	return charged{mark: driver.Mark{At: r.log[last].ms}}
}

func (slidingLog) lastCharge(r *record, _ int64) charged {
	if len(r.log) == 0 {
		return charged{}
	}
	return charged{mark: driver.Mark{At: r.log[len(r.log)-1].ms}}
}

func (s slidingLog) giveBack(r *record, _ limit, c settled, now int64) bool {
	r.log, r.count = s.live(r, now)
	i, found := slices.BinarySearchFunc(r.log, c.mark.At, func(e entry, ms int64) int { return cmp.Compare(e.ms, ms) })
	if !found {
		return false
	}
	amount := min(c.charged-c.cost, r.log[i].cost)
	r.log[i].cost -= amount
	r.count -= amount
	if r.log[i].cost == 0 {
		r.log = slices.Delete(r.log, i, i+1)
	}
	return true
}

// A shorter window sees the entries that are inside it. A longer one begins empty.
func (slidingLog) adopt(r *record, l limit) {
	if r.window < l.window {
		r.log, r.count = nil, 0
	}
	r.window = l.window
}

func (s slidingLog) join(r *record, _ []record, cost, now int64) { s.charge(r, limit{}, cost, now) }

func (s slidingLog) giveBackJoined(r *record, c settled, now int64) {
	c.mark.At = c.takenAt
	s.giveBack(r, limit{}, c, now)
}

func (slidingLog) append(b []byte, r *record) []byte {
	b = AppendUint(b, entriesBytes, int64(len(r.log)))
	b = appendCount(b, r.count)
	return AppendUint(AppendUint(b, slotBytes, 0), slotBytes, int64(len(r.log)))
}

// appendRing appends a ring without a free slot.
func appendRing(b []byte, log []entry) []byte {
	for _, e := range log {
		b = AppendUint(appendInstant(b, e.ms), costBytes, e.cost)
	}
	return b
}

func (slidingLog) parse(p parser, r *record) parser {
	n := p.uint(entriesBytes)
	r.count = p.count()
	first, slots := p.uint(slotBytes), p.uint(slotBytes)
	if n > slots || first >= max(slots, 1) || slots > int64(len(p.rings)/entryBytes) {
		p.failed = true
		return p
	}
	ring := p.rings[:slots*entryBytes]
	p.rings = p.rings[slots*entryBytes:]
	entries := parser{tail: ring[first*entryBytes:]}
	r.log = make([]entry, n)
	for i := range r.log {
		if len(entries.tail) == 0 {
			entries.tail = ring
		}
		r.log[i] = entry{ms: entries.instant(), cost: entries.uint(costBytes)}
	}
	return p
}
