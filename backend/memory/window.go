package memorybackend

import (
	"context"

	"github.com/weir-go/weir/throttler"
)

// TakeWindow implements throttler.WindowTaker, for a key that has a window: nearly
// every take of most programs. It does what shard.take does, without what only other
// takes need.
func (b *Backend) TakeWindow(now int64, p *throttler.Policy, key string, cost int64) (used, resetAt, retryAt int64, ok bool) {
	if len(p.Limits) != 1 || p.Limits[0].Algorithm != throttler.FixedWindow {
		return 0, 0, 0, false
	}
	limit := &p.Limits[0]
	c := &throttler.Charge{Policy: p, Key: key, Cost: cost, Partition: key}
	if len(p.Name)+2 > nameHead || isLong(c) {
		return 0, 0, 0, false
	}
	perUnit := allUsed / float32(limit.Quota) // before the lock: a division is slow
	partition := partitionHash(b.seed, c)
	hash := nameHash(b.seed, c, partition)
	s := b.shardAt(partition)
	s.mu.Lock()
	e := s.entries.lone(c, hash)
	if e == nil || e.flags != isWindow || now < e.openedAt {
		s.mu.Unlock()
		return 0, 0, 0, false
	}
	w := e.window()
	if !w.IsOf(limit) || now >= w.ResetAt {
		s.mu.Unlock()
		return 0, 0, 0, false
	}
	retryAt = w.Take(limit.Quota, cost)
	switch retryAt {
	case 0:
		e.setWindow(&w)
		e.used = allUsed
		if w.Used < limit.Quota {
			e.used = usedPart(float32(w.Used) * perUnit)
		}
	case throttler.NeverFits:
	default:
		e.used = allUsed
	}
	s.mu.Unlock()
	return w.Used, w.ResetAt, retryAt, true
}

// Itself implements throttler.WindowTaker.
func (b *Backend) Itself() throttler.Backend { return b }

// takeLone makes the decision about r by TakeWindow, for a backend that wraps b.
func (b *Backend) takeLone(ctx context.Context, r *throttler.Request) (d throttler.Decision, ok bool) {
	charges := r.Charges()
	if len(charges) != 1 || charges[0].Key != charges[0].Partition || charges[0].Cost < 1 || ctx.Err() != nil {
		return d, false
	}
	c := &charges[0]
	used, resetAt, retryAt, ok := b.TakeWindow(r.Now, c.Policy, c.Key, c.Cost)
	if ok {
		d.Begin(r)
		d.SetWindow(used, resetAt, retryAt)
	}
	return d, ok
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
