package middleware

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
)

// waiters is the state shared by the requests that wait for their start.
type waiters struct {
	servers sync.Map     // *http.Server to a chan struct{} that its shutdown closes
	ahead   atomic.Int64 // bytes that bodies of waiting requests may take
}

// shutdown returns a channel that is closed when server begins to shut down. It
// must be called before that, so it is called for every request that may wait.
func (s *waiters) shutdown(server *http.Server) <-chan struct{} {
	if server == nil {
		return nil
	}
	if c, ok := s.servers.Load(server); ok {
		return c.(chan struct{})
	}
	c, loaded := s.servers.LoadOrStore(server, make(chan struct{}))
	if !loaded {
		server.RegisterOnShutdown(sync.OnceFunc(func() { close(c.(chan struct{})) }))
	}
	return c.(chan struct{})
}

func serverOf(r *http.Request) *http.Server {
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	return server
}

// Reasons why a request that waited is not served.
const (
	requestEnded = "The request ended before it could start."
	stopping     = "The server is shutting down."
	tooLate      = "The request would have to wait longer than the server may take to respond."
)

// errTooLate reports a wait that is longer than the server may take to respond.
var errTooLate = errors.New("a leaky bucket's wait is longer than http.Server.WriteTimeout, and a ResponseWriter in front of the middleware has neither SetWriteDeadline nor Unwrap to extend it")

// waitOrGiveBack waits until the request may start by k's decision. If the request can't be
// served then, waitOrGiveBack refunds k and returns the reason.
func (t *throttle) waitOrGiveBack(k *take) (reason string) {
	if !startsLater(k.d.Driver()) || t.DryRun != nil {
		return ""
	}
	if reason = t.waitForStart(k); reason != "" {
		k.close()
		k.d = t.settle(k, k.d, nil)
	}
	return reason
}

// startsLater reports whether d has a StartAt after its instant.
func startsLater(d *driver.Decision) bool {
	results := d.Results()
	for i := range results {
		if results[i].StartAt > d.Request.Now {
			return true
		}
	}
	return false
}

// waitForStart waits until the request may start by k's decision and the throttler's clock. It
// returns why the request can't be served, or "". The request's context ends if the client
// leaves.
func (t *throttle) waitForStart(k *take) (reason string) {
	wait := k.d.StartAt().Sub(k.d.At())
	w, server := k.link.c.w, serverOf(k.received)
	if !extendDeadlines(w, k.received, server, wait) {
		t.fail(errTooLate, k.charges, observe.ResultAnswered503)
		return tooLate
	}
	ahead := t.waiters.readAhead(k)
	start := make(chan struct{})
	remaining := k.d.StartAt().Sub(t.throttler.Clock().Now()) // the decision took a part of the wait
	stop := clock.AfterFunc(t.throttler.Clock(), remaining, func() { close(start) })
	defer stop()
	select {
	case <-start:
	case <-k.received.Context().Done():
	case <-t.waiters.shutdown(server):
		reason = stopping
	}
	if k.received.Context().Err() != nil {
		reason = requestEnded
	}
	if ahead > 0 {
		t.waiters.ahead.Add(-ahead)
		k.link.c.body.stop()
	}
	if reason != "" {
		k.link.c.breakOffReading(sendGrace)
		return reason
	}
	unread := k.link.c.body != nil && k.link.c.body.read.Load() != toEnd
	if unread && server != nil && server.ReadTimeout > 0 && k.received.ProtoMajor == 1 {
		// The client could not send while the body was not read.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(server.ReadTimeout))
	}
	return ""
}

// extendDeadlines makes the server's timeouts begin when the wait is over. It returns false if
// the response could not be sent after the wait. In HTTP/1, ReadTimeout is extended after the
// wait: a deadline while net/http watches for the client to leave would end the request.
func extendDeadlines(w http.ResponseWriter, r *http.Request, server *http.Server, wait time.Duration) bool {
	if server == nil {
		return true
	}
	control := http.NewResponseController(w)
	if server.ReadTimeout > 0 && r.ProtoMajor == 2 {
		_ = control.SetReadDeadline(time.Now().Add(wait + server.ReadTimeout))
	}
	if server.WriteTimeout > 0 {
		err := control.SetWriteDeadline(time.Now().Add(wait + server.WriteTimeout))
		return err == nil || wait < server.WriteTimeout
	}
	return true
}
