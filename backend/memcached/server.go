package memcachedbackend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
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
	waiting map[string][]*job // by the item's key; an entry, if empty, says that the item is being served
}

// job is one decision that waits for an item.
type job struct {
	ctx    context.Context
	names  []name // of its counts
	change func(*item) (changed bool, err error)
	err    error      // change's
	done   chan error // sent once, never waited for
}

func newServer(s Server, o *Options) *server {
	return &server{
		name: s.Name, client: s.Client, margin: o.Margin.Milliseconds(),
		maxItemBytes: o.MaxItemBytes, spillAt: min(spillAt, o.MaxItemBytes/4),
		connections: make(chan struct{}, o.MaxConnections), waiting: make(map[string][]*job),
	}
}

// queue has j done. For each item there is one goroutine at a time, as long as
// jobs for it wait.
func (s *server) queue(key string, j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs, served := s.waiting[key]
	s.waiting[key] = append(jobs, j)
	if !served {
		go s.serve(key)
	}
}

// leave takes j back, and reports whether it was still waiting: then nothing of
// it was sent.
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
	for s.isWaitedFor(key) {
		s.connections <- struct{}{}
		s.decide(key, s.waitingFor(key))
		<-s.connections
	}
}

// isWaitedFor reports whether jobs wait for the item. If none does, it is not
// being served any more.
func (s *server) isWaitedFor(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting[key]) > 0 {
		return true
	}
	delete(s.waiting, key)
	return false
}

// waitingFor takes the jobs that wait for the item.
func (s *server) waitingFor(key string) []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.waiting[key]
	s.waiting[key] = nil
	return jobs
}

// decide does jobs, as many together as it can, and after them those that come
// in the meantime if the item has become long.
func (s *server) decide(key string, jobs []*job) {
	for conflicts := 0; ; {
		jobs = stillWanted(jobs)
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
				jobs = slices.Concat([]*job{removal}, jobs, s.waitingFor(key))
			}
			fallthrough
		default:
			conflicts = 0
		}
	}
}

// outcome returns the error of j, which was decided; err is that of all that were
// decided with it.
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

// stillWanted ends the jobs whose contexts are done: nothing was written for
// them.
func stillWanted(jobs []*job) []*job {
	wanted := jobs[:0]
	for _, j := range jobs {
		if err := j.ctx.Err(); err != nil {
			j.done <- err
		} else {
			wanted = append(wanted, j)
		}
	}
	return wanted
}

// Bounds of what is decided together: by one gets of that many items, and until
// the partition's item has grown by that many times spillAt.
const (
	maxTogether  = 256
	growTogether = 2
)

// tryDecide reads the item, has the first n jobs change it, and writes it if one
// did. n is 0 if another process wrote the item in between. An error is that of
// the n jobs.
func (s *server) tryDecide(key string, jobs []*job) (it *item, n int, err error) {
	keys := []string{key}
	for n < len(jobs) && len(keys) < maxTogether {
		for _, name := range jobs[n].names {
			if name.ownKey != "" {
				keys = append(keys, name.ownKey)
			}
		}
		n++
	}
	// Memcached looks keys up in their order. The partition's item must be the
	// first: as long as it does not change after that, no count comes to its own
	// item, or leaves it.
	items, err := s.read(keys...)
	if err != nil {
		return nil, n, err
	}
	old := items[key]
	if it, err = newItem(key, valueOf(old), s.margin, s.spillAt); err != nil {
		return nil, n, err
	}
	it.own = items
	changed := false
	for i, j := range jobs[:n] {
		var c bool
		c, j.err = j.change(it)
		changed = changed || c
		if it.bytes-it.wasBytes > growTogether*s.spillAt {
			n = i + 1
			break
		}
	}
	if !changed {
		return it, n, nil
	}
	value, life := it.encode()
	if size := len(key) + len(value) + itemOverhead; size > s.maxItemBytes {
		if n > 1 {
			return s.tryDecide(key, jobs[:n/2])
		}
		return it, n, fmt.Errorf("%w: they need an item of %d bytes, and may have %d: raise memcached's -I and MaxItemBytes, or lower the quotas of sliding logs", errTooLarge, size, s.maxItemBytes)
	}
	written, err := s.write(old, &memcache.Item{Key: key, Value: value, Expiration: expiration(life, it.now)}, it.draw)
	if err == nil && !written {
		return it, 0, nil
	}
	return it, n, err
}

var errTooLarge = errors.New("the counts of the partition's own key, or those of one decision, are too large")

func valueOf(item *memcache.Item) []byte {
	if item == nil {
		return nil
	}
	return item.Value
}

// itemOverhead is more than Memcached adds to key and value.
const itemOverhead = 128

// expiration returns how long an item is kept that is needed for life ms from
// now on, a Unix ms: in seconds or, above 30 days, as a date. Memcached takes
// larger numbers for dates, by its own clock, which may be a day ahead of ours;
// it knows none beyond 2038, and keeps what is needed for longer until it is
// evicted. Its clock ticks once a second and may be another second behind, so that a
// key can go nearly two seconds early: one set for 2 s was gone after 337 ms.
func expiration(life, now int64) int32 {
	const day = 24 * 60 * 60
	seconds := (life+999)/1000 + 2
	if seconds <= 30*day {
		return int32(seconds)
	}
	date := now/1000 + seconds + day
	if date > math.MaxInt32 {
		return 0
	}
	return int32(date)
}

// read returns those of the items that exist, by their keys. Connections that
// broke while they were idle are passed over: reading twice does no harm.
func (s *server) read(keys ...string) (items map[string]*memcache.Item, err error) {
	for range cap(s.connections) + 1 {
		items, err = s.get(keys)
		if !broken(err) {
			break
		}
	}
	return items, err
}

func (s *server) get(keys []string) (map[string]*memcache.Item, error) {
	if len(keys) > 1 {
		return s.client.GetMulti(keys)
	}
	// GetMulti starts a goroutine.
	item, err := s.client.Get(keys[0])
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return map[string]*memcache.Item{keys[0]: item}, nil
}

// broken reports whether a connection ended without an answer.
func broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// write puts item in the place of old, or of no item. It returns false if
// another process did so first.
//
// If the answer is lost, it looks whether the item is the one with this draw.
// If it is old still, the same is sent again: of two writings in the place of
// one old item, Memcached lets one happen.
func (s *server) write(old, item *memcache.Item, draw uint64) (bool, error) {
	lost := false
	for range cap(s.connections) + 1 {
		err := s.swap(old, item)
		if err == nil {
			return true, nil
		}
		conflict := isConflict(err)
		if conflict && !lost {
			return false, nil
		}
		if !conflict && !broken(err) {
			return false, err
		}
		lost = true
		items, readErr := s.read(item.Key)
		present := items[item.Key]
		switch {
		case readErr != nil:
			return false, fmt.Errorf("%w; then, looking whether it was written: %w", err, readErr)
		case present == nil && old != nil:
			return false, nil // evicted, or the server was started anew
		case present == nil || old != nil && present.CasID == old.CasID:
			continue
		}
		if drawOf(present.Value) == draw {
			return true, nil
		}
		return false, fmt.Errorf("whether the item was written is not known, others wrote it since: %w", err)
	}
	return false, errors.New("every connection broke")
}

// isConflict reports whether swap failed because the item is not old any more.
func isConflict(err error) bool {
	return errors.Is(err, memcache.ErrCASConflict) || errors.Is(err, memcache.ErrNotStored) || errors.Is(err, memcache.ErrCacheMiss)
}

// swap writes item in the place of old, or of none.
func (s *server) swap(old, item *memcache.Item) error {
	if old == nil {
		return s.client.Add(item)
	}
	item.CasID = old.CasID
	return s.client.CompareAndSwap(item)
}

func (s *server) unavailable(err error) error {
	return &throttler.UnavailableError{Backend: "memcachedbackend", Shard: s.name, Err: err}
}
