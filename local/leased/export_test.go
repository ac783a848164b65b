package leased

import (
	"runtime"

	"github.com/weir-go/weir/throttler/quota"
)

// Sweep makes a sweep, as the background goroutine does, at the clock's time.
func (b *Backend) Sweep() { b.sweep(nil) }

// AwaitWaiters returns once n takes wait for renewals of b.
func AwaitWaiters(b *Backend, n int) {
	for b.waiters() < n {
		runtime.Gosched()
	}
}

func (b *Backend) waiters() (n int) {
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		for _, l := range s.Values() {
			if l.renewal != nil {
				n += l.renewal.waiters
			}
		}
		s.mu.Unlock()
	}
	return n
}

// LockOthers locks all stripes except the stripe of c's lease.
func (b *Backend) LockOthers(c quota.Charge) (unlock func()) {
	of := b.stripeOf(b.nameOf([]quota.Charge{c}))
	each := func(do func(*stripe)) {
		for i := range b.stripes {
			if s := &b.stripes[i]; s != of {
				do(s)
			}
		}
	}
	each(func(s *stripe) { s.mu.Lock() })
	return func() { each(func(s *stripe) { s.mu.Unlock() }) }
}
