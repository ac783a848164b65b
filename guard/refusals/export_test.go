package refusals

import "time"

// SetElapsed makes b read the age of refusals from f. Call it before use.
func (b *Backend) SetElapsed(f func() time.Duration) { b.elapsed = f }
