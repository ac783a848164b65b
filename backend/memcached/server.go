package memcachedbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// server is a Server in use.
type server struct {
	name         string
	client       *memcache.Client
	margin       int64 // ms
	maxItemBytes int
	spillAt      int           // bytes
	connections  chan struct{} // one element for each that is in use

	mu      sync.Mutex
	waiting map[string][]*job // by the item's key; an empty entry means that the item has a goroutine
}

// job is one decision that waits for an item.
type job struct {
	ctx    context.Context
	names  []name // of its counts
	change func(*item) (changed bool, err error)
	err    error      // change's
	done   chan error // buffered; receives exactly one value
}

func newServer(s Server, o *Options) *server {
	return &server{
		name: s.Name, client: s.Client, margin: o.Margin.Milliseconds(),
		maxItemBytes: o.MaxItemBytes, spillAt: min(spillAt, o.MaxItemBytes/4),
		connections: make(chan struct{}, o.MaxConnections), waiting: make(map[string][]*job),
	}
}

// queue adds j to the jobs of the item. An item has one goroutine, as long as jobs
// wait for it.
func (s *server) queue(key string, j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs, served := s.waiting[key]
	s.waiting[key] = append(jobs, j)
	if !served {
		go s.serve(key)
	}
}

// leave removes j from the queue, and reports whether it was still there: nothing
// of it was sent then.
func (s *server) leave(key string, j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting[key], j)
	if i < 0 {
		return false
	}
	s.waiting[key] = slices.Delete(s.waiting[key], i, i+1)
	return true
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
		jobs = s.dropCanceled(jobs)
		if len(jobs) == 0 {
			return
		}
		it, n, err := s.tryDecide(key, jobs)
		if errors.Is(err, errTooLarge) {
			if removal := s.spill(it); removal != nil {
				jobs = slices.Insert(jobs, 0, removal)
				continue
			}
		}
		for _, j := range jobs[:n] {
			j.done <- s.outcome(j, err)
		}
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

// outcome returns the error of j, which was decided; err is the error of the
// exchange, which j shares with other jobs.
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

// dropCanceled ends the jobs whose contexts are done and returns the others.
// Nothing was written for the jobs that it ends.
func (s *server) dropCanceled(jobs []*job) []*job {
	wanted := jobs[:0]
	for _, j := range jobs {
		if err := j.ctx.Err(); err != nil {
			j.done <- s.unsent(err)
		} else {
			wanted = append(wanted, j)
		}
	}
	return wanted
}

// unsent returns the error of a decision whose context ended before it was sent.
func (s *server) unsent(err error) error {
	return fmt.Errorf("memcachedbackend: shard %q: %w", s.name, err)
}

func (s *server) unavailable(err error) error {
	return &throttler.UnavailableError{Backend: "memcachedbackend", Shard: s.name, Err: err}
}
