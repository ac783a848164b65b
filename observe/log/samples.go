package weirlog

import (
	"encoding"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/observe"
)

// kind is a kind of event that is sampled.
type kind uint8

const (
	refused kind = iota
	degraded
	lost
	notMoved
	failed
	kinds
)

type sampling struct {
	level  slog.Level
	text   string
	ending string // logged when the events are over, unless it is ""
}

var samplings = [kinds]sampling{
	refused:  {slog.LevelInfo, "rate limit: refusals", ""},
	degraded: {slog.LevelWarn, "rate limit: decisions without the shared counts", ""},
	lost:     {slog.LevelWarn, "rate limit: counts began at zero, because the backend that had them did not answer", ""},
	notMoved: {slog.LevelWarn, "rate limit: counts did not move", ""},
	failed:   {slog.LevelWarn, "rate limit: failures", "rate limit: failures are over"},
}

// sampleKey is the subject of one line: a limit, a policy, two backends, or the failures of a
// shard for one cause.
type sampleKey struct {
	kind     kind
	name, to string // a policy; the backends from and to which a count moves; or a backend and its shard
	limit    int
	cause    string
}

func (k sampleKey) attrs() []slog.Attr {
	switch k.kind {
	case refused:
		return []slog.Attr{slog.String("policy", k.name)}
	case degraded:
		return []slog.Attr{slog.String("policy", k.name)}
	case failed:
		attrs := make([]slog.Attr, 0, 8)
		if k.name != "" {
			attrs = append(attrs, slog.String("backend", k.name))
		}
		if k.to != "" {
			attrs = append(attrs, slog.String("shard", k.to))
		}
		return append(attrs, slog.String("cause", k.cause))
	default:
		return []slog.Attr{slog.String("from", k.name), slog.String("to", k.to)}
	}
}

// maxSamples bounds the keys of one kind. Policies are few, unless a program makes them out
// of requests.
const maxSamples = 256

// otherKey is the key of the events beyond maxSamples keys.
func otherKey(k kind) sampleKey {
	if k == failed {
		return sampleKey{kind: k, cause: "(others)"}
	}
	return sampleKey{kind: k, name: "(others)"}
}

// maxKeys is how many keys a line names.
const maxKeys = 8

// maxPolicies is how many policies a line names.
const maxPolicies = 16

// sample counts the events of one key.
type sample struct {
	key   sampleKey
	count atomic.Int64                           // since the last line
	limit atomic.Pointer[encoding.TextMarshaler] // of the last refusal
	armed atomic.Bool                            // a timer will call due

	mu       sync.Mutex // guards the fields below, which counts of refusals don't use
	detail   string     // of the first event with a detail since the last line
	policies []string   // of failures since the last line
	keys     []string   // of refusals since the last line, with Options.ShowKeys
	results  [observe.Results]int64
	total    int64 // failures
	began    time.Time
	last     time.Time
}

// refused notes the limit that refuses, which may be nil.
func (s *sample) refused(limit encoding.TextMarshaler) {
	if before := s.limit.Load(); limit != nil && (before == nil || *before != limit) {
		noted := limit // only this copy is allocated
		s.limit.Store(&noted)
	}
}

// show notes a key that is refused.
func (s *sample) show(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key = brief(key); len(s.keys) < maxKeys && !slices.Contains(s.keys, key) {
		s.keys = append(s.keys, strings.Clone(key))
	}
}

func (s *sample) kind() *sampling { return &samplings[s.key.kind] }

func (s *sample) notMoved(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count.Add(1)
	if s.detail == "" {
		s.detail = brief(err.Error())
	}
}

func (s *sample) failed(e observe.Failed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count.Add(1)
	s.results[e.Result]++
	s.last = time.Now()
	if s.total++; s.total == 1 {
		s.began = s.last
	}
	if s.detail == "" {
		s.detail = e.Detail
	}
	if e.Policy != "" && len(s.policies) < maxPolicies && !slices.Contains(s.policies, e.Policy) {
		s.policies = append(s.policies, e.Policy)
	}
}

// line returns the line about the events since the last line or, if there were no events, the
// line that reports that s is over.
func (s *sample) line() (l line, ends bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l = line{s.kind().level, s.kind().text, s.key.attrs()}
	n := s.count.Swap(0)
	if n == 0 {
		l.level, l.text = slog.LevelInfo, s.kind().ending
		l.attrs = append(l.attrs, slog.Int64("count", s.total), slog.Duration("lasted", s.last.Sub(s.began).Round(time.Millisecond)))
		s.total = 0
		return l, true
	}
	if limit := s.limit.Load(); limit != nil {
		if text, err := (*limit).MarshalText(); err == nil {
			l.attrs = append(l.attrs, slog.String("limit", string(text)))
		}
	}
	l.attrs = append(l.attrs, slog.Int64("count", n))
	if len(s.keys) > 0 {
		l.attrs = append(l.attrs, slog.Any("keys", s.keys))
	}
	if s.key.kind == failed {
		if s.key.cause == observe.CauseInvalid {
			l.level = slog.LevelError
		}
		slices.Sort(s.policies)
		l.attrs = append(l.attrs, slog.Any("policies", s.policies))
		for r, n := range s.results {
			if n > 0 {
				l.attrs = append(l.attrs, slog.Int64(observe.Result(r).String(), n))
			}
		}
	}
	if s.detail != "" {
		l.attrs = append(l.attrs, slog.String("error", s.detail))
	}
	s.detail, s.policies, s.keys, s.results = "", nil, nil, [observe.Results]int64{}
	return l, false
}
