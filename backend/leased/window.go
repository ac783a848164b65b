package leased

import (
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

var _ driver.WindowTaker = (*Backend)(nil)

// TakeWindow implements driver.WindowTaker, for a key that holds enough: nearly every
// take of a busy key. It does what Take does, without what only other takes need.
func (b *Backend) TakeWindow(now int64, p *quota.Policy, key string, cost int64) (used, resetAt, retryAt int64, ok bool) {
	if len(p.Limits) != 1 || !p.Limits[0].Algorithm.ResetsAtOnce() || b.leases != nil && !b.leases(p) {
		return 0, 0, 0, false
	}
	n := b.names.OfKey(p.Name, key)
	s := b.shardOf(n)
	s.mu.Lock()
	l := s.leases[n]
	if l == nil || l.policy != p || !l.plain || now >= l.until || !l.canSpend(now, cost) {
		s.mu.Unlock()
		return 0, 0, 0, false
	}
	l.demand.add(cost, now)
	s.touch(l, now)
	l.held -= cost
	s.noteHolding(l)
	s.local++
	used, resetAt = p.Limits[0].Quota-l.held, l.until
	s.mu.Unlock()
	return used, resetAt, 0, true
}

// Itself implements driver.WindowTaker.
func (b *Backend) Itself() driver.Backend { return b }
