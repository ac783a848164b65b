package middleware

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler"
)

// places are the requests that wait for their start, by the queues that they are in.
// When a server shuts down they give their places back from the end of each queue: only
// the last of a leaky bucket's queue can, because the starts of those behind it were
// returned.
type places struct {
	mu     sync.Mutex
	queues map[count]*queue // none is empty
	left   atomic.Int64     // how many have left
}

// count is what a queue waits for.
type count struct{ policy, key string }

// queue has the places of one count.
type queue struct {
	places []*place // by start
	broken bool     // a place was not given back: those before it cannot be either
}

// place is one request's.
type place struct {
	counts []count
	start  time.Time
	server *http.Server
	left   chan struct{} // closed when the place was given back, or the wait is over
}

// enter notes that a request of server, which was charged charges, waits until start.
func (p *places) enter(start time.Time, server *http.Server, charges []throttler.Charge) *place {
	entered := &place{start: start, server: server, left: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queues == nil {
		p.queues = make(map[count]*queue)
	}
	for i := range charges {
		if c := &charges[i]; waits(c.Policy) {
			of := count{c.Policy.Name, c.Key}
			entered.counts = append(entered.counts, of)
			q := p.queues[of]
			if q == nil {
				q = new(queue)
				p.queues[of] = q
			}
			q.places = slices.Insert(q.places, q.behind(start), entered)
		}
	}
	return entered
}

// behind returns the index of the first place with a start after start.
func (q *queue) behind(start time.Time) int {
	i, _ := slices.BinarySearchFunc(q.places, start, func(o *place, start time.Time) int {
		if o.start.After(start) {
			return 1
		}
		return -1
	})
	return i
}

// leave ends what enter began. It does nothing the second time. ok is false if the place
// could not be given back.
func (p *places) leave(of *place, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of.counts == nil {
		return
	}
	for _, c := range of.counts {
		q := p.queues[c]
		q.broken = q.broken || !ok
		i := slices.Index(q.places, of)
		if q.places = slices.Delete(q.places, i, i+1); len(q.places) == 0 {
			delete(p.queues, c)
		}
	}
	of.counts = nil
	p.left.Add(1)
	close(of.left)
}

// backOutTime is how long a request waits while none behind it leaves: a backend
// that does not answer must not keep a server from shutting down.
const backOutTime = 2 * time.Second

// awaitLater returns when no request of the same server waits behind of. The server is
// shutting down, so all of them leave. If the backend does not take their places back,
// of leaves at once, so that all the others try meanwhile.
func (p *places) awaitLater(of *place) {
	timer := time.NewTicker(backOutTime)
	defer timer.Stop()
	for seen := p.left.Load(); ; {
		next, broken := p.later(of)
		switch {
		case broken:
			p.leave(of, false)
			return
		case next == nil:
			return
		}
		select {
		case <-next.left:
		case <-timer.C:
			left := p.left.Load()
			if left == seen {
				p.leave(of, false)
				return
			}
			seen = left
		}
	}
}

// later returns the place that comes next behind one, or nil, and whether a queue that it
// is in is broken.
func (p *places) later(of *place) (next *place, broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range of.counts {
		q := p.queues[c]
		broken = broken || q.broken
		for _, o := range q.places[q.behind(of.start):] {
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
