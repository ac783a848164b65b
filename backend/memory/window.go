package memorybackend

import (
	"encoding/binary"
	"hash/maphash"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// takeWindow makes d, a zero Decision, the one about r, if r is about one key that has a
// window: nearly every take of most programs. It does what stripe.take does, without what
// only other takes need. If it returns false, it has charged nothing.
func (b *Backend) takeWindow(r *driver.Request, d *driver.Decision) bool {
	charges := r.Charges()
	if len(charges) != 1 {
		return false
	}
	c := &charges[0]
	p := c.Policy
	if len(p.Limits) != 1 || c.Cost < 1 || c.Mode != quota.Enforce || c.Partition != c.Key || len(p.Name)+2 > nameHead || len(p.Name)+2+len(c.Key) > maxName {
		return false
	}
	limit := &p.Limits[0]
	const fraction = 47                                  // bits: allUsed has the other 16 of 63
	perUnit := allUsed << fraction / uint64(limit.Quota) // before the lock: a division is slow
	var name loneName
	name.set(p.Name, c.Key)
	partition := maphash.String(b.seed, c.Key)
	hash := hashUnder(p.Name, partition)
	d.Request = *r
	s := b.stripeAt(partition)
	s.mu.Lock()
	e := s.entries.lone(&name, hash)
	if e == nil || e.flags != isWindow || r.Now < e.openedAt || r.Now >= e.endsAt {
		s.mu.Unlock()
		return false
	}
	w := e.window()
	if !w.IsOf(limit) {
		s.mu.Unlock()
		return false
	}
	retryAt := w.Take(limit.Quota, c.Cost)
	switch {
	case retryAt == 0:
		e.setUsed(w.Used)
		e.used = allUsed
		if w.Used < limit.Quota {
			e.used = usedPart(uint64(w.Used) * perUnit >> fraction)
		}
	case retryAt != driver.NeverFits && e.used != allUsed: // what is not written stays in the caches of all cores
		e.used = allUsed
	}
	d.SetWindow(w.Used, w.ResetAt, retryAt) // before Unlock, which waits for it: d is read the sooner
	s.mu.Unlock()
	return true
}

// loneName is the name of a key's count under a policy, of which the partition is the
// key: see appendName. It is made before the lock is taken, and ends in zeros as entries'
// names do: so a few comparisons of words find the entry.
type loneName struct {
	bytes [maxName]byte
	n     uint8
}

// set makes n, a zero loneName, the name; the policy fits in the hot half, and all in n.
func (n *loneName) set(policy, key string) {
	n.bytes[0] = uint8(len(policy))
	copy(n.bytes[1:nameHead], policy)
	keyAt := 1 + len(policy) + 1 // after tagKey, which is 0
	copy(n.bytes[keyAt:], key)
	n.n = uint8(keyAt + len(key))
}

// isOf reports whether n is e's name.
func (n *loneName) isOf(e entry) bool {
	return n.n == e.nameLen && sameHead((*[nameHead]byte)(n.bytes[:]), &e.hot.name) &&
		(n.n <= nameHead || *(*[maxName - nameHead]byte)(n.bytes[nameHead:]) == e.cold.name)
}

// sameHead reports whether *a == *b, by four words, of which two overlap: == is a call,
// and the lock is held.
func sameHead(a, b *[nameHead]byte) bool {
	word := func(b *[nameHead]byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at : at+8]) }
	return word(a, 0) == word(b, 0) && word(a, 8) == word(b, 8) && word(a, 16) == word(b, 16) &&
		word(a, nameHead-8) == word(b, nameHead-8)
}

// lone returns the hot half of the entry of that name, or nil.
func (t *table) lone(name *loneName, hash uint32) *hot {
	if len(t.cells) == 0 {
		return nil
	}
	mask := uint32(len(t.cells) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		cell := t.cells[i]
		if cell == 0 {
			return nil
		}
		if uint32(cell>>32) == hash {
			if e := t.at(uint32(cell) - 1); name.isOf(e) {
				return e.hot
			}
		}
	}
}
