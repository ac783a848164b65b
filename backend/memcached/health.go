package memcachedbackend

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/observe"
)

// What its breaker counts against a server:
//
//	A decision fails if its connection breaks or cannot be made, if the server
//	replies with an error or not in the protocol, or if the decision's deadline
//	passes 20 ms or more after it was last sent. A cancel and a shorter deadline say
//	nothing; but an exchange has 20 ms for its reply, and if all of its callers have
//	left, it counts in their place.

// minWait is the time without a reply that counts. It is measured to the deadline,
// not to when the caller noticed: a busy host is no hanging server.
const minWait = 20 * time.Millisecond

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
	began, timedOut := s.started.Add(time.Duration(sentAt)), errors.Is(err, context.DeadlineExceeded)
	switch {
	case errors.Is(err, breaker.ErrOpen): // it opened between two exchanges
	case timedOut && deadline.Sub(began) < minWait, errors.Is(err, context.Canceled):
	case timedOut, errors.As(err, new(serverError)):
		s.fail(began, deadline, err)
	default:
		s.breaker.Record(began, nil)
	}
}

// recordLeft records an exchange that had no reply, if none of its callers does: all
// of them left before it says something.
func (s *server) recordLeft(jobs []*job, start time.Time, err error) {
	if !errors.Is(err, context.DeadlineExceeded) {
		return
	}
	for _, j := range jobs {
		deadline, ok := j.ctx.Deadline()
		if ok && deadline.Sub(start) >= minWait && !errors.Is(j.ctx.Err(), context.Canceled) {
			return
		}
	}
	s.fail(start, start.Add(minWait), err)
}

// fail records a failure of what began then and had until deadline.
func (s *server) fail(began, deadline time.Time, err error) {
	s.had.Store(int64(max(deadline.Sub(began), minWait)))
	if errors.Is(err, syscall.ECONNREFUSED) {
		s.breaker.Trip(began, err) // nothing listens there
	} else {
		s.breaker.Record(began, err)
	}
}

// probe reads and writes an item as a decision does, and as quickly as it failed to do
// that, so that it proves what decisions need. A conflict with the probe of another
// process is an answer too.
func (s *server) probe(ctx context.Context) error {
	err := breaker.Quick(time.Duration(s.had.Load()), func() error { return s.ask(ctx) })
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) && time.Since(s.reported) >= time.Second {
		s.report(true, err)
	}
	return err
}

func (s *server) ask(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(s.deadline)
	}
	items, err := s.client.gets(deadline, []string{s.probeKey}, s.maxItemBytes)
	if err != nil {
		return err
	}
	_, err = s.client.swap(deadline, s.probeKey, items[0], []byte("probe"), 2)
	return err
}

func (s *server) breakerChanged(open bool, cause error) {
	if open {
		s.failWaiting()
	}
	s.report(open, cause)
}

// report reports to the observer what is known of the server. Its breaker makes one call
// at a time.
func (s *server) report(open bool, cause error) {
	s.reported = time.Now()
	if s.observer != nil {
		s.observer.Checked(observe.Checked{Backend: "memcachedbackend", Shard: s.name, Server: "server", Open: open, Err: cause})
	}
}
