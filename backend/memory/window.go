package memorybackend

import (
	"github.com/weir-go/weir/throttler"
)

// takeWindow makes a decision about one charge under one fixed window that the key
// has been charged under before: nearly every take of most programs. It does what
// shard.take does, without what only other takes need. It reports false, and has
// done nothing, if r is not that simple.
func (b *Backend) takeWindow(r *throttler.Request, d *throttler.Decision) bool {
	charges := r.Charges()
	if len(charges) != 1 {
		return false
	}
	c := &charges[0]
	if len(c.Policy.Limits) != 1 || c.Policy.Limits[0].Algorithm != throttler.FixedWindow || c.Cost == 0 || c.Key != c.Partition || len(c.Policy.Name)+2 > nameHead || isLong(c) {
		return false
	}
	limit := &c.Policy.Limits[0]
	partition := partitionHash(b.seed, c)
	hash := nameHash(b.seed, c, partition)
	s := b.shardAt(partition)
	s.mu.Lock()
	e := s.entries.lone(c, hash)
	if e == nil || e.flags != isWindow || r.Now < e.openedAt {
		s.mu.Unlock()
		return false
	}
	w := e.window()
	if !w.IsOf(limit) || r.Now >= w.ResetAt {
		s.mu.Unlock()
		return false
	}
	result := w.Take(limit.Quota, c.Cost, r.Now)
	switch result.RetryAt {
	case 0:
		e.setWindow(&w)
		e.used = min(float32(w.Used)/float32(limit.Quota), 1)
	case throttler.NeverFits:
	default:
		e.used = 1
	}
	s.mu.Unlock()
	d.Begin(r)
	d.Allowed = result.RetryAt == 0
	d.Results()[0] = result
	return true
}

// lone returns the hot half of c's entry, or nil. c's partition is its key, and the
// policy's name fits in that half.
func (t *table) lone(c *throttler.Charge, hash uint32) *hot {
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
			if e := t.at(uint32(cell) - 1); e.isOf(c) {
				return e.hot
			}
		}
	}
}

// isOf reports whether e has the name of c: see appendName.
func (e entry) isOf(c *throttler.Charge) bool {
	policy := len(c.Policy.Name)
	key := 1 + policy + 1 // where the key begins
	inHead := min(len(c.Key), nameHead-key)
	name := &e.hot.name
	return int(e.nameLen) == key+len(c.Key) && int(name[0]) == policy && name[policy+1] == tagKey &&
		string(name[1:policy+1]) == c.Policy.Name && string(name[key:key+inHead]) == c.Key[:inHead] &&
		(inHead == len(c.Key) || string(e.cold.name[:len(c.Key)-inHead]) == c.Key[inHead:])
}
