// Package memorybackend keeps counts in this process: the embedded default,
// for programs of one process and for tests. It starts no goroutine and needs
// no closing.
package memorybackend

import (
	"context"
	"hash/maphash"
	"math/bits"
	"runtime"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// DefaultMaxKeys is the bound on keys if Options sets none. At some 200 bytes
// for a key of one limit, it is about 200 MB.
const DefaultMaxKeys = 1 << 20

// Options are what a Backend can be told. The zero value, and nil, are fine.
type Options struct {
	// MaxKeys is the most (policy, key) pairs that are kept at once, about: it
	// is divided among locks, and each holds to its share. If zero,
	// DefaultMaxKeys.
	//
	// A key whose windows are over makes room for a new one. Where there is
	// none of these among a few looked at, the one of them that used the
	// smallest part of its quota loses its count. A key that has used up a
	// quota never does: if only such are found, the new key's take fails with
	// an error that wraps throttler.ErrUnavailable.
	MaxKeys int
}

// Backend keeps counts in maps of this process. It is safe for concurrent use.
type Backend struct {
	seed   maphash.Seed
	shards []shard
}

var _ handoff.Store = (*Backend)(nil)

// New returns an empty Backend. It panics if MaxKeys is negative.
func New(options *Options) *Backend {
	maxKeys := DefaultMaxKeys
	if options != nil && options.MaxKeys != 0 {
		maxKeys = options.MaxKeys
	}
	if maxKeys < 0 {
		panic("memorybackend: New: MaxKeys is negative")
	}
	// Enough locks that goroutines seldom meet, a power of two to mask by, and
	// no more than keys.
	locks := min(16*runtime.GOMAXPROCS(0), maxKeys)
	locks = 1 << (bits.Len(uint(locks)) - 1)
	b := &Backend{seed: maphash.MakeSeed(), shards: make([]shard, locks)}
	for i := range b.shards {
		b.shards[i].bound = maxKeys / locks
		b.shards[i].keys = make(map[string]*entry)
	}
	return b
}

func (b *Backend) shardOf(partition string) *shard {
	return &b.shards[maphash.String(b.seed, partition)&uint64(len(b.shards)-1)]
}

// Take implements throttler.Backend.
func (b *Backend) Take(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	return b.take(ctx, r, nil)
}

// Peek implements throttler.Backend.
func (b *Backend) Peek(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	return b.peek(ctx, r, nil)
}

// Settle implements throttler.Backend.
func (b *Backend) Settle(ctx context.Context, st throttler.Settlement) (throttler.Decision, error) {
	return b.settle(ctx, st, nil)
}

// take makes a decision under p, nil if counts do not move, as peek and settle
// do.
func (b *Backend) take(ctx context.Context, r throttler.Request, p *handoff.Placement) (throttler.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttler.Decision{}, err
	}
	s := b.shardOf(r.Charges[0].Partition)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := r.Now.UnixMilli()
	var found entries
	if err := s.locate(r.Charges, p, now, &found); err != nil {
		return throttler.Decision{}, err
	}
	var states states
	d := algorithm.Look(r, found.states(&states, len(r.Charges)))
	if err := s.makeRoom(r.Charges, &found, d.Allowed, now); err != nil {
		return throttler.Decision{}, err
	}
	s.keepArrivals(r.Charges, &found, now)
	if !d.Allowed {
		return d, nil
	}
	for i := range r.Charges {
		if c := &r.Charges[i]; found[i] == nil {
			found[i] = s.begin(c, c.Cost > 0)
		}
	}
	ends := found.ends(now)
	algorithm.Charge(&d, found.states(&states, len(r.Charges)))
	found.note(&d, &ends, now)
	return d, nil
}

func (b *Backend) peek(ctx context.Context, r throttler.Request, p *handoff.Placement) (throttler.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttler.Decision{}, err
	}
	s := b.shardOf(r.Charges[0].Partition)
	s.mu.Lock()
	defer s.mu.Unlock()
	var found entries
	if err := s.locate(r.Charges, p, r.Now.UnixMilli(), &found); err != nil {
		return throttler.Decision{}, err
	}
	var states states
	return algorithm.Look(r, found.states(&states, len(r.Charges))), nil
}

func (b *Backend) settle(ctx context.Context, st throttler.Settlement, p *handoff.Placement) (throttler.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttler.Decision{}, err
	}
	charges := st.Charged.Charges
	s := b.shardOf(charges[0].Partition)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := st.Now.UnixMilli()
	var found entries
	if err := s.locate(charges, p, now, &found); err != nil {
		return throttler.Decision{}, err
	}
	s.keepArrivals(charges, &found, now)
	for i := range charges {
		if c := &charges[i]; found[i] == nil {
			// Lost or expired. What was charged too little is charged all the
			// same; it makes no room for its key, so that it cannot fail.
			found[i] = s.begin(c, st.Costs[i] > c.Cost)
		}
	}
	ends := found.ends(now)
	var states states
	d := algorithm.Settle(st, found.states(&states, len(charges)))
	found.note(&d, &ends, now)
	return d, nil
}
