package weirdebug

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/observe"
)

// refusals knows the keys that are refused most, in constant space: the counts of this minute
// and of the one before. Each minute has a summary by the algorithm Space-Saving (Metwally et
// al., 2005): a key without a counter takes over the least one, and its count. So a count is
// never too low, too high by at most what the key took over, and a key with more than one in
// maxRefused of the minute's refusals is never missing.
type refusals struct {
	mu       sync.Mutex
	began    time.Time // the current minute
	current  map[refusedKey]*refused
	previous map[refusedKey]*refused
}

const minute = time.Minute

// refusedKey is a key under a limit. Keys are not kept: 64 bits of a hash tell them apart.
type refusedKey struct {
	policy string
	limit  int
	hash   uint64
}

type refused struct {
	label   string
	count   int64
	excess  int64 // by which count may be too high
	retryAt time.Time
}

var seed = maphash.MakeSeed()

// add counts the refusal e, which was at now.
func (r *refusals) add(e *observe.Decided, now time.Time, label func(policy, key string) string) {
	key := refusedKey{e.Policy, e.Limit, maphash.String(seed, e.Key)}
	if r.again(key, e.RetryAt, now) {
		return
	}
	text := fmt.Sprintf("%016x", key.hash)
	if label != nil {
		text = label(e.Policy, e.Key)
	}
	r.enter(key, text, e.RetryAt)
}

// again counts a refusal of a key that has a counter.
func (r *refusals) again(key refusedKey, retryAt, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	c := r.current[key]
	if c == nil {
		return false
	}
	c.count++
	c.retryAt = retryAt
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
func (r *refusals) enter(key refusedKey, label string, retryAt time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.current[key]
	if c == nil { // else another goroutine was first
		c = &refused{label: label}
		if len(r.current) >= maxRefused {
			least := r.least()
			c.count, c.excess = r.current[least].count, r.current[least].count
			delete(r.current, least)
		}
		r.current[key] = c
	}
	c.count++
	c.retryAt = retryAt
}

func (r *refusals) least() (least refusedKey) {
	count := int64(-1)
	for key, c := range r.current {
		if count < 0 || c.count < count {
			least, count = key, c.count
		}
	}
	return least
}

// most returns copies of those that were refused since the minute before the current one
// began, the most often refused first.
func (r *refusals) most(now time.Time) (since time.Time, keys []refusedKey, counts []refused) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	sums := make(map[refusedKey]refused)
	for key, c := range r.previous {
		sums[key] = *c
	}
	for key, c := range r.current {
		sum := *c
		sum.count += sums[key].count
		sum.excess += sums[key].excess
		sums[key] = sum
	}
	for key := range sums {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b refusedKey) int {
		return cmp.Or(cmp.Compare(sums[b].count, sums[a].count), cmp.Compare(a.policy, b.policy), cmp.Compare(sums[a].label, sums[b].label), cmp.Compare(a.limit, b.limit))
	})
	for _, key := range keys {
		counts = append(counts, sums[key])
	}
	if r.previous != nil {
		return r.began.Add(-minute), keys, counts
	}
	return r.began, keys, counts
}
