// Package refusals remembers refusals of another backend and repeats them from
// memory until they end. A client that keeps retrying after a refusal then costs this
// process some 100 ns a request, and the other backend nothing. It does not predict
// refusals, and it allows nothing by itself.
//
// # What is remembered
//
// A take is refused from memory only if exactly the same charges, with the same keys, costs,
// modes and limits in the same order, were refused less than [Options.MaxAge] ago by a
// monotonic clock. The take's time must not be before the refusal's, and must be before every
// time that the refusal names: the RetryAt of a limit that refused, the NextAt and ResetAt of
// any limit. Refusals that were made without the shared counts are not remembered. Takes with
// a smaller cost, after a clock has stepped back, or after the end of a window all go to the
// backend.
//
// If the refusal is older, the take goes to the backend, too. If that fails, or allows without
// the counts, as guard/fallback's Open does, the refusal is still repeated: an outage serves no
// client that was refused before it, until a time that the refusal names.
//
// A settlement, a refund or a reset made through this Backend takes effect at once: it ends the
// refusals that share a count with it, including refusals that are being decided. Other changes
// take effect within MaxAge: other takes, and all changes by other processes.
//
// # What the answer says
//
// The answer is the refusal, at the time of the take, with its Used, Remaining, RetryAt, NextAt
// and ResetAt. Since then a SlidingWindow, a SlidingLog or a bucket may have freed some units,
// though too few for the charge, and other takes may have charged its counts: the backend would
// then name a later RetryAt or ResetAt. After a clock has stepped back within MaxAge, the backend
// may have opened another window that had room.
//
// Charges of several partitions that the backend doesn't join are refused from memory if the
// charges of one partition are: then the throttler charges nothing, and peeks at the others.
//
// # Where it belongs
//
// Put it in front of a backend that is reached over a network, and in front of
// guard/rollout and guard/shadow: the backends inside them must be able to
// hand counts over. Peeks, and takes that are not refused from memory, go through
// unchanged.
package refusals

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Defaults of Options.
const (
	DefaultMaxKeys = 16_384
	DefaultMaxAge  = time.Second
)

// MaxMaxKeys is the largest MaxKeys.
const MaxMaxKeys = 1 << 20

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// MaxKeys is the most refusals that are remembered at once, from 1 to
	// MaxMaxKeys. Each takes some 300 bytes for a key of one limit, 500 for one of
	// three, and at most MaxBytes; the tables take 32 bytes for each from the
	// start. If zero, DefaultMaxKeys: some 5 MB, and 70 MB at most.
	//
	// A new refusal replaces one of four: one that has ended, otherwise the oldest
	// that has answered nothing, otherwise the oldest. So keys that come once do not
	// push out keys that come again and again.
	MaxKeys int

	// MaxAge is the longest time that a refusal is remembered, and so the longest
	// time until a refund, a settlement or a lost count that this Backend did not
	// see takes effect. If zero, DefaultMaxAge.
	MaxAge time.Duration

	// Except names policies that opt out. Takes that charge one of them always
	// ask the backend.
	Except []string
}

// Backend is a driver.Backend that asks another backend, and remembers its refusals. It is
// safe for concurrent use, starts no goroutine and needs no closing.
type Backend struct {
	wrapped driver.Backend
	maxAge  time.Duration
	except  []string

	names    keyed.Hasher
	table    table
	versions versions
	tallies  *tallies
	elapsed  func() time.Duration // since New, by the monotonic clock
}

var (
	_ driver.Joiner     = (*Backend)(nil)
	_ driver.Rememberer = (*Backend)(nil)
)

// New returns a Backend that asks backend. Errors are about options and wrap
// quota.ErrInvalid. New panics if backend is nil.
func New(backend driver.Backend, options *Options) (*Backend, error) {
	if backend == nil {
		panic("refusals: New: backend is nil")
	}
	o := *cmp.Or(options, new(Options))
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.MaxKeys, o.MaxAge = cmp.Or(o.MaxKeys, DefaultMaxKeys), cmp.Or(o.MaxAge, DefaultMaxAge)
	start := time.Now()
	return &Backend{
		wrapped:  backend,
		maxAge:   o.MaxAge,
		except:   slices.Clone(o.Except),
		names:    keyed.NewHasher(),
		table:    newTable(o.MaxKeys),
		versions: newVersions(o.MaxKeys),
		tallies:  newTallies(),
		elapsed:  func() time.Duration { return time.Since(start) },
	}, nil
}

// Unwrap returns the backend that b asks.
func (b *Backend) Unwrap() driver.Backend { return b.wrapped }

// Joins implements driver.Joiner: a refusal may be about several partitions if the wrapped
// backend joins them.
func (b *Backend) Joins(r driver.Request) bool { return driver.Joins(b.wrapped, &r) }

func (o *Options) validate() error {
	if o.MaxKeys < 0 || o.MaxKeys > MaxMaxKeys {
		return invalid.Errorf("refusals: MaxKeys is %d; it must be from 1 to %d, or 0 for %d", o.MaxKeys, MaxMaxKeys, DefaultMaxKeys)
	}
	if o.MaxAge < 0 {
		return invalid.Errorf("refusals: MaxAge is %v; it must be positive, or 0 for %v", o.MaxAge, DefaultMaxAge)
	}
	for i, name := range o.Except {
		named := quota.Policy{Name: name, Limits: []quota.Limit{{Quota: 1, Window: time.Second}}}
		if err := named.Validate(); err != nil {
			return fmt.Errorf("refusals: Except[%d]: %w", i, err)
		}
	}
	return nil
}

// Take implements driver.Backend.
func (b *Backend) Take(ctx context.Context, r driver.Request) (d driver.Decision, err error) {
	// Hundreds of goroutines may wait in this frame for the backend, and their stacks
	// are most of the cost of this package for a take that is allowed. So functions
	// that Take calls get pointers, and there are no copies.
	if err := ctx.Err(); err != nil {
		return d, err
	}
	var room [roomCharges]version
	id, counts := b.hash(r.Charges(), room[:0])
	if found := b.table.find(id, &r, b, b.maxAge); found != nil {
		b.tallies.mine().answered.Add(1)
		found.answer(&r, &d)
		return d, nil
	}
	began := b.ask(counts)
	d, err = b.wrapped.Take(ctx, r)
	if errors.Is(err, driver.ErrUnavailable) || err == nil && isOpen(&d) {
		// If it charged nevertheless, the charge is unseen, like another process's.
		if found := b.table.find(id, &r, b, math.MaxInt64); found != nil {
			b.tallies.mine().upheld.Add(1)
			found.answer(&r, &d)
			return d, nil
		}
	}
	if err != nil {
		return d, err
	}
	if d.Allowed {
		return d, nil
	}
	b.remember(id, &r, &d, began, counts)
	return d, nil
}

// Refused implements driver.Rememberer.
func (b *Backend) Refused(ctx context.Context, r driver.Request) (d driver.Decision, ok bool) {
	if ctx.Err() != nil {
		return d, false
	}
	var room [roomCharges]version
	id, _ := b.hash(r.Charges(), room[:0])
	f := b.table.find(id, &r, b, b.maxAge)
	if f == nil {
		return d, false
	}
	b.tallies.mine().answered.Add(1)
	f.answer(&r, &d)
	return d, true
}

// isOpen reports whether d was made without counts, because the backend failed.
func isOpen(d *driver.Decision) bool { return d.Degraded && d.Allowed && len(d.Charges()) == 0 }

// ask notes the versions of the counts before the backend is asked, and returns the time. A
// settlement while the backend decides must end a refusal that may have been decided before it.
func (b *Backend) ask(counts []version) (began time.Duration) {
	for i := range counts {
		counts[i].number = counts[i].word.Load()
	}
	b.tallies.mine().passed.Add(1)
	return b.elapsed()
}

// remember remembers d, a refusal of r.
func (b *Backend) remember(id uint64, r *driver.Request, d *driver.Decision, began time.Duration, counts []version) {
	if d.Degraded || b.optsOut(r.Charges()) || isHeld(d) {
		return
	}
	added := newRefusal(id, d, began, counts)
	switch {
	case added == nil:
		b.tallies.mine().tooLarge.Add(1)
	case added.holds(r, b, b.maxAge): // otherwise it has ended before it could answer
		if b.table.put(added, r, b) {
			b.tallies.mine().pushedOut.Add(1)
		}
	}
}

func (b *Backend) optsOut(charges []quota.Charge) bool {
	return len(b.except) > 0 && slices.ContainsFunc(charges, func(c quota.Charge) bool {
		return slices.Contains(b.except, c.Policy.Name)
	})
}

// isHeld reports whether units in flight caused the refusal d: they may be released at any
// time.
func isHeld(d *driver.Decision) bool {
	for i, c := range d.Charges() {
		for k, result := range d.ResultsOf(i) {
			if result.RetryAt != 0 && c.Policy.Limits[k].Algorithm.Holds() {
				return true
			}
		}
	}
	return false
}

// Peek implements driver.Backend. It asks the backend.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.wrapped.Peek(ctx, r)
}

// Settle implements driver.Backend. When it returns, refusals that share a count
// with the settlement are forgotten, including refusals that are still being decided.
func (b *Backend) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	defer b.forget(s.Charged.Charges())
	return b.wrapped.Settle(ctx, s)
}

// Reset implements driver.Backend. When it returns, refusals that share a count with r are
// forgotten, as by Settle.
func (b *Backend) Reset(ctx context.Context, r driver.Request) error {
	defer b.forget(r.Charges())
	return b.wrapped.Reset(ctx, r)
}

// forget ends the refusals that share a count with charges. It is called after the backend:
// before it, a refusal decided in between would be remembered. It is also called after errors,
// because the change may have been made.
func (b *Backend) forget(charges []quota.Charge) {
	var room [roomCharges]version
	_, counts := b.hash(charges, room[:0])
	for i := range counts {
		counts[i].word.Add(1)
	}
}

// roomCharges is the most charges that need no separate memory.
const roomCharges = 3

// hash appends to counts the version of each charge's count, and returns the hash of the
// charges and the result. If hashes collide, a refusal is pushed out or forgotten early, never
// mistaken for another.
func (b *Backend) hash(charges []quota.Charge, counts []version) (id uint64, counted []version) {
	for i := range charges {
		c := &charges[i]
		h := b.names.Half(c)
		counts = append(counts, version{word: b.versions.word(h)})
		id = keyed.Mix(id, keyed.Mix(h, uint64(c.Cost)^uint64(c.Mode)<<56))
	}
	return id, counts
}
