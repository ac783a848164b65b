// Package rollout moves clients from one backend to another while they are being
// served. An OpenFeature flag selects the backend of each client, and may change at
// any time, even halfway through a window. Usage and reset time move with the
// count. Two backends over two lists of shards make it a way to reshard.
//
// When a client's flag has changed, its next decision moves it, with more round trips;
// other decisions cost as much as the backend's own. Processes that have not seen the
// change learn from the backend where the count went, and follow it, so that there is one
// count, in one backend, at any time.
//
// It is not a fallback for a backend that fails, nor a way to keep one count in two
// backends. All processes must run it before the flag changes.
package rollout

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler/driver"
)

// DefaultFlag is the default of Options.Flag.
const DefaultFlag = "throttler-backend"

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// Flag is the flag's key. If empty, DefaultFlag.
	Flag string

	// Refresh is how long a client's flag value is cached. If zero, 1 s. If the provider
	// sends an event on each change, as flagd and the SDK's in-memory provider do, a change
	// takes effect at once.
	Refresh time.Duration

	// Keep is the longest time processes may disagree about the flag. A backend
	// remembers where a count went for at least this long, and a process leaves
	// counts where others have moved them for this long, against its own flag.
	// If zero, 1 minute.
	Keep time.Duration

	// Abandon is how long a shard must have been down (see [driver.Health]) before its
	// counts are given up and restarted in the backend that the flag selects. Until
	// then decisions about clients that must leave the shard fail. If zero, 5 s.
	//
	// A backend that neither the flag nor a count has ever named to this process
	// is asked for counts too, but no decision fails because it does not answer.
	Abandon time.Duration

	// Observer receives an event for each count that moves, is lost, or could not be
	// moved. If nil, weirlog.Default(), which logs those that are lost or could not be moved.
	Observer observe.Observer

	// MaxKeys bounds the partitions that are remembered here with their backends, at
	// some 200 bytes each, however long they are. For other partitions the flag is
	// evaluated each time. If zero, DefaultMaxKeys.
	MaxKeys int
}

// DefaultMaxKeys is the default of Options.MaxKeys.
const DefaultMaxKeys = 1 << 18

// MaxBackends is the most backends that New accepts.
const MaxBackends = 1 << indexBits

// Backend is a driver.Backend over others. It is safe for concurrent use.
type Backend struct {
	client openfeature.IClient
	opts   Options
	now    func() time.Time

	members  []*member
	byName   map[string]*member
	byID     map[handoff.BackendID]*member
	fallback *member

	lastChange atomic.Pointer[flagChange]
	newest     atomic.Int64 // the highest version seen in an answer: of any process's move
	routes     routes
	turns      [64]chan struct{} // one decision at a time fetches counts of a partition

	evaluationSlots chan struct{} // one element for each free slot
	stuckUntil      atomic.Int64  // until then callers do not wait for a slot, Unix ns

	stats   stats.Counts[Stats]
	onEvent openfeature.EventCallback
}

var (
	_ driver.Backend = (*Backend)(nil)
	_ driver.Health  = (*Backend)(nil)
)

// member is one of the backends.
type member struct {
	name      string
	index     int64 // among the sorted names
	id        handoff.BackendID
	backend   handoff.Store
	placement *handoff.Placement // of decisions about counts that are known to be here
	served    atomic.Int64

	// named reports that this process has seen the flag, another process or a count
	// name this member, so it may hold counts.
	named atomic.Bool
}

// New returns a Backend that moves counts between backends, as selected by the flag
// that client evaluates. Close it when it is no longer needed.
//
// backends must have from 1 to MaxBackends backends, named by the values of the flag.
// Every process needs the same names for the same backends.
//
// defaultName names the backend that serves a client if the flag selects no backend:
// there is no provider, the flag is missing or disabled, its value is not a string
// or not a backend's name, the provider fails, panics or hangs.
//
// client evaluates the flag. The targeting key is [TargetingKey] of the partition.
// For a single charge the partition defaults to its key.
//
// Errors wrap quota.ErrInvalid. New panics if client is nil.
func New(backends map[string]handoff.Store, defaultName string, client openfeature.IClient, options *Options) (*Backend, error) {
	return newBackend(backends, defaultName, client, options, time.Now)
}

// newBackend is New with the clock of this process.
func newBackend(backends map[string]handoff.Store, defaultName string, client openfeature.IClient, options *Options, now func() time.Time) (*Backend, error) {
	if client == nil {
		panic("rollout: New: client is nil")
	}
	o := *cmp.Or(options, new(Options))
	names := slices.Sorted(maps.Keys(backends))
	if err := validateBackends(backends, names, defaultName); err != nil {
		return nil, err
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	b := &Backend{
		client:          client,
		opts:            o,
		now:             now,
		byName:          make(map[string]*member),
		byID:            make(map[handoff.BackendID]*member),
		evaluationSlots: make(chan struct{}, evaluationsAtOnce),
	}
	for _, name := range names {
		m := &member{name: name, index: int64(len(b.members)), id: handoff.IDOf(name), backend: backends[name]}
		m.placement = &handoff.Placement{Backend: m.id, Keep: b.opts.Keep}
		b.members = append(b.members, m)
		b.byName[name], b.byID[m.id] = m, m
	}
	b.fallback = b.byName[defaultName]
	b.fallback.named.Store(true)
	b.routes.names = keyed.NewHasher()
	for i := range b.routes.stripes {
		b.routes.stripes[i].Most = max(o.MaxKeys/keyed.Stripes, 1)
	}
	for i := range b.turns {
		b.turns[i] = make(chan struct{}, 1)
	}
	for range evaluationsAtOnce {
		b.evaluationSlots <- struct{}{}
	}
	b.lastChange.Store(&flagChange{seenAt: now().UnixMilli()})
	b.stats.Change(func(s *Stats) { s.Defaulted = make(map[string]int64) })
	changed := func(openfeature.EventDetails) { b.flagChanged(true) }
	b.onEvent = &changed
	for _, event := range events {
		b.client.AddHandler(event, b.onEvent)
	}
	return b, nil
}

// validateBackends checks New's backends. names are their sorted names.
func validateBackends(backends map[string]handoff.Store, names []string, defaultName string) error {
	if n := len(names); n == 0 || n > MaxBackends {
		return invalid.Errorf("rollout: backends has %d entries; it must have from 1 to %d", n, MaxBackends)
	}
	for _, name := range names {
		switch {
		case name == "":
			return invalid.Errorf("rollout: backends has the name %q; a name must be a value of the flag, such as %q", name, "redis")
		case backends[name] == nil:
			return invalid.Errorf("rollout: backends[%q] is nil; it must be a backend", name)
		}
	}
	if backends[defaultName] == nil {
		return invalid.Errorf("rollout: defaultName is %q; it must be one of the names in backends: %s", defaultName, strings.Join(names, ", "))
	}
	return nil
}

// complete fills in the defaults, and returns an error if o is invalid.
func (o *Options) complete() error {
	o.Flag, o.Refresh, o.Keep = cmp.Or(o.Flag, DefaultFlag), cmp.Or(o.Refresh, time.Second), cmp.Or(o.Keep, time.Minute)
	o.Abandon, o.MaxKeys = cmp.Or(o.Abandon, 5*time.Second), cmp.Or(o.MaxKeys, DefaultMaxKeys)
	o.Observer = weirlog.Ensure(o.Observer)
	switch {
	case o.Refresh < 0:
		return invalid.Errorf("rollout: Refresh is %v; it must be positive, or 0 for 1s", o.Refresh)
	case o.Keep < 0:
		return invalid.Errorf("rollout: Keep is %v; it must be positive, or 0 for 1m", o.Keep)
	case o.Abandon < 0:
		return invalid.Errorf("rollout: Abandon is %v; it must be positive, or 0 for 5s", o.Abandon)
	case o.MaxKeys < 0:
		return invalid.Errorf("rollout: MaxKeys is %d; it must be positive, or 0 for %d", o.MaxKeys, DefaultMaxKeys)
	}
	return nil
}

// events are the events that may change the value of the flag.
var events = []openfeature.EventType{
	openfeature.ProviderConfigChange, openfeature.ProviderReady, openfeature.ProviderError, openfeature.ProviderStale,
}

// Close stops listening to the provider's events. It does not close the backends.
func (b *Backend) Close() {
	for _, event := range events {
		b.client.RemoveHandler(event, b.onEvent)
	}
}

// Down implements driver.Health: it reports on the backend that decides about the
// partition.
func (b *Backend) Down(partition string) (since time.Time, down bool) {
	return b.routeOf(context.Background(), partition).place.member.backend.Down(partition)
}

// Take implements driver.Backend.
func (b *Backend) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.decide(ctx, decision{now: r.Now, serverTime: r.ServerTime, charges: r.Charges()}, func(m *member, p *handoff.Placement) (driver.Decision, error) {
		return m.backend.TakeAt(ctx, r, p)
	})
}

// Peek implements driver.Backend. It moves no count: a count that is about to
// move is read where it is.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.decide(ctx, decision{now: r.Now, serverTime: r.ServerTime, charges: r.Charges(), readOnly: true}, func(m *member, p *handoff.Placement) (driver.Decision, error) {
		return m.backend.PeekAt(ctx, r, p)
	})
}

// Reset implements driver.Backend. Counts that are about to move are moved first, and then
// forgotten.
func (b *Backend) Reset(ctx context.Context, r driver.Request) error {
	_, err := b.decide(ctx, decision{now: r.Now, serverTime: r.ServerTime, charges: r.Charges()}, func(m *member, p *handoff.Placement) (driver.Decision, error) {
		return driver.Decision{}, m.backend.ResetAt(ctx, r, p)
	})
	return err
}

// Settle implements driver.Backend. It follows a count that has moved since it
// was charged.
func (b *Backend) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	return b.decide(ctx, decision{now: s.Now, serverTime: s.ServerTime, charges: s.Charged.Charges()}, func(m *member, p *handoff.Placement) (driver.Decision, error) {
		return m.backend.SettleAt(ctx, s, p)
	})
}
