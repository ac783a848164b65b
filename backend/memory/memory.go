// Package memorybackend keeps counts in this process. It is for programs of one
// process and for tests: several processes would each allow the whole quota. It
// starts no goroutine and needs no closing.
//
// Its memory is bounded, in keys and in bytes. When it is full, a new key replaces an expired
// count or, of a few others, the one with the smallest used part of its quota; the count of a
// key that is refused is never dropped. If all counts have used up their quotas, new keys are
// counted together: until there is room, in a fixed number of pooled counts for each policy.
package memorybackend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"runtime"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/relay"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Defaults of Options. A million keys of two fixed windows or one token bucket fit in
// DefaultMaxBytes and leave more than 90 MB to larger states, such as long sliding logs.
const (
	DefaultMaxKeys  = 1 << 20
	DefaultMaxBytes = 256 << 20
)

// MinMaxBytes is the smallest bound on bytes that a Backend can keep.
const MinMaxBytes = 1 << 20

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// MaxKeys is the most (policy, key) pairs that have their own count. It is divided
	// evenly among stripes, so a key may find its stripe full when a little less than
	// MaxKeys are kept. If zero, DefaultMaxKeys.
	MaxKeys int

	// MaxBytes is the most memory that counts take on the heap, in bytes, with
	// their index: 140 to 150 for a key of two fixed windows or one token bucket,
	// whatever its length, and more for more limits, leaky buckets and sliding logs.
	// At least MinMaxBytes. If zero, DefaultMaxBytes. Where a sliding log finds no room to grow, its
	// charges are merged with later ones, and so count a little longer.
	MaxBytes int64

	// Observer receives a Failed for each take that finds no room for its new keys, which
	// are then counted together with others. If nil, the throttler's does. The default log is
	// added, with a line for the first, then one a minute, and one when there is room: see
	// weirlog.Ensure.
	Observer observe.Observer
}

// Backend keeps counts in memory of this process. It is safe for concurrent use.
type Backend struct {
	seed     maphash.Seed
	stripes  []stripe
	observer *relay.Relay
}

var _ handoff.Store = (*Backend)(nil)

// New returns an empty Backend. The error wraps quota.ErrInvalid and names the option
// that is wrong.
func New(options *Options) (*Backend, error) {
	o := Options{}
	if options != nil {
		o = *options
	}
	switch {
	case o.MaxKeys < 0:
		return nil, invalid.Errorf("memorybackend: MaxKeys is %d; it must be 1 or more, or 0 for %d", o.MaxKeys, DefaultMaxKeys)
	case o.MaxBytes != 0 && o.MaxBytes < MinMaxBytes:
		return nil, invalid.Errorf("memorybackend: MaxBytes is %d; it must be %d or more, or 0 for %d", o.MaxBytes, MinMaxBytes, DefaultMaxBytes)
	}
	return newBackend(o), nil
}

// NewDefault returns an empty Backend with the default options.
func NewDefault() *Backend { return newBackend(Options{}) }

// Observe implements driver.Observed. It has no effect if Options.Observer is set.
func (b *Backend) Observe(o observe.Observer) { b.observer.Add(o) }

func newBackend(o Options) *Backend {
	o.MaxKeys = cmp.Or(o.MaxKeys, DefaultMaxKeys)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	// Enough locks that goroutines seldom contend, a power of two to mask by, and few enough
	// that keys and bytes divide evenly.
	locks := min(16*runtime.GOMAXPROCS(0), max(o.MaxKeys/keysPerLock, 1), int(min(o.MaxBytes/bytesPerLock, 1<<20)))
	locks = 1 << (bits.Len(uint(locks)) - 1)
	b := &Backend{seed: maphash.MakeSeed(), stripes: make([]stripe, locks), observer: relay.New(o.Observer)}
	for i := range b.stripes {
		b.stripes[i] = stripe{
			seed:      b.seed,
			maxKeys:   o.MaxKeys / locks,
			maxBytes:  o.MaxBytes / int64(locks),
			perPolicy: uint32(max(pooledCounts/locks, 1)),
		}
	}
	return b
}

// The least keys and bytes that are worth a lock.
const (
	keysPerLock  = 1 << 10
	bytesPerLock = 1 << 18
)

// Take implements driver.Backend.
func (b *Backend) Take(ctx context.Context, r driver.Request) (d driver.Decision, err error) {
	if ctx.Err() == nil && b.takeWindow(&r, &d) {
		return d, nil
	}
	return b.TakeAt(ctx, r, nil)
}

// Peek implements driver.Backend.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.PeekAt(ctx, r, nil)
}

// Settle implements driver.Backend.
func (b *Backend) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	return b.SettleAt(ctx, s, nil)
}

// TakeAt implements handoff.Store.
func (b *Backend) TakeAt(ctx context.Context, r driver.Request, p *handoff.Placement) (d driver.Decision, err error) {
	pooled := false
	err = b.step(ctx, r.Now, r.Charges(), func(st *step) (err error) {
		d, pooled, err = st.take(&r, p)
		return err
	})
	if pooled { // without a lock: the observer may ask for Stats
		b.observer.Failed(observe.Failed{
			Backend: "memorybackend", Cause: "no room for new keys", Policy: r.Charges()[0].Policy.Name, Result: observe.ResultPooled,
		})
	}
	return d, err
}

// PeekAt implements handoff.Store.
func (b *Backend) PeekAt(ctx context.Context, r driver.Request, p *handoff.Placement) (d driver.Decision, err error) {
	err = b.step(ctx, r.Now, r.Charges(), func(st *step) (err error) {
		d, err = st.peek(&r, p)
		return err
	})
	return d, err
}

// SettleAt implements handoff.Store.
func (b *Backend) SettleAt(ctx context.Context, s driver.Settlement, p *handoff.Placement) (d driver.Decision, err error) {
	err = b.step(ctx, s.Now, s.Charged.Charges(), func(st *step) (err error) {
		d, err = st.settle(&s, p)
		return err
	})
	return d, err
}

// Reset implements driver.Backend. A key in a pooled count is not reset.
func (b *Backend) Reset(ctx context.Context, r driver.Request) error {
	return b.ResetAt(ctx, r, nil)
}

// ResetAt implements handoff.Store.
func (b *Backend) ResetAt(ctx context.Context, r driver.Request, p *handoff.Placement) error {
	return b.step(ctx, r.Now, r.Charges(), func(st *step) error { return st.reset(&r, p) })
}

// Release implements handoff.Store. If the backend is full and has no count of a key, it does
// not remember that the count left: a process that takes here, not knowing of the move, then
// counts the key as a new one.
func (b *Backend) Release(ctx context.Context, r handoff.ReleaseRequest) (released []handoff.Released, err error) {
	err = b.step(ctx, r.Now, r.Charges, func(st *step) error {
		released = st.release(&r)
		return nil
	})
	return released, err
}

// step calls do with the counts of charges, in one atomic step at now.
func (b *Backend) step(ctx context.Context, now int64, charges []quota.Charge, do func(*step) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	st := b.begin(now, charges)
	defer st.end()
	return outside(do(st))
}

// Joins implements driver.Joiner: a request may be about several partitions.
func (b *Backend) Joins(driver.Request) bool { return true }

// Down implements handoff.Store: never.
func (b *Backend) Down(string) (since time.Time, down bool) { return time.Time{}, false }

// outside returns err as callers see it. An error that is not an ElsewhereError says that a
// count released by another backend cannot be read.
func outside(err error) error {
	if err == nil {
		return nil
	}
	if elsewhere := (*handoff.ElsewhereError)(nil); errors.As(err, &elsewhere) {
		return err
	}
	return fmt.Errorf("memorybackend: %w: %w", driver.ErrUnavailable, err)
}
