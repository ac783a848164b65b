package fallback

import "time"

// SetElapsed replaces the clock that outages are timed by.
func (b *Backend) SetElapsed(elapsed func() time.Duration) { b.elapsed = elapsed }
