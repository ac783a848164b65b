package fallback

import "time"

// SetElapsed replaces the clock that times outages.
func (b *Backend) SetElapsed(elapsed func() time.Duration) { b.elapsed = elapsed }
