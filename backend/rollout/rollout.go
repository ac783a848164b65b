// Package rollout moves clients from one backend to another while they are being
// served. An OpenFeature flag selects the backend of each client, and may change at
// any time, also halfway through a window. Usage and reset time move with the
// count. Two backends over two lists of shards make it a way to reshard.
//
// A client whose flag has changed is moved by its next decision, which costs more
// round trips; other decisions cost what the backend costs. Processes that have
// not seen the change learn from the backend where the count went, and follow it,
// so that there is one count, in one backend, at any time.
//
// It is not a fallback for a backend that fails, nor a way to keep one count in two
// backends. All processes must run it before the flag changes.
package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// DefaultFlag is the key of the flag if Options sets none.
const DefaultFlag = "throttler-backend"

// Options say between what counts move, and by what.
type Options struct {
	// Backends are those that counts may live on, by the names that the flag's
	// values have. Every process needs the same names for the same backends.
	// From 1 to 64.
	Backends map[string]handoff.Store

	// Default is the name of the backend that serves a client if the flag does
	// not say: there is no provider, the flag is missing or disabled, its value
	// is no string or no backend's name, the provider fails, panics or hangs.
	// Required.
	Default string

	// Client evaluates the flag. Its targeting key is that which
	// [TargetingKey] makes of the partition, which for one charge is its key.
	// Required.
	Client openfeature.IClient

	// Flag is the flag's key. If empty, DefaultFlag.
	Flag string

	// Events says that the provider tells of each change by an event, as flagd
	// and the SDK's in-memory provider do. A change then takes effect at once
	// for all clients, and Refresh may be long.
	Events bool

	// Refresh is for how long a client's value is taken to be right without an
	// event. If zero, 1 s, and with Events 1 minute.
	Refresh time.Duration

	// Keep is how long the processes may differ about the flag: so long at
	// least a backend remembers where a count went, and so long a process leaves
	// counts where others have brought them, against its own flag. If zero, 1
	// minute.
	Keep time.Duration

	// Abandon is for how long a shard of a backend must have failed to answer
	// before its counts are left behind, and begin anew where the flag has them.
	// Until then decisions about clients that are to leave it fail. If zero, 5 s.
	//
	// A backend that neither the flag nor a count has ever named to this process
	// is asked for counts too, but no decision fails because it does not answer.
	Abandon time.Duration

	// MaxKeys bounds the partitions whose place is remembered here, at some 250
	// bytes each. Of others the flag is asked each time. If zero,
	// DefaultMaxKeys.
	MaxKeys int
}

// DefaultMaxKeys is the bound if Options sets none.
const DefaultMaxKeys = 1 << 18

// Backend is a throttler.Backend over others. It is safe for concurrent use.
type Backend struct {
	client  openfeature.IClient
	flag    string
	events  bool
	refresh time.Duration
	keep    time.Duration
	abandon time.Duration

	members  []*member
	byName   map[string]*member
	byID     map[handoff.BackendID]*member
	fallback *member

	view   atomic.Pointer[view]
	seen   atomic.Int64 // the latest version that another process was seen to have
	routes routes
	turns  [64]chan struct{} // one decision at a time fetches counts of a partition

	mayEvaluate chan struct{} // one element for each evaluation more that may be on its way
	stuckUntil  atomic.Int64  // until when nobody waits for one, Unix ns

	stats   counters
	onEvent openfeature.EventCallback

	closed context.Context // done when the Backend is closed
	close  context.CancelFunc
	probes sync.WaitGroup
}

var _ throttler.Backend = (*Backend)(nil)

// member is one of the backends.
type member struct {
	name      string
	index     int64 // among the sorted names
	id        handoff.BackendID
	backend   handoff.Store
	placement *handoff.Placement // of decisions about counts that are known to be here
	served    atomic.Int64

	// named reports that the flag, another process or a count that was there has
	// named this member, as far as this process knows: it may hold counts.
	named  atomic.Bool
	health health
}

// New returns a Backend. The error says which option is wrong. Close it when
// it is not needed any more.
func New(o Options) (*Backend, error) {
	names := slices.Sorted(maps.Keys(o.Backends))
	switch {
	case len(names) == 0:
		return nil, errors.New("rollout: Backends is empty; at least one is needed")
	case len(names) > 1<<indexBits:
		return nil, fmt.Errorf("rollout: Backends has %d; at most %d are possible", len(names), 1<<indexBits)
	case o.Client == nil:
		return nil, errors.New("rollout: Client is nil; it must be an OpenFeature client")
	case o.Backends[o.Default] == nil:
		return nil, fmt.Errorf("rollout: Default is %q; it must be the name of one of Backends: %s", o.Default, strings.Join(names, ", "))
	case o.Refresh < 0 || o.Keep < 0 || o.Abandon < 0 || o.MaxKeys < 0:
		return nil, fmt.Errorf("rollout: Refresh is %v, Keep %v, Abandon %v, MaxKeys %d; none may be negative", o.Refresh, o.Keep, o.Abandon, o.MaxKeys)
	}
	b := &Backend{
		client:      o.Client,
		flag:        o.Flag,
		events:      o.Events,
		refresh:     o.Refresh,
		keep:        o.Keep,
		abandon:     o.Abandon,
		byName:      make(map[string]*member),
		byID:        make(map[handoff.BackendID]*member),
		mayEvaluate: make(chan struct{}, evaluationsAtOnce),
	}
	if b.flag == "" {
		b.flag = DefaultFlag
	}
	if b.refresh == 0 {
		if b.refresh = time.Second; b.events {
			b.refresh = time.Minute
		}
	}
	if b.keep == 0 {
		b.keep = time.Minute
	}
	if b.abandon == 0 {
		b.abandon = 5 * time.Second
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	for _, name := range names {
		if name == "" || o.Backends[name] == nil {
			return nil, fmt.Errorf("rollout: backend %q has no name or is nil", name)
		}
		m := &member{name: name, index: int64(len(b.members)), id: handoff.IDOf(name), backend: o.Backends[name]}
		m.placement = &handoff.Placement{Backend: m.id, Keep: b.keep}
		b.members = append(b.members, m)
		b.byName[name], b.byID[m.id] = m, m
	}
	b.fallback = b.byName[o.Default]
	b.fallback.named.Store(true)
	b.closed, b.close = context.WithCancel(context.Background())
	b.routes.init(o.MaxKeys)
	for i := range b.turns {
		b.turns[i] = make(chan struct{}, 1)
	}
	for range evaluationsAtOnce {
		b.mayEvaluate <- struct{}{}
	}
	b.view.Store(&view{at: time.Now().UnixMilli()})
	changed := func(openfeature.EventDetails) { b.learn(true) }
	b.onEvent = &changed
	for _, event := range events {
		b.client.AddHandler(event, b.onEvent)
	}
	return b, nil
}

// events are those after which the flag may say something else.
var events = []openfeature.EventType{
	openfeature.ProviderConfigChange, openfeature.ProviderReady, openfeature.ProviderError, openfeature.ProviderStale,
}

// Close ends listening to the provider's events, and asking shards that fail
// whether they answer again. The backends stay open.
func (b *Backend) Close() {
	b.close()
	b.probes.Wait()
	for _, event := range events {
		b.client.RemoveHandler(event, b.onEvent)
	}
}

// Take implements throttler.Backend.
func (b *Backend) Take(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	return b.decide(ctx, decision{now: r.Now, charges: r.Charges()}, func(m *member, p *handoff.Placement) (throttler.Decision, error) {
		return m.backend.TakeAt(ctx, r, p)
	})
}

// Peek implements throttler.Backend. It moves no count: one that is to move is
// read where it is.
func (b *Backend) Peek(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	return b.decide(ctx, decision{now: r.Now, charges: r.Charges(), look: true}, func(m *member, p *handoff.Placement) (throttler.Decision, error) {
		return m.backend.PeekAt(ctx, r, p)
	})
}

// Settle implements throttler.Backend. What it settles has moved with the
// count.
func (b *Backend) Settle(ctx context.Context, s throttler.Settlement) (throttler.Decision, error) {
	return b.decide(ctx, decision{now: s.Now, charges: s.Charged.Charges()}, func(m *member, p *handoff.Placement) (throttler.Decision, error) {
		return m.backend.SettleAt(ctx, s, p)
	})
}
