package leased

import "context"

// Sweep does what the background does now and then, at the clock's time.
func (b *Backend) Sweep() {
	_ = b.giveBack(context.Background(), b.sweep(b.clock.Now().UnixMilli()))
}
