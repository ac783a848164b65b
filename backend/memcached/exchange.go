package memcachedbackend

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"syscall"

	"github.com/bradfitz/gomemcache/memcache"
)

// Bounds of what is decided together: by one gets of that many items, and until
// the partition's item has grown by that many times spillAt.
const (
	maxTogether  = 256
	growTogether = 2
)

// tryDecide reads the item, has the first n jobs change it, and writes it if one
// did. n is 0 if another process wrote the item in between. The error is the error
// of the n jobs.
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
	written, err := s.write(old, &memcache.Item{Key: key, Value: value, Expiration: expiration(life, it.now)}, it.writeID)
	if err == nil && !written {
		return it, 0, nil
	}
	return it, n, err
}

var errTooLarge = errors.New("the counts of the partition's own key, or of one decision, are too large")

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

// read returns the items that exist, by their keys. It retries on connections that
// broke while they were idle: reading twice does no harm.
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
// If the reply is lost, it reads the item and compares its write ID.
// If it is old still, the same is sent again: of two writings in the place of
// one old item, Memcached lets one happen.
func (s *server) write(old, item *memcache.Item, writeID uint64) (bool, error) {
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
			return false, fmt.Errorf("%w; then, reading whether it was written: %w", err, readErr)
		case present == nil && old != nil:
			return false, nil // evicted, or the server restarted
		case present == nil || old != nil && present.CasID == old.CasID:
			continue
		}
		if writeIDOf(present.Value) == writeID {
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
