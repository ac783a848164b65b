package refusals

import "time"

// SetElapsed has b read the time by which refusals age from f. Call it before use.
func (b *Backend) SetElapsed(f func() time.Duration) { b.elapsed = f }
