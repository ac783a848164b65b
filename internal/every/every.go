// Package every calls a function periodically.
package every

import (
	"context"
	"time"
)

// Do calls f at intervals of wait until ctx is done.
func Do(ctx context.Context, wait time.Duration, f func()) {
	tick := time.NewTicker(wait)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}
