// Package memorybackend keeps counts in this process: the embedded default,
// for programs of one process and for tests. It starts no goroutine and needs
// no closing.
package memorybackend

import (
	"context"
	"hash/maphash"
	"math/bits"
	"runtime"
	"time"

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

var _ throttler.Mover = (*Backend)(nil)

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
	if err := ctx.Err(); err != nil {
		return throttler.Decision{}, err
	}
	s := b.shardOf(r.Charges[0].Partition)
	s.mu.Lock()
	defer s.mu.Unlock()
	d, now := newDecision(r.Now, r.Charges), r.Now.UnixMilli()
	var found [throttler.MaxCharges]*entry
	if err := s.locate(r.Charges, r.Home, now, &found); err != nil {
		return throttler.Decision{}, err
	}
	d.Allowed = s.look(&d, now, &found)
	if err := s.makeRoom(r.Charges, &found, d.Allowed, now); err != nil {
		return throttler.Decision{}, err
	}
	s.keepArrivals(r.Charges, &found, now)
	if !d.Allowed {
		return d, nil
	}
	d.Limits = d.Limits[:0]
	for i := range r.Charges {
		s.charge(&d, i, found[i], now)
	}
	return d, nil
}

// Peek implements throttler.Backend.
func (b *Backend) Peek(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttler.Decision{}, err
	}
	s := b.shardOf(r.Charges[0].Partition)
	s.mu.Lock()
	defer s.mu.Unlock()
	d, now := newDecision(r.Now, r.Charges), r.Now.UnixMilli()
	var found [throttler.MaxCharges]*entry
	if err := s.locate(r.Charges, r.Home, now, &found); err != nil {
		return throttler.Decision{}, err
	}
	d.Allowed = s.look(&d, now, &found)
	return d, nil
}

// Settle implements throttler.Backend.
func (b *Backend) Settle(ctx context.Context, st throttler.Settlement) (throttler.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttler.Decision{}, err
	}
	charges := st.Charged.Charges
	s := b.shardOf(charges[0].Partition)
	s.mu.Lock()
	defer s.mu.Unlock()
	d, now := newDecision(st.Now, charges), st.Now.UnixMilli()
	var found [throttler.MaxCharges]*entry
	if err := s.locate(charges, st.Home, now, &found); err != nil {
		return throttler.Decision{}, err
	}
	s.keepArrivals(charges, &found, now)
	d.Allowed = true
	limits := st.Charged.Limits
	for i := range charges {
		n := len(charges[i].Policy.Limits)
		s.settle(&d, i, found[i], limits[:n], st.Costs[i], now)
		limits = limits[n:]
	}
	return d, nil
}

// Release implements throttler.Mover.
func (b *Backend) Release(ctx context.Context, r throttler.Release) ([]throttler.Released, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := b.shardOf(r.Charges[0].Partition)
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]throttler.Released, len(r.Charges))
	for i := range r.Charges {
		all[i] = s.release(&r, i)
	}
	return all, nil
}

func newDecision(now time.Time, charges []throttler.Charge) throttler.Decision {
	limits := 0
	for i := range charges {
		limits += len(charges[i].Policy.Limits)
	}
	return throttler.Decision{At: now, Charges: charges, Limits: make([]throttler.Status, 0, limits)}
}
