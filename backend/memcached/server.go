package memcachedbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/internal/queues"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
)

// server is a Server in use.
type server struct {
	name         string
	client       *Client
	breaker      *breaker.Breaker
	observer     observe.Observer
	probeKey     string        // Memcached's
	margin       int64         // ms
	deadline     time.Duration // of an exchange
	maxItemBytes int
	spillAt      int           // bytes
	connections  chan struct{} // one element for each connection in use
	started      time.Time
	answers      *busy.Answers // to exchanges
	timeout      atomic.Int64  // ns that the last failed exchange had
	reported     time.Time     // last event to the observer; used by the breaker's goroutines

	waiting queues.Queues[*job] // by the item's key
}

// job is one decision that waits for an item.
type job struct {
	caller   context.Context
	deadline time.Time // when the wait ends if the server is silent; zero if no caller waits
	begun    time.Time
	names    []name // of its counts
	change   func(*item) (changed bool, err error)
	err      error      // change's
	done     chan error // buffered; receives at most one value; nil if no caller waits

	sentAt atomic.Int64 // when its item was last asked for, in ns since server.started, or 0
	stage  atomic.Int32
}

// Stages of a job. An exchange and a caller that leaves both try to change the first, and only
// one succeeds: so a caller that left before its decision knows that it is never made.
const (
	undecided = iota
	decided   // an exchange may write it
	forgone   // the caller has left
)

// begin reports whether an exchange may decide j. If j's caller has left, j is undecided from
// then on, even if an earlier try, which wrote nothing, decided it.
func (j *job) begin() bool {
	if j.caller.Err() != nil {
		j.stage.CompareAndSwap(decided, undecided)
		return false
	}
	return j.stage.CompareAndSwap(undecided, decided) || j.stage.Load() == decided
}

func newServer(s Server, o *Options, observer observe.Observer) *server {
	n := &server{
		name: s.Name, client: s.Client, observer: observer, probeKey: o.Prefix + "probe",
		margin: o.Margin.Milliseconds(), deadline: o.Deadline,
		maxItemBytes: o.MaxItemBytes, spillAt: min(spillAt, o.MaxItemBytes/4),
		connections: make(chan struct{}, o.MaxConnections),
		started:     time.Now(), answers: busy.NewAnswers(),
	}
	n.breaker = breaker.New(n.probe, n.breakerChanged)
	n.observer.Checked(observe.Checked{Backend: "memcachedbackend", Shard: n.name, Server: "server"}) // so that it is known before it fails
	return n
}

// queue adds j to the jobs of the item. An item has one goroutine, as long as jobs
// wait for it.
func (s *server) queue(key string, j *job) {
	if s.waiting.Add(key, j) {
		go s.serve(key)
	}
	if s.breaker.Open() && s.waiting.Remove(key, j) { // failWaiting finds the jobs added before it opens
		s.finish([]*job{j}, breaker.ErrOpen)
	}
}

// failWaiting ends the jobs that wait for the server, because its breaker has opened.
func (s *server) failWaiting() { s.finish(s.waiting.TakeAll(), breaker.ErrOpen) }

func (s *server) serve(key string) {
	for len(s.waiting.Next(key)) > 0 {
		s.connections <- struct{}{}
		s.decide(key, s.waiting.Take(key))
		<-s.connections
	}
}

// decide does jobs, as many together as it can. If the item has become long, it also does the
// jobs that arrive during the spill.
func (s *server) decide(key string, jobs []*job) {
	for conflicts := 0; ; {
		jobs = slices.DeleteFunc(jobs, (*job).isCanceled)
		switch {
		case len(jobs) == 0:
			return
		case s.breaker.Open():
			s.finish(jobs, breaker.ErrOpen)
			return
		}
		p, n, err := s.exchange(key, jobs)
		if errors.Is(err, errTooLarge) {
			if removal := s.spill(p); removal != nil {
				jobs = slices.Insert(jobs, 0, removal)
				continue
			}
		}
		s.finish(jobs[:n], err)
		jobs = jobs[n:]
		switch {
		case n == 0:
			// Each conflict is another process' success. Random waits let them take turns.
			conflicts++
			time.Sleep(rand.N(min(time.Duration(conflicts)*100*time.Microsecond, 2*time.Millisecond)))
		case err == nil && p.isLong():
			if removal := s.spill(p); removal != nil {
				jobs = slices.Concat([]*job{removal}, jobs, s.waiting.Take(key))
			}
			fallthrough
		default:
			conflicts = 0
		}
	}
}

// After its time has passed, a decision checks whether the server is silent, again and again
// after waits that double. If it was not sent, it does so for maxQueued.
const (
	askAgain  = 4 * time.Millisecond
	maxQueued = time.Second
)

// wait returns the outcome of j, or an error when j's time is over or its caller has left. The
// time is over when the deadline has passed and the server has been silent since j.begun. If
// the server answers, or no exchange can tell, the delay is this process's, and j waits on.
func (s *server) wait(j *job) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	if end, ok := j.caller.Deadline(); !ok || j.deadline.Before(end) { // otherwise the caller ends first
		timer.Reset(time.Until(j.deadline))
	}
	for again := askAgain; ; again *= 2 {
		select {
		case err := <-j.done:
			return err
		case <-j.caller.Done():
			return s.leave(j, j.caller.Err())
		case <-timer.C:
		}
		switch {
		case s.answers.SilentSince(j.begun):
			return s.leave(j, nil)
		case time.Since(j.begun) >= max(maxQueued, j.deadline.Sub(j.begun)) && j.sentAt.Load() == 0 && j.stage.CompareAndSwap(undecided, forgone):
			return s.unavailable(fmt.Errorf("%w: the decision was in the queue for %v; %w", driver.ErrOverloaded, maxQueued, driver.ErrNotSent))
		}
		timer.Reset(again)
	}
}

// leave returns the error of a caller that leaves: because of err, its context's error, or
// because j's time is over if err is nil. A deadline says that the server did not answer only
// if that is known, and this process was not late itself.
func (s *server) leave(j *job, err error) error {
	unsent := j.stage.CompareAndSwap(undecided, forgone)
	silent := err == nil || s.answers.SilentSince(j.begun)
	if err == nil {
		err = context.DeadlineExceeded
	}
	isDeadline := !errors.Is(err, context.Canceled)
	delayed := isDeadline && !silent && (s.answers.AnsweredSince(j.begun) || time.Since(j.deadline) > askAgain)
	switch {
	case !unsent:
		select {
		case err := <-j.done: // both at once: the answer counts
			return err
		default: // its write may be on its way
		}
	case j.sentAt.Load() != 0:
		err = fmt.Errorf("the counts were not read, and %w to change them: %w", driver.ErrNotSent, err)
	case isDeadline && silent:
		err = fmt.Errorf("%w in time: %w", driver.ErrNotSent, err)
	default:
		return fmt.Errorf("memcachedbackend: shard %q: %w", s.name, err) // it was never sent
	}
	if delayed {
		err = fmt.Errorf("%w: %w", driver.ErrOverloaded, err)
	}
	return s.unavailable(err)
}

// isCanceled reports whether j's caller has left, or is about to.
func (j *job) isCanceled() bool { return j.stage.Load() == forgone || j.caller.Err() != nil }

// finish ends jobs with the error of their exchange, or with their own. An exchange that
// succeeds has no outcome for a job that it found ended by its context.
func (s *server) finish(jobs []*job, err error) {
	for _, j := range jobs {
		if j.done != nil && (err != nil || j.stage.Load() == decided) {
			j.done <- s.outcome(j, err)
		}
	}
}

// outcome returns the error of j; err is the error of the exchange, which j shares
// with other jobs.
func (s *server) outcome(j *job, err error) error {
	elsewhere := (*handoff.ElsewhereError)(nil)
	switch {
	case err == nil && (j.err == nil || errors.As(j.err, &elsewhere)):
		return j.err
	case err == nil:
		err = j.err
	}
	return s.unavailable(err)
}

func (s *server) unavailable(err error) error {
	return &driver.UnavailableError{Backend: "memcachedbackend", Shard: s.name, Err: err}
}
