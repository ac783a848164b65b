package rollout

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// retryEvery is how often a member that fails is asked again, to see whether
// it is back.
const retryEvery = time.Second

// health is what is known of a member's answers.
type health struct {
	failing atomic.Bool // its last answer was none

	mu         sync.Mutex
	first, end time.Time // its first failure after an answer, and its last; zero if it answers
	nextTry    time.Time
}

// failed reports whether the member has failed for at least that long, and
// still did a moment ago. Two failures with silence between them say nothing
// about the time between.
func (h *health) failed(long time.Duration, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end.Sub(h.first) >= long && now.Sub(h.end) < 2*retryEvery
}

// mayTry reports whether it is time to ask a failed member again. One caller
// is told so at a time.
func (h *health) mayTry(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.nextTry) {
		return false
	}
	h.nextTry = now.Add(retryEvery)
	return true
}

// note notes how a call ended. A caller that went away says nothing about the
// member.
func (h *health) note(ctx context.Context, err error) {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	if err == nil && !h.failing.Load() {
		return // the common case
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failing.Store(err != nil)
	if err == nil {
		h.first, h.end = time.Time{}, time.Time{}
		return
	}
	now := time.Now()
	if h.first.IsZero() || now.Sub(h.end) >= 2*retryEvery {
		h.first = now
	}
	h.end = now
}
