package weirdebug

import (
	"cmp"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/observe"
)

// refusals counts the keys that are refused most, in constant space, for this minute and the
// one before. Each minute is summarized by the algorithm Space-Saving (Metwally et al., 2005):
// a key without a counter takes over the smallest counter, with its count. So a count is never
// too low, and too high by at most the count taken over. A key with more than one in
// maxRefused of the minute's refusals is never missing.
type refusals struct {
	mu       sync.Mutex
	began    time.Time // the current minute
	current  map[refusedKey]*refused
	previous map[refusedKey]*refused
}

const minute = time.Minute

// Refusals lists the keys that this process refused most, in the last two minutes at most.
type Refusals struct {
	At    time.Time `json:"at"`
	Since time.Time `json:"since"` // when the counts begin

	// Missed is the most refusals that a key missing from Keys can have, or 0 if no key is
	// missing.
	Missed int64 `json:"missed"`

	Keys []Refused `json:"keys"` // the most refused first
}

// Refused is a key that was refused by a limit.
type Refused struct {
	Policy string `json:"policy"`
	Limit  string `json:"limit"` // in words, as of the last refusal
	Label  string `json:"label"` // Options.Label's, or the hash of the key
	Count  int64  `json:"count"`
	Excess int64  `json:"excess"` // how far Count may be too high

	// RetryAt is when the refused charge would fit, as the last refusal said.
	RetryAt time.Time `json:"retry_at"`
}

// refusedKey is a key under a limit. Keys are not kept: 64 bits of a hash tell them apart.
type refusedKey struct {
	policy string
	limit  int
	hash   uint64
}

type refused struct {
	label   string
	limit   encoding.TextMarshaler // of the last refusal; may be nil
	count   int64
	excess  int64 // how far count may be too high
	retryAt time.Time
}

var seed = maphash.MakeSeed()

// add counts the refusal e, made at now.
func (r *refusals) add(e *observe.Decided, now time.Time, label func(policy, key string) string) {
	key := refusedKey{e.Policy, e.Limit, maphash.String(seed, e.Key)}
	if r.again(key, e, now) {
		return
	}
	if label == nil {
		label = hashOf
	}
	r.enter(key, label(e.Policy, e.Key), e)
}

// again counts a refusal of a key that has a counter.
func (r *refusals) again(key refusedKey, e *observe.Decided, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	c := r.current[key]
	if c == nil {
		return false
	}
	c.count++
	c.retryAt, c.limit = e.RetryAt, e.Binding
	return true
}

// turn begins a minute if the last one is over.
func (r *refusals) turn(now time.Time) {
	switch age := now.Sub(r.began); {
	case age < minute:
		return
	case age < 2*minute:
		r.previous, r.began = r.current, r.began.Add(minute)
	default:
		r.previous, r.began = nil, now
	}
	r.current = make(map[refusedKey]*refused, maxRefused)
}

// enter gives a key a counter.
func (r *refusals) enter(key refusedKey, label string, e *observe.Decided) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.current[key]
	if c == nil { // otherwise another goroutine was first
		c = &refused{label: label}
		if len(r.current) >= maxRefused {
			least := least(r.current)
			c.count, c.excess = r.current[least].count, r.current[least].count
			delete(r.current, least)
		}
		r.current[key] = c
	}
	c.count++
	c.retryAt, c.limit = e.RetryAt, e.Binding
}

func least(counts map[refusedKey]*refused) (least refusedKey) {
	count := int64(-1)
	for key, c := range counts {
		if count < 0 || c.count < count {
			least, count = key, c.count
		}
	}
	return least
}

// hashOf returns the first 96 bits of a SHA-256 of a key. It is the same in all processes, so
// that their counts can be added up, and is part of the names of Redis keys.
func hashOf(_, key string) string {
	sum := sha256.Sum256([]byte(key))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// top returns the refusals since the minute before the current one began.
func (r *refusals) top(now time.Time) Refusals {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	result := Refusals{At: now, Since: r.began}
	if r.previous != nil {
		result.Since = r.began.Add(-minute)
	}
	sums := make(map[refusedKey]refused)
	for _, counts := range []map[refusedKey]*refused{r.previous, r.current} {
		if len(counts) >= maxRefused {
			result.Missed += counts[least(counts)].count
		}
		for key, c := range counts {
			sum := *c
			sum.count += sums[key].count
			sum.excess += sums[key].excess
			sums[key] = sum
		}
	}
	for key, c := range sums {
		limit := ""
		if c.limit != nil {
			if text, err := c.limit.MarshalText(); err == nil {
				limit = string(text)
			}
		}
		result.Keys = append(result.Keys, Refused{key.policy, limit, c.label, c.count, c.excess, c.retryAt})
	}
	slices.SortFunc(result.Keys, func(a, b Refused) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Label, b.Label), cmp.Compare(a.Limit, b.Limit))
	})
	return result
}
