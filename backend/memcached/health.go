package memcachedbackend

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/weir/throttler"
)

// What its breaker counts against a server:
//
//	A decision fails if its connection could not be made or broke, if the server
//	replied with an error or not in the protocol, or if it left at least 10 ms of
//	the decision's time pass without a reply. A cancel, and a deadline that gave the
//	server less than that, say nothing about it.

// minWait is the time without a reply that counts. It is measured to the deadline,
// not to when the caller noticed: a busy host is no hanging server.
const minWait = 10 * time.Millisecond

// serverError is an error of a call to the server: not of what is stored there, nor
// of a decision.
type serverError struct{ error }

func (e serverError) Unwrap() error { return e.error }

func fromServer(err error) error {
	if err == nil || errors.Is(err, errItemTooLarge) {
		return err
	}
	return serverError{err}
}

// record records for the breaker what became of j, whose context had that deadline.
func (s *server) record(j *job, deadline time.Time, err error) {
	sentAt := j.sentAt.Load()
	if sentAt <= 0 {
		return // nothing was sent
	}
	timedOut := errors.Is(err, context.DeadlineExceeded)
	switch {
	case timedOut && deadline.Sub(s.started)-time.Duration(sentAt) < minWait, errors.Is(err, context.Canceled):
	case timedOut, errors.As(err, new(serverError)):
		s.breaker.Record(err)
	default:
		s.breaker.Record(nil)
	}
}

// probe reads and writes an item as a decision does, so that it proves what
// decisions need. A conflict with the probe of another process is an answer too.
func (s *server) probe(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(s.deadline)
	}
	found, err := s.client.gets(deadline, []string{s.probeKey}, s.maxItemBytes)
	if err != nil {
		return err
	}
	var old *stored
	if item, ok := found[s.probeKey]; ok {
		old = &item
	}
	_, err = s.client.swap(deadline, s.probeKey, old, []byte("probe"), 2)
	return err
}

func (s *server) breakerChanged(open bool, cause error) {
	if open {
		s.failWaiting()
	}
	if s.observer != nil {
		s.observer.Checked(throttler.Checked{Backend: "memcachedbackend", Shard: s.name, Server: "server", Open: open, Err: cause})
	}
}
