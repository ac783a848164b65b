// Package fallback makes decisions while another backend doesn't answer. For each policy, it
// allows everything, nothing, or this process's share of each quota. It affects only keys on
// shards that fail.
//
// # Local
//
// Each of n processes allows ceil(quota/n) by itself, and ceil(burst/n) of a bucket. It
// begins with the backend's last answer: a key that had used u gets ceil((quota-u)/n) until
// that window ends, and a key that was refused gets nothing.
//
// Units that a process allowed by itself are charged to the backend when its shard answers
// again: in the background, or at once if the key comes back earlier. Until then decisions about
// the key are local. All of a key are one charge: in a fixed window, as of the time when it
// opened here; otherwise as of the last one, so that units count longer than if each had been
// charged at its own time. With several fixed windows, units of a short one that has ended count
// in the next, too. Units that no longer count here are not charged. So an outage allows, in a
// window,
//
//	at most quota + n * ceil(quota/n)
//
// units: the quota by the backend, before and after, and a share by each process that did not
// know of the others' charges. In a window within the outage, the bound is n * ceil(quota/n),
// less than quota + n. It is the same in the first window, if each process has seen the key
// shortly before, and all charges with an unknown outcome were made. Each further outage in
// one window adds at most n * ceil(quota/n).
//
// If a call fails by a timeout or a lost connection, it is unknown whether its charge reached
// the backend. The charge counts here and is not sent again: the client is never charged
// twice. If it was not made, the backend allows its units again, within the first of these
// bounds. A process that ends without Close loses the units that it has not handed over, and a
// process that starts during an outage begins with unused shares.
//
// A refund of units that were allowed here works until they are handed over. After that the
// units count until their window ends: the backend is charged the sum of many decisions, and
// can't find one of them. The same holds for units that were allowed instead of a charge with
// an unknown outcome.
//
// # Several policies
//
// A decision about several policies uses the strictest of their choices: Closed before Local
// before Open. If that is Local, all its charges count locally.
//
// # Where it belongs
//
// Put it in front of the backends and of guard/rollout and guard/shadow, and behind
// guard/refusals. The backend should fail fast and implement driver.Health, as this module's
// backends do: until its breaker opens, a decision about a key that is not counted here waits
// for the backend's deadline. A backend without Health is assumed to answer if no call has
// failed for 100 ms.
package fallback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Defaults and bounds of Options.
const (
	DefaultMaxKeys = 1 << 16
	MaxProcesses   = 1 << 20
)

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// OnFailure is the choice for policies that Policies does not name. The zero
	// value is Open.
	OnFailure Choice

	// Policies has choices by the name of a policy.
	Policies map[string]Choice

	// Processes is how many processes share the quotas, this one included, from 1 to
	// MaxProcesses. Required if a policy's choice is Local; otherwise it must be zero.
	Processes int

	// OpenFor bounds how long Open allows everything while a shard doesn't answer. After
	// it, Open is Closed. If zero, there is no bound. It must be zero if no choice is Open.
	OpenFor time.Duration

	// MaxKeys is the most (policy, key) pairs that are remembered for Local, each some
	// 450 bytes during an outage; a key of more than 128 bytes counts as several. A key
	// that has used up its quota is never forgotten for a new one: if all have, new
	// keys are counted together. If zero, DefaultMaxKeys. It must be zero if no choice is Local.
	MaxKeys int

	// Observer receives a Failed for each take that Open or Local decides, and for each key
	// with units that are not handed over. Takes that Closed decides are errors of Take. If
	// nil, weirlog.Default().
	Observer observe.Observer
}

func (o *Options) validate() error {
	if o.OnFailure > Closed {
		return invalid.Errorf("fallback: OnFailure is %d; it must be Open, Local or Closed", o.OnFailure)
	}
	for name, choice := range o.Policies {
		named := quota.Policy{Name: name, Limits: []quota.Limit{{Quota: 1, Window: time.Second}}}
		if err := named.Validate(); err != nil {
			return fmt.Errorf("fallback: Policies: %w", err)
		}
		if choice > Closed {
			return invalid.Errorf("fallback: Policies[%q] is %d; it must be Open, Local or Closed", name, choice)
		}
	}
	switch {
	case o.Processes < 0 || o.Processes > MaxProcesses:
		return invalid.Errorf("fallback: Processes is %d; it must be from 1 to %d", o.Processes, MaxProcesses)
	case o.has(Local) && o.Processes == 0:
		return invalid.Errorf("fallback: Processes is 0; Local needs the number of processes that share the quotas, from 1 to %d", MaxProcesses)
	case o.OpenFor < 0:
		return invalid.Errorf("fallback: OpenFor is %v; it must be positive, or 0 for no bound", o.OpenFor)
	case o.MaxKeys < 0:
		return invalid.Errorf("fallback: MaxKeys is %d; it must be positive, or 0 for %d", o.MaxKeys, DefaultMaxKeys)
	case !o.has(Local) && (o.Processes != 0 || o.MaxKeys != 0):
		return invalid.Errorf("fallback: Processes is %d and MaxKeys %d, which only Local uses, and no choice is Local; set OnFailure, or leave them out", o.Processes, o.MaxKeys)
	case !o.has(Open) && o.OpenFor != 0:
		return invalid.Errorf("fallback: OpenFor is %v, which only Open uses, and no choice is Open; set OnFailure, or leave it out", o.OpenFor)
	}
	return nil
}

// has reports whether c is the choice for a policy.
func (o *Options) has(c Choice) bool {
	return o.OnFailure == c || slices.Contains(slices.Collect(maps.Values(o.Policies)), c)
}

// Backend is a driver.Backend that asks another backend, and makes decisions by itself while
// that doesn't answer. It is safe for concurrent use.
type Backend struct {
	wrapped   driver.Backend
	health    driver.Health // of wrapped, or nil
	onFailure Choice
	policies  map[string]Choice
	processes int64
	openFor   time.Duration
	observer  observe.Observer
	local     bool // the choice of a policy is Local
	table     table
	stats     stats.Counts[Stats]
	elapsed   func() time.Duration // since New, by the monotonic clock

	held atomic.Int64 // counts with units to hand over

	mu      sync.Mutex
	outages map[shard]*outage
	closed  context.Context // done when the Backend is closed
	close   context.CancelFunc
	watches sync.WaitGroup
}

var _ driver.Backend = (*Backend)(nil)

// New returns a Backend that asks backend. Close it when it is no longer needed.
// Errors are about options and wrap quota.ErrInvalid. New panics if backend is
// nil.
func New(backend driver.Backend, options *Options) (*Backend, error) {
	if backend == nil {
		panic("fallback: New: backend is nil")
	}
	o := *cmp.Or(options, new(Options))
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.MaxKeys, o.Observer = cmp.Or(o.MaxKeys, DefaultMaxKeys), weirlog.Ensure(o.Observer)
	start := time.Now()
	b := &Backend{
		wrapped:   backend,
		health:    driver.HealthOf(backend),
		onFailure: o.OnFailure,
		policies:  maps.Clone(o.Policies),
		processes: int64(max(o.Processes, 1)),
		openFor:   o.OpenFor,
		observer:  o.Observer,
		elapsed:   func() time.Duration { return time.Since(start) },
		local:     o.has(Local),
		outages:   make(map[shard]*outage),
	}
	b.table.init(b, o.MaxKeys)
	b.closed, b.close = context.WithCancel(context.Background())
	return b, nil
}

// Unwrap returns the backend that b asks.
func (b *Backend) Unwrap() driver.Backend { return b.wrapped }

// Joins implements driver.Joiner: a decision may be about several partitions if the wrapped
// backend joins them, and no policy's choice is Local, because local counts are by partition.
func (b *Backend) Joins(r driver.Request) bool { return !b.local && driver.Joins(b.wrapped, &r) }

// Close hands over the units that it can within a second, and ends the Backend's goroutines.
// Call it after the last decision, and before the wrapped backend is closed.
func (b *Backend) Close() {
	b.mu.Lock()
	b.close()
	b.mu.Unlock()
	b.watches.Wait()
}

// Take implements driver.Backend.
func (b *Backend) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	for {
		o, err := b.release(ctx, &r)
		if err != nil {
			return driver.Decision{}, err
		}
		journal := true
		if o == nil {
			var d driver.Decision
			d, err = b.wrapped.Take(ctx, r)
			switch {
			case err == nil:
				b.remember(&d)
				return d, nil
			case !failed(ctx, err):
				return d, err
			}
			o, journal = b.outageOf(err, &r), !driver.MayHaveCharged(err)
		} else {
			err = o.failure()
		}
		d, err := b.decide(&r, o, err, func() (driver.Decision, error) { return b.take(&r, o, journal) })
		switch {
		case errors.Is(err, errOver):
			continue
		case err != nil:
		case len(d.Charges()) == 0:
			o.report(r.Charges()[0].Policy.Name, observe.ResultServed)
		default:
			o.report(r.Charges()[0].Policy.Name, observe.ResultLocal)
		}
		return d, err
	}
}

// Peek implements driver.Backend. It charges nothing and hands nothing over: it reports
// counts that are still held here as they are here.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	local := func() (driver.Decision, error) { return b.peek(&r) }
	if o := b.holder(&r); o != nil {
		return b.decide(&r, o, o.failure(), local)
	}
	d, err := b.wrapped.Peek(ctx, r)
	if err == nil || !failed(ctx, err) {
		return d, err
	}
	return b.decide(&r, b.outageOf(err, &r), err, local)
}

// Settle implements driver.Backend. A decision that was made here is settled here or, if it
// was handed over, by the backend: then only an additional cost is charged, and a refund has
// no effect. A decision that the backend made is settled by the backend, or not at all.
func (b *Backend) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if s.Charged.Degraded && s.Renews { // it is not renewed, and lapses in a long outage
		return s.Charged, nil
	}
	if s.Charged.Degraded {
		return b.settle(ctx, &s)
	}
	d, err := b.wrapped.Settle(ctx, s)
	switch {
	case err == nil && s.Once:
		settled := d.WithoutOnce()
		b.remember(&settled)
	case err == nil:
		b.remember(&d)
	case failed(ctx, err):
		r := s.Charged.Request
		r.Now = s.Now
		b.outageOf(err, &r)
	}
	return d, err
}

// Reset implements driver.Backend. Local counts are forgotten first, with their units to hand
// over; after an error, the backend may still have its counts.
func (b *Backend) Reset(ctx context.Context, r driver.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := b.forgetHere(ctx, &r); err != nil {
		return err
	}
	err := b.wrapped.Reset(ctx, r)
	if err != nil && failed(ctx, err) {
		b.outageOf(err, &r)
	}
	return err
}

// failed reports whether a call failed because of the backend, and not because of its
// arguments, an overloaded process, a caller that left, or a caller's deadline that passed
// before anything was sent.
func failed(ctx context.Context, err error) bool {
	switch canceled := ctx.Err(); {
	case errors.Is(err, quota.ErrInvalid), errors.Is(err, driver.ErrOverloaded), errors.Is(canceled, context.Canceled):
		return false
	default:
		return canceled == nil || errors.Is(err, driver.ErrUnavailable)
	}
}

// errTooLarge and errOver are why local decisions fail.
var (
	errTooLarge = errors.New("the charge exceeds this process's share")
	errOver     = errors.New("the outage is over")
)

// decide makes the decision about r by the strictest choice of its policies. local
// decides locally.
func (b *Backend) decide(r *driver.Request, o *outage, cause error, local func() (driver.Decision, error)) (driver.Decision, error) {
	choice, policy := b.choiceOf(r.Charges())
	switch {
	case choice == Local:
		d, err := local()
		switch {
		case err == nil:
			b.stats.Change(func(s *Stats) { s.Local++ })
			return d, nil
		case errors.Is(err, errOver):
			return d, err
		}
		cause = fmt.Errorf("%w: %w", err, cause)
	case choice == Open && (b.openFor == 0 || o.silence() < b.openFor):
		b.stats.Change(func(s *Stats) { s.Open++ })
		d := driver.NewDecision(driver.NewRequest(r.Now))
		d.Allowed, d.Degraded = true, true
		return d, nil
	}
	b.stats.Change(func(s *Stats) { s.Closed++ })
	return driver.Decision{}, fmt.Errorf("fallback: policy %q: %w: %w", policy, driver.ErrFailClosed, cause)
}
