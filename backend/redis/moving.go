package redisbackend

import (
	"time"

	"github.com/weir-go/weir/internal/breaker"
)

// While a Cluster moves a slot, some keys of a call may be on one node and some on the other.
// The nodes then do nothing, and answer TRYAGAIN, until the rest has moved. A call about keys
// that do not exist yet gets that answer until the whole slot has moved. Waits of askLater
// double from the shortest to the longest.
const (
	shortestMove = time.Millisecond
	longestMove  = 16 * time.Millisecond
)

// askLater sends j, which had the answer err, again after a wait, or fails it if its deadline
// comes first. shared reports that other jobs were in its call: each alone may have all of its
// keys on one node. No batch and no connection waits for j.
func (b *batcher) askLater(j *job, err error, shared bool) {
	wait := min(shortestMove<<min(j.tries, 10), longestMove)
	j.tries++
	j.alone = j.alone || shared
	if time.Until(j.deadline) <= wait {
		j.finish(err)
		return
	}
	j.stage.Store(waiting) // its caller may leave
	time.AfterFunc(wait, func() { b.requeue(j) })
}

// requeue puts j into the queue, unless its caller has left.
func (b *batcher) requeue(j *job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch now := time.Now(); {
	case j.ctx.Err() != nil || j.stage.Load() != waiting: // its caller has left, or is about to
	case b.server.Breaker.Open():
		if j.stage.CompareAndSwap(waiting, failed) {
			j.finish(breaker.ErrOpen)
		}
	case b.gathering || !b.canSend(now):
		b.waiting = append(b.waiting, j)
	default:
		go b.sendLoop(b.gather(j, now))
	}
}
