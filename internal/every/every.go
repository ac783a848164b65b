// Package every does something again and again.
package every

import (
	"context"
	"time"
)

// Do calls f again and again, with that time between, until ctx is done.
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
