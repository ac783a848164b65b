package middleware

import (
	"net/http"
	"sync"
	"time"
)

// places are the requests that wait for their start. When a server shuts down they
// give their places back from the end of the queue: only the last of a leaky
// bucket's queue can, because the starts of those behind it were returned.
type places struct {
	mu  sync.Mutex
	all map[*place]struct{}
}

// place is one request's.
type place struct {
	start  time.Time
	server *http.Server
	left   chan struct{} // closed when the place was given back, or the wait is over
}

// enter notes that a request of server waits until start.
func (p *places) enter(start time.Time, server *http.Server) *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = make(map[*place]struct{})
	}
	entered := &place{start: start, server: server, left: make(chan struct{})}
	p.all[entered] = struct{}{}
	return entered
}

// leave ends what enter began.
func (p *places) leave(left *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, left)
	close(left.left)
}

// backOutTime bounds how long a request waits for those behind it to leave: a
// backend that does not answer must not keep a server from shutting down.
const backOutTime = 2 * time.Second

// awaitLater returns when no request of the same server waits for a later start, or
// after backOutTime. The server is shutting down, so all of them leave.
func (p *places) awaitLater(of *place) {
	timer := time.NewTimer(backOutTime)
	defer timer.Stop()
	for next := p.later(of); next != nil; next = p.later(of) {
		select {
		case <-next.left:
		case <-timer.C:
			return
		}
	}
}

// later returns the place that comes next after one, or nil.
func (p *places) later(of *place) (next *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for o := range p.all {
		if o.server == of.server && o.start.After(of.start) && (next == nil || o.start.Before(next.start)) {
			next = o
		}
	}
	return next
}
