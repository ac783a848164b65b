package weirlog

import (
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// kind is a kind of event that is sampled.
type kind uint8

const (
	refused kind = iota
	degraded
	lost
	notMoved
	kinds
)

var samplings = [kinds]struct {
	level slog.Level
	text  string
}{
	refused:  {slog.LevelInfo, "rate limit: refusals"},
	degraded: {slog.LevelWarn, "rate limit: decisions without the shared counts"},
	lost:     {slog.LevelWarn, "rate limit: counts began at zero, because the backend that had them did not answer"},
	notMoved: {slog.LevelWarn, "rate limit: counts did not move"},
}

// sampleKey is what one line is about: a limit, a policy or two backends.
type sampleKey struct {
	kind     kind
	name, to string // the policy's, or of the backends from and to which a count moves
	limit    int
}

func (k sampleKey) attrs() []slog.Attr {
	switch k.kind {
	case refused:
		return []slog.Attr{slog.String("policy", k.name), slog.Int("limit", k.limit)}
	case degraded:
		return []slog.Attr{slog.String("policy", k.name)}
	default:
		return []slog.Attr{slog.String("from", k.name), slog.String("to", k.to)}
	}
}

// maxSamples bounds the keys. Policies are few, unless a program makes them out of
// requests.
const maxSamples = 256

// samples counts events. A count that exists is found without a lock.
type samples struct {
	all atomic.Pointer[map[sampleKey]*sample]
	mu  sync.Mutex // to add one
}

// sample is the events of one key.
type sample struct {
	count atomic.Int64 // since the last line
	next  atomic.Int64 // when there may be a line, in Unix nanoseconds
}

func (s *samples) of(k sampleKey) *sample {
	if v := s.find(k); v != nil {
		return v
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.find(k); v != nil {
		return v
	}
	all := make(map[sampleKey]*sample)
	if old := s.all.Load(); old != nil {
		maps.Copy(all, *old)
	} else {
		for kind := range kinds {
			all[others(kind)] = new(sample)
		}
	}
	v := new(sample)
	all[k] = v
	s.all.Store(&all)
	return v
}

// find returns nil if k's is to be added.
func (s *samples) find(k sampleKey) *sample {
	all := s.all.Load()
	if all == nil {
		return nil
	}
	if v := (*all)[k]; v != nil || len(*all) < maxSamples {
		return v
	}
	return (*all)[others(k.kind)]
}

// others is the key of all that come when there are too many.
func others(k kind) sampleKey { return sampleKey{kind: k, name: "(others)"} }

// claim reports whether the caller is to log a line now, and sets when the next may be.
func (s *sample) claim(now time.Time, every time.Duration) bool {
	next := s.next.Load()
	return now.UnixNano() >= next && s.next.CompareAndSwap(next, now.Add(every).UnixNano())
}
