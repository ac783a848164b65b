// Package memorybackend keeps counts in this process. It is for programs of one
// process and for tests: several processes would each allow the whole quota. It
// starts no goroutine and needs no closing.
//
// Its memory is bounded, in keys and in bytes. When it is full, a new key replaces
// a count that has expired or, of a few others, the one that has used the smallest
// part of its quota; the count of a key that is refused is never dropped. If all
// have used up their quotas, new keys are counted together: they share a fixed
// number of counts for each policy until there is room again.
package memorybackend

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/bits"
	"runtime"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// Defaults of Options. A million keys of one or two limits fit in DefaultMaxBytes
// and leave more than 90 MB to states that need more, such as long sliding logs.
const (
	DefaultMaxKeys  = 1 << 20
	DefaultMaxBytes = 256 << 20
)

// MinMaxBytes is the smallest bound on bytes that a Backend can keep.
const MinMaxBytes = 1 << 20

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// MaxKeys is the most (policy, key) pairs that have a count of their own. It
	// is divided evenly among locks, so keys may find their part full when a
	// little less than MaxKeys are kept. If zero, DefaultMaxKeys.
	MaxKeys int

	// MaxBytes is the most memory that counts take on the heap, in bytes, with
	// their index: 140 to 150 for a key of one or two limits, whatever its length,
	// and more for more limits and for sliding logs. At least MinMaxBytes. If
	// zero, DefaultMaxBytes. Where a sliding log finds no room to grow, its
	// charges are merged with later ones, and so count a little longer.
	MaxBytes int64

	// Log receives a warning while new keys find no room and are counted together,
	// at most once a second, and a line when that is over. If nil, slog.Default().
	Log *slog.Logger
}

// Validate returns nil, or an error that wraps throttler.ErrInvalid and names the
// field that is wrong. Call it if options come from configuration: New panics
// where it fails. Nil options are valid.
func (o *Options) Validate() error {
	switch {
	case o == nil:
		return nil
	case o.MaxKeys < 0:
		return fmt.Errorf("memorybackend: MaxKeys is %d; it must be 1 or more, or 0 for %d: %w", o.MaxKeys, DefaultMaxKeys, throttler.ErrInvalid)
	case o.MaxBytes != 0 && o.MaxBytes < MinMaxBytes:
		return fmt.Errorf("memorybackend: MaxBytes is %d; it must be %d or more, or 0 for %d: %w", o.MaxBytes, MinMaxBytes, DefaultMaxBytes, throttler.ErrInvalid)
	}
	return nil
}

// Backend keeps counts in memory of this process. It is safe for concurrent use.
type Backend struct {
	seed   maphash.Seed
	shards []shard
	report reporter
}

var _ handoff.Store = (*Backend)(nil)

// New returns an empty Backend. It panics if options are not valid.
func New(options *Options) *Backend {
	if err := options.Validate(); err != nil {
		panic(err)
	}
	o := Options{MaxKeys: DefaultMaxKeys, MaxBytes: DefaultMaxBytes, Log: slog.Default()}
	if options != nil {
		if options.MaxKeys != 0 {
			o.MaxKeys = options.MaxKeys
		}
		if options.MaxBytes != 0 {
			o.MaxBytes = options.MaxBytes
		}
		if options.Log != nil {
			o.Log = options.Log
		}
	}
	// Enough locks that goroutines seldom meet, a power of two to mask by, and so
	// few that keys and bytes divide evenly.
	locks := min(16*runtime.GOMAXPROCS(0), max(o.MaxKeys/keysPerLock, 1), int(min(o.MaxBytes/bytesPerLock, 1<<20)))
	locks = 1 << (bits.Len(uint(locks)) - 1)
	b := &Backend{seed: maphash.MakeSeed(), shards: make([]shard, locks), report: reporter{log: o.Log}}
	for i := range b.shards {
		b.shards[i] = shard{
			seed:     b.seed,
			maxKeys:  o.MaxKeys / locks,
			maxBytes: o.MaxBytes / int64(locks),
			shares:   uint32(max(sharedCounts/locks, 1)),
		}
	}
	return b
}

// Least parts of the bounds that a lock is worth having for.
const (
	keysPerLock  = 1 << 10
	bytesPerLock = 1 << 18
)

func (b *Backend) shardOf(charges []throttler.Charge) *shard {
	return b.shardAt(partitionHash(b.seed, &charges[0]))
}

func (b *Backend) shardAt(partition uint64) *shard {
	return &b.shards[partition&uint64(len(b.shards)-1)]
}

// Take implements throttler.Backend.
func (b *Backend) Take(ctx context.Context, r throttler.Request) (d throttler.Decision, err error) {
	if err := ctx.Err(); err != nil {
		return d, err
	}
	if b.takeWindow(&r, &d) {
		return d, nil
	}
	return b.TakeAt(ctx, r, nil)
}

// Peek implements throttler.Backend.
func (b *Backend) Peek(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	return b.PeekAt(ctx, r, nil)
}

// Settle implements throttler.Backend.
func (b *Backend) Settle(ctx context.Context, st throttler.Settlement) (throttler.Decision, error) {
	return b.SettleAt(ctx, st, nil)
}

// TakeAt implements handoff.Store.
func (b *Backend) TakeAt(ctx context.Context, r throttler.Request, p *handoff.Placement) (throttler.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttler.Decision{}, err
	}
	at := moment{now: r.Now}
	d, found, err := b.shardOf(r.Charges()).take(&r, p, longNames(r.Charges()), &at)
	b.report.note(b, found, &at)
	return d, outside(err)
}

// PeekAt implements handoff.Store.
func (b *Backend) PeekAt(ctx context.Context, r throttler.Request, p *handoff.Placement) (throttler.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttler.Decision{}, err
	}
	d, err := b.shardOf(r.Charges()).peek(&r, p, longNames(r.Charges()), &moment{now: r.Now})
	return d, outside(err)
}

// SettleAt implements handoff.Store.
func (b *Backend) SettleAt(ctx context.Context, st throttler.Settlement, p *handoff.Placement) (throttler.Decision, error) {
	if err := ctx.Err(); err != nil {
		return throttler.Decision{}, err
	}
	charges := st.Charged.Charges()
	d, err := b.shardOf(charges).settle(&st, p, longNames(charges), &moment{now: st.Now})
	return d, outside(err)
}

// Release implements handoff.Store. If the backend is full and has no count of a
// key, it does not remember that the count left: a process that has not heard of
// the move, and takes here, then counts the key as a new one.
func (b *Backend) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return b.shardOf(r.Charges).release(&r, longNames(r.Charges), &moment{now: r.Now}), nil
}

// Down implements handoff.Store: never.
func (b *Backend) Down(string) (since time.Time, down bool) { return time.Time{}, false }

// outside returns err as callers see it: what is no ElsewhereError was a count
// that another backend released and that cannot be read.
func outside(err error) error {
	if err == nil {
		return nil
	}
	if elsewhere := (*handoff.ElsewhereError)(nil); errors.As(err, &elsewhere) {
		return err
	}
	return fmt.Errorf("memorybackend: %w: %w", throttler.ErrUnavailable, err)
}
