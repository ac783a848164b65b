package policies

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync"
)

// DefaultMaxFound is the default of SourceOptions.MaxFound.
const DefaultMaxFound = 1 << 16

// SourceOptions configures a source. Nil and the zero value select the defaults.
type SourceOptions struct {
	// Find returns the override for a policy and key that the source does not hold, or
	// nil if the key has no override. Decisions under policies that [Edit.Find] has
	// marked call it once for each pair of policy and key. The answer is remembered, even
	// if it is nil, unless keep is false: then only the decisions that wait for it use it.
	// Find must return when ctx is done. After an error the decision is made without the
	// answer, and the next one calls Find again. If nil, the source holds all its
	// overrides.
	Find func(ctx context.Context, policy, key string) (o *Override, keep bool, err error)

	// MaxFound is the most pairs of policy and key that are remembered. Each takes some
	// 250 bytes and its key; long keys are hashed. Pairs that were not asked for lately
	// are forgotten first. If zero or less, DefaultMaxFound.
	MaxFound int
}

// found remembers the answers of Find.
type found struct {
	find    func(ctx context.Context, policy, key string) (o *Override, keep bool, err error)
	half    int // the most pairs in half of a stripe
	stripes [64]foundStripe
}

// pair is a policy and a key, or the key's hash if it is long: clients may invent keys.
type pair struct {
	policy, key string
	hashed      bool // so that no key is taken for the hash of another
}

// maxKey is the length of the longest key that is remembered without hashing.
const maxKey = 256

func pairOf(policy, key string) pair {
	if len(key) <= maxKey {
		return pair{policy, key, false}
	}
	hash := sha256.Sum256([]byte(key))
	return pair{policy, string(hash[:]), true}
}

// foundStripe keeps pairs in two halves. When the young half is full, it becomes the old half,
// and the pairs in the former old half, which were not asked for since, are forgotten.
type foundStripe struct {
	mu         sync.Mutex
	young, old map[pair]*Override
	asking     map[pair]*ask
}

// ask is a call of Find in progress.
type ask struct {
	done     chan struct{}
	override *Override
	err      error
	stale    bool // the pair has changed since the call began; the call is no longer in asking
}

var errNotFound = errors.New("policies: Find did not return")

func newFound(options SourceOptions) *found {
	f := &found{find: options.Find}
	f.half = max(cmp.Or(max(options.MaxFound, 0), DefaultMaxFound)/len(f.stripes)/2, 1)
	return f
}

func (f *found) stripe(p pair) *foundStripe {
	return &f.stripes[(hashOf(p.policy)*31+hashOf(p.key))%uint64(len(f.stripes))]
}

// get returns the override for a pair, or nil. It calls Find unless the answer is known.
func (f *found) get(ctx context.Context, policy, key string) *Override {
	p := pairOf(policy, key)
	s := f.stripe(p)
	for {
		s.mu.Lock()
		if o, ok := s.lookup(p, f.half); ok {
			s.mu.Unlock()
			return o
		}
		a := s.asking[p]
		if a == nil {
			p.key = strings.Clone(p.key) // it may be a part of a long string
			a = s.begin(p)
			s.mu.Unlock()
			f.ask(ctx, p, key, a)
			return a.override
		}
		s.mu.Unlock()
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil
		}
		// The end of another decision's context says nothing about this one.
		if !errors.Is(a.err, context.Canceled) && !errors.Is(a.err, context.DeadlineExceeded) {
			return a.override
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// ask makes the call a of Find, for p, and remembers the answer.
func (f *found) ask(ctx context.Context, p pair, key string, a *ask) {
	s, keep := f.stripe(p), false
	a.err = errNotFound // if Find panics
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !a.stale {
			delete(s.asking, p)
			if a.err == nil && keep {
				s.keep(p, a.override, f.half)
			}
		}
		close(a.done)
	}()
	o, keep, err := f.find(ctx, p.policy, key)
	if err == nil && o != nil {
		o, err = o.prepare()
	}
	if err == nil {
		a.override = o
	}
	a.err = err
}

// learn makes o, which may be nil, the override of a pair, if the pair is remembered.
func (f *found) learn(p pair, o *Override) {
	s := f.stripe(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tooLate(p)
	if _, ok := s.lookup(p, f.half); ok {
		s.young[p] = o
	}
}

// forget forgets all pairs.
func (f *found) forget() {
	for i := range f.stripes {
		s := &f.stripes[i]
		s.mu.Lock()
		s.young, s.old = nil, nil
		for p := range s.asking {
			s.tooLate(p)
		}
		s.mu.Unlock()
	}
}

// len returns how many pairs are remembered.
func (f *found) len() int {
	n := 0
	for i := range f.stripes {
		s := &f.stripes[i]
		s.mu.Lock()
		n += len(s.young) + len(s.old)
		s.mu.Unlock()
	}
	return n
}

// The caller of the methods below holds s.mu.

// begin begins a call of Find.
func (s *foundStripe) begin(p pair) *ask {
	a := &ask{done: make(chan struct{})}
	if s.asking == nil {
		s.asking = make(map[pair]*ask)
	}
	s.asking[p] = a
	return a
}

// tooLate restricts the answer of a call in progress to the decisions that wait for it.
func (s *foundStripe) tooLate(p pair) {
	if a := s.asking[p]; a != nil {
		a.stale = true
		delete(s.asking, p)
	}
}

// lookup returns the override remembered for p, and makes p young.
func (s *foundStripe) lookup(p pair, half int) (o *Override, ok bool) {
	if o, ok = s.young[p]; ok {
		return o, true
	}
	if o, ok = s.old[p]; ok {
		delete(s.old, p)
		s.keep(p, o, half)
	}
	return o, ok
}

func (s *foundStripe) keep(p pair, o *Override, half int) {
	if s.young == nil {
		s.young = make(map[pair]*Override)
	}
	if _, ok := s.young[p]; !ok && len(s.young) >= half {
		s.young, s.old = make(map[pair]*Override, half), s.young
	}
	s.young[p] = o
}
