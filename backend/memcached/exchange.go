package memcachedbackend

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
)

// Bounds on the decisions made together: their number, which also bounds the items of one
// gets, and the growth of the partition's item in multiples of spillAt.
const (
	maxTogether  = 256
	growTogether = 2
)

// exchange reads the item, calls the changes of the first n jobs, and writes the item if one
// changed it. n is 0 if another process wrote the item in between. The error is the error of
// the n jobs. Nothing is written for a job if its caller left before its change. If the item
// of several jobs is too large, exchange begins again with half of them.
func (s *server) exchange(key string, jobs []*job) (p *item, n int, err error) {
	for {
		var tooMany bool
		if p, n, tooMany, err = s.try(key, jobs); !tooMany {
			return p, n, err
		}
		jobs = jobs[:n/2]
	}
}

// try does what exchange does, once, and records it. If the item of n jobs, more than one, is
// too large, it writes nothing and returns tooMany.
func (s *server) try(key string, jobs []*job) (p *item, n int, tooMany bool, err error) {
	keys := []string{key}
	start, decisions := time.Now(), 0
	for n < min(len(jobs), maxTogether) && len(keys) < maxTogether {
		j := jobs[n]
		for _, name := range j.names {
			if name.ownKey != "" {
				keys = append(keys, name.ownKey)
			}
		}
		j.sentAt.Store(int64(start.Sub(s.started)))
		if j.done != nil {
			decisions++
		}
		n++
	}
	deadline := start
	defer func() {
		if s.isOwnDelay(err, start) {
			err = fmt.Errorf("%w: %w", driver.ErrOverloaded, err)
		}
		s.record(start, deadline, err)
		s.observer.Sent(observe.Sent{Backend: "memcachedbackend", Shard: s.name, Decisions: decisions, Start: start, Duration: time.Since(start), Err: err})
	}()
	// Memcached looks keys up in their order. The partition's item must be the first: as long
	// as it does not change after that, no count moves to its own item or leaves it.
	deadline = s.deadlineOf(jobs[:n])
	items, err := s.read(deadline, keys)
	if err != nil {
		return nil, n, false, fmt.Errorf("the counts were not read, and %w to change them: %w", driver.ErrNotSent, err)
	}
	if p, err = newItem(key, items[0].value, s.margin, s.spillAt); err != nil {
		p, _ = newItem(key, nil, s.margin, s.spillAt) // an empty value is no error
		p.foreign = err
	}
	p.spilled = byKey(keys[1:], items[1:])
	n, changed := p.change(jobs[:n])
	if !changed {
		return p, n, false, nil
	}
	value, life := p.encode()
	if size := len(key) + len(value) + itemOverhead; size > s.maxItemBytes {
		if n > 1 {
			return p, n, true, nil
		}
		return p, n, false, fmt.Errorf("%w: they need an item of %d bytes, and may have %d: raise memcached's -I and MaxItemBytes, or lower the quotas of sliding logs", errTooLarge, size, s.maxItemBytes)
	}
	for _, key := range p.void {
		if own, ok := p.spilled[key]; ok { // if others wrote it since, theirs stays
			if _, err := s.client.swap(deadline, key, own, void, 1); err != nil {
				return p, n, false, fromServer(err)
			}
		}
	}
	written, err := s.write(s.deadlineOf(jobs[:n]), p, items[0], value, expiration(life, p.now))
	if err == nil && !written {
		for _, j := range jobs[:n] {
			j.stage.CompareAndSwap(decided, undecided)
		}
		return p, 0, false, nil
	}
	return p, n, false, err
}

// change calls the changes of the first n jobs, as many as the item has room for.
func (p *item) change(jobs []*job) (n int, changed bool) {
	for n < len(jobs) && p.bytes-p.wasBytes <= growTogether*p.spillAt {
		if j := jobs[n]; j.begin() {
			var c bool
			c, j.err = j.change(p)
			changed = changed || c
		}
		n++
	}
	return n, changed
}

// deadlineOf returns when a call for jobs ends: with the last of their deadlines,
// but not before minWait has passed, nor after s.deadline.
func (s *server) deadlineOf(jobs []*job) time.Time {
	now := time.Now()
	last, latest := now.Add(minWait), now.Add(s.deadline)
	for _, j := range jobs {
		if j.deadline.IsZero() || j.deadline.After(latest) {
			return latest
		}
		if j.deadline.After(last) {
			last = j.deadline
		}
	}
	return last
}

var errTooLarge = errors.New("the counts of the partition's own key, or of one decision, are too large")

// itemOverhead is more than Memcached adds to key and value.
const itemOverhead = 128

// expiration returns the expiration of an item that is needed for life ms from now, which is
// in Unix ms: in seconds or, above 30 days, as a date. Memcached takes larger numbers for
// dates, by its own clock, which may be a day ahead of ours. It has no dates beyond 2038: an
// item needed for longer stays until it is evicted. Memcached's clock ticks once a second and
// may be another second behind, so a key can go nearly two seconds early: one set for 2 s was
// gone after 337 ms.
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

// read returns the items of keys, in their order.
func (s *server) read(deadline time.Time, keys []string) ([]stored, error) {
	items, err := s.client.gets(deadline, keys, s.maxItemBytes)
	return items, fromServer(err)
}

// byKey returns the items that were found, by their keys.
func byKey(keys []string, items []stored) map[string]stored {
	var found map[string]stored
	for i := range items {
		if items[i].found {
			if found == nil {
				found = make(map[string]stored)
			}
			found[keys[i]] = items[i]
		}
	}
	return found
}

// maxWrites bounds the writes of one item after lost replies.
const maxWrites = 16

// write writes value, the stored form of p, in place of old or, if old was not found, adds
// it. It returns false if another process wrote first.
//
// If the reply is lost, it reads the item and compares its write ID. If the item is still old,
// it sends the same write again: Memcached applies only one of two that replace the same item.
func (s *server) write(deadline time.Time, p *item, old stored, value []byte, expiration int32) (bool, error) {
	var lost error
	for range maxWrites {
		written, err := s.client.swap(deadline, p.key, old, value, expiration)
		switch {
		case written:
			return true, nil
		case err == nil && lost == nil:
			return false, nil
		case err != nil && !broken(err):
			return false, fromServer(err)
		case err != nil:
			lost = err
		}
		items, err := s.read(deadline, []string{p.key})
		if err != nil {
			return false, fmt.Errorf("%w; then, reading whether it was written: %w", lost, err)
		}
		switch present := items[0]; {
		case !present.found && old.found:
			return false, nil // evicted, or the server restarted
		case !present.found || old.found && present.cas == old.cas:
			continue
		case writeIDOf(present.value) == p.writeID:
			return true, nil
		}
		return false, fmt.Errorf("whether the item was written is not known, others wrote it since: %w", fromServer(lost))
	}
	return false, fmt.Errorf("every connection broke: %w", fromServer(lost))
}
