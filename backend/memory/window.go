package memorybackend

import (
	"hash/maphash"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// TakeWindow implements driver.WindowTaker, for a key that has a window: nearly
// every take of most programs. It does what shard.take does, without what only other
// takes need.
func (b *Backend) TakeWindow(now int64, p *quota.Policy, key string, cost int64) (used, resetAt, retryAt int64, ok bool) {
	if len(p.Limits) != 1 || p.Name == "" || len(p.Name)+2 > nameHead || len(p.Name)+2+len(key) > maxName {
		return 0, 0, 0, false
	}
	limit := &p.Limits[0]
	perUnit := allUsed / float32(limit.Quota) // before the lock: a division is slow
	partition := maphash.String(b.seed, key)
	hash := hashUnder(p.Name, partition)
	s := b.shardAt(partition)
	s.mu.Lock()
	e := s.entries.lone(p.Name, key, hash)
	if e == nil || e.flags != isWindow || now < e.openedAt || now >= e.endsAt {
		s.mu.Unlock()
		return 0, 0, 0, false
	}
	w := e.window()
	if !w.IsOf(limit) {
		s.mu.Unlock()
		return 0, 0, 0, false
	}
	retryAt = w.Take(limit.Quota, cost)
	switch {
	case retryAt == 0:
		e.setUsed(w.Used)
		e.used = allUsed
		if w.Used < limit.Quota {
			e.used = usedPart(float32(w.Used) * perUnit)
		}
	case retryAt != driver.NeverFits && e.used != allUsed: // what is not written stays in the caches of all cores
		e.used = allUsed
	}
	s.mu.Unlock()
	return w.Used, w.ResetAt, retryAt, true
}

// Itself implements driver.WindowTaker.
func (b *Backend) Itself() driver.Backend { return b }

// lone returns the hot half of the entry of key's count under policy, or nil. The
// partition is the key, and policy fits in that half.
func (t *table) lone(policy, key string, hash uint32) *hot {
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
			if e := t.at(uint32(cell) - 1); e.isOf(policy, key) {
				return e.hot
			}
		}
	}
}

// isOf reports whether e has the name of key's count under policy: see appendName.
func (e entry) isOf(policy, key string) bool {
	name := &e.hot.name
	keyAt := 1 + len(policy) + 1
	inHead := min(len(key), nameHead-keyAt)
	return int(e.nameLen) == keyAt+len(key) && int(name[0]) == len(policy) && name[keyAt-1] == tagKey &&
		string(name[1:keyAt-1]) == policy && string(name[keyAt:keyAt+inHead]) == key[:inHead] &&
		(inHead == len(key) || string(e.cold.name[:len(key)-inHead]) == key[inHead:])
}
