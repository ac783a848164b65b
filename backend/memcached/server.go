package memcachedbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
)

// server is a Server in use.
type server struct {
	name         string
	client       *Client
	breaker      *breaker.Breaker
	observer     observe.Observer // or nil
	probeKey     string           // Memcached's
	margin       int64            // ms
	deadline     time.Duration    // of an exchange
	maxItemBytes int
	spillAt      int           // bytes
	connections  chan struct{} // one element for each that is in use
	started      time.Time
	had          atomic.Int64 // ns that the last decision had that failed
	reported     time.Time    // when the observer was last told; of the breaker's goroutines

	mu      sync.Mutex
	waiting map[string][]*job // by the item's key; an empty entry means that the item has a goroutine
}

// job is one decision that waits for an item.
type job struct {
	ctx    context.Context
	names  []name // of its counts
	change func(*item) (changed bool, err error)
	err    error      // change's
	done   chan error // buffered; receives at most one value; nil if no caller waits

	sentAt atomic.Int64 // when its item was last asked for, in ns since the server is used, or 0
	stage  atomic.Int32
}

// Stages of a job. An exchange and a caller that leaves both change the first, and one
// of them does: so a caller that left before its decision knows that it is never made.
const (
	undecided = iota
	decided   // an exchange may write it
	forgone   // the caller has left
)

// begin reports whether an exchange may decide j.
func (j *job) begin() bool {
	return j.ctx.Err() == nil && (j.stage.CompareAndSwap(undecided, decided) || j.stage.Load() == decided)
}

func newServer(s Server, o *Options) *server {
	n := &server{
		name: s.Name, client: s.Client, observer: o.Observer, probeKey: o.Prefix + "probe",
		margin: o.Margin.Milliseconds(), deadline: o.Deadline,
		maxItemBytes: o.MaxItemBytes, spillAt: min(spillAt, o.MaxItemBytes/4),
		connections: make(chan struct{}, o.MaxConnections), waiting: make(map[string][]*job),
		started: time.Now(),
	}
	n.breaker = breaker.New(n.probe, n.breakerChanged)
	if n.observer != nil {
		n.observer.Checked(observe.Checked{Backend: "memcachedbackend", Shard: n.name, Server: "server"}) // so that it is known of before it fails
	}
	return n
}

// queue adds j to the jobs of the item. An item has one goroutine, as long as jobs
// wait for it.
func (s *server) queue(key string, j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.breaker.Open() { // in the lock: what is added before it opens, failWaiting finds
		j.done <- s.unavailable(breaker.ErrOpen)
		return
	}
	jobs, served := s.waiting[key]
	s.waiting[key] = append(jobs, j)
	if !served {
		go s.serve(key)
	}
}

// failWaiting ends the jobs that wait for the server, because its breaker has opened.
func (s *server) failWaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, jobs := range s.waiting {
		s.waiting[key] = nil
		s.finish(jobs, breaker.ErrOpen)
	}
}

func (s *server) serve(key string) {
	for s.hasPending(key) {
		s.connections <- struct{}{}
		s.decide(key, s.takePending(key))
		<-s.connections
	}
}

// hasPending reports whether jobs wait for the item. If none does, its goroutine
// ends.
func (s *server) hasPending(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting[key]) > 0 {
		return true
	}
	delete(s.waiting, key)
	return false
}

// takePending takes the jobs that wait for the item.
func (s *server) takePending(key string) []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.waiting[key]
	s.waiting[key] = nil
	return jobs
}

// decide does jobs, as many together as it can. If the item has become long, it also
// does the jobs that arrive meanwhile.
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
		it, n, err := s.exchange(key, jobs)
		if errors.Is(err, errTooLarge) {
			if removal := s.spill(it); removal != nil {
				jobs = slices.Insert(jobs, 0, removal)
				continue
			}
		}
		s.finish(jobs[:n], err)
		jobs = jobs[n:]
		switch {
		case n == 0:
			// Each conflict is another process' success. Waits that differ let
			// them take turns.
			conflicts++
			time.Sleep(rand.N(min(time.Duration(conflicts)*100*time.Microsecond, 2*time.Millisecond)))
		case err == nil && it.isLong():
			if removal := s.spill(it); removal != nil {
				jobs = slices.Concat([]*job{removal}, jobs, s.takePending(key))
			}
			fallthrough
		default:
			conflicts = 0
		}
	}
}

// isCanceled reports whether j's caller has left, or is about to.
func (j *job) isCanceled() bool { return j.ctx.Err() != nil }

// finish ends jobs with the error of their exchange, or with their own.
func (s *server) finish(jobs []*job, err error) {
	for _, j := range jobs {
		if j.done != nil {
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

// unsent returns the error of a decision whose context ended before it was sent.
func (s *server) unsent(err error) error {
	return fmt.Errorf("memcachedbackend: shard %q: %w", s.name, err)
}

func (s *server) unavailable(err error) error {
	return &driver.UnavailableError{Backend: "memcachedbackend", Shard: s.name, Err: err}
}
