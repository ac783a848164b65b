// Package every waits between calls of a function.
package every

import (
	"context"
	"time"
)

// Do calls f until ctx is done, and waits before each call.
func Do(ctx context.Context, wait time.Duration, f func()) {
	for Wait(ctx, wait) {
		f()
	}
}

// Wait waits for d, and reports whether that ended before ctx.
//
// It makes a timer for each wait: a ticker is due after a slow call, and in Go 1.26 the race
// detector may crash when a goroutine in a bubble of testing/synctest reads a timer that is due.
func Wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
