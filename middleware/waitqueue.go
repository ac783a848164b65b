package middleware

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler"
)

// waitQueues has the requests that wait for their start, by the queues that they are in.
// When a server shuts down they give their places back from the end of each queue: only
// the last of a leaky bucket's queue can, because the starts of those behind it were
// returned.
type waitQueues struct {
	mu     sync.Mutex
	queues map[count]*queue // no queue is empty
	left   atomic.Int64     // how many have left
}

// count is what a queue waits for.
type count struct{ policy, key string }

// queue has the waiters of one count.
type queue struct {
	waiters []*waiter // by start
	broken  bool      // a place was not given back: those before it cannot be either
}

// waiter is one request that has a place in queues.
type waiter struct {
	counts []count
	start  time.Time
	server *http.Server
	left   chan struct{} // closed when the place was given back, or the wait is over
}

// enter notes that a request of server, which was charged charges, waits until start.
func (w *waitQueues) enter(start time.Time, server *http.Server, charges []throttler.Charge) *waiter {
	entered := &waiter{start: start, server: server, left: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queues == nil {
		w.queues = make(map[count]*queue)
	}
	for i := range charges {
		if c := &charges[i]; waits(c.Policy) {
			of := count{c.Policy.Name, c.Key}
			entered.counts = append(entered.counts, of)
			q := w.queues[of]
			if q == nil {
				q = new(queue)
				w.queues[of] = q
			}
			q.waiters = slices.Insert(q.waiters, q.behind(start), entered)
		}
	}
	return entered
}

// behind returns the index of the first waiter with a start after start.
func (q *queue) behind(start time.Time) int {
	i, _ := slices.BinarySearchFunc(q.waiters, start, func(o *waiter, start time.Time) int {
		if o.start.After(start) {
			return 1
		}
		return -1
	})
	return i
}

// leave ends what enter began. It does nothing the second time. ok is false if the place
// could not be given back.
func (w *waitQueues) leave(of *waiter, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if of.counts == nil {
		return
	}
	for _, c := range of.counts {
		q := w.queues[c]
		q.broken = q.broken || !ok
		i := slices.Index(q.waiters, of)
		if q.waiters = slices.Delete(q.waiters, i, i+1); len(q.waiters) == 0 {
			delete(w.queues, c)
		}
	}
	of.counts = nil
	w.left.Add(1)
	close(of.left)
}

// backOutTime is how long a request waits while none behind it leaves: a backend
// that does not answer must not keep a server from shutting down.
const backOutTime = 2 * time.Second

// awaitLater returns when no request of the same server waits behind of. The server is
// shutting down, so all of them leave. If the backend does not take their places back,
// of leaves at once, so that all the others try meanwhile.
func (w *waitQueues) awaitLater(of *waiter) {
	timer := time.NewTicker(backOutTime)
	defer timer.Stop()
	for seen := w.left.Load(); ; {
		next, broken := w.later(of)
		switch {
		case broken:
			w.leave(of, false)
			return
		case next == nil:
			return
		}
		select {
		case <-next.left:
		case <-timer.C:
			left := w.left.Load()
			if left == seen {
				w.leave(of, false)
				return
			}
			seen = left
		}
	}
}

// later returns the waiter that comes next behind one, or nil, and whether a queue that
// it is in is broken.
func (w *waitQueues) later(of *waiter) (next *waiter, broken bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range of.counts {
		q := w.queues[c]
		broken = broken || q.broken
		for _, o := range q.waiters[q.behind(of.start):] {
			if o.server == of.server {
				if next == nil || o.start.Before(next.start) {
					next = o
				}
				break
			}
		}
	}
	return next, broken
}

// waits reports whether charges under p may have to wait for their start.
func waits(p *throttler.Policy) bool {
	return slices.ContainsFunc(p.Limits, func(l throttler.Limit) bool { return l.Algorithm.Queues() })
}
