package memcachedbackend

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
)

// minWait is the least time that an exchange has for a reply.
const minWait = 20 * time.Millisecond

// serverError is an error of a call to the server, not of a stored item or a decision.
type serverError struct{ error }

func (e serverError) Unwrap() error { return e.error }

func fromServer(err error) error {
	if err == nil || errors.Is(err, errItemTooLarge) {
		return err
	}
	return serverError{err}
}

// isOwnDelay reports whether an exchange that began at began failed because this process was
// late: it timed out without a look at the connection, and the server answered a later request.
func (s *server) isOwnDelay(err error, began time.Time) bool {
	return errors.Is(err, context.DeadlineExceeded) && !errors.As(err, new(*busy.Silence)) && s.answers.AnsweredSince(began)
}

// record records the outcome of an exchange that began at began and had until deadline.
func (s *server) record(began, deadline time.Time, err error) {
	if err != nil {
		s.timeout.Store(int64(max(deadline.Sub(began), minWait)))
	}
	switch {
	case errors.Is(err, driver.ErrOverloaded): // says nothing about the server
	case !errors.As(err, new(serverError)):
		s.answers.Answered(began)
		s.breaker.Record(began, nil)
	case errors.Is(err, syscall.ECONNREFUSED):
		s.answers.Silent()
		s.breaker.Trip(began, err) // nothing listens there
	default:
		s.answers.Silent()
		s.breaker.Record(began, err)
	}
}

// probe reads and writes an item as a decision does. It must be as quick as the last failed
// exchange had to be, so that it proves that decisions would succeed. A conflict with the
// probe of another process is an answer too.
func (s *server) probe(ctx context.Context) error {
	err := breaker.Quick(time.Duration(s.timeout.Load()), func() error { return s.ask(ctx) })
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

// report reports the server's state to the observer. Its breaker makes one call at a time.
func (s *server) report(open bool, cause error) {
	s.reported = time.Now()
	s.observer.Checked(observe.Checked{Backend: "memcachedbackend", Shard: s.name, Server: "server", Open: open, Err: cause})
}
