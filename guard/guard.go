// Package guard puts the parts that a program selects around a store, in a fixed order:
//
//	Levels    decides each policy exactly, by leases, or by syncs
//	Refusals  repeats refusals from memory
//	Fallback  decides while the store does not answer
//	Leased    spends leases of the store's counts
//	Shadow    mirrors traffic to a candidate
//	Rollout   moves clients between stores
//	store
//
// The refusal cache is in front of the fallback, so that an outage serves no client that was
// refused before it. A fallback's counts are local to this process, so they can't be leased.
// Shadows and rollouts move counts, which only stores can do. Synced policies need no answer
// from a store, so its failures don't affect them.
//
// Each part is a package that can also be used without this one.
package guard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/guard/shadow"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Options selects the parts around the store. Nil and the zero value add nothing: the store
// is the whole Stack.
type Options struct {
	// Rollout moves clients between the store and others. If nil, the store serves all.
	Rollout *Rollout

	// Shadow mirrors traffic to a candidate. If nil, there is no candidate.
	Shadow *Shadow

	// Levels lets policies be leased or synced. If nil, all are exact.
	Levels *Levels

	// Fallback configures decisions while the store doesn't answer; its zero value allows
	// everything. If nil, decisions fail, and the program chooses: see
	// middleware.Options.FailClosed.
	Fallback *fallback.Options

	// Refusals configures the refusal cache. If nil, refusals are not cached.
	Refusals *refusals.Options

	// Clock is the clock of the throttler in front, such as the Clock of a Redis backend.
	// If nil, clock.System. Like Observer, it is the default in the options of all parts.
	Clock clock.Clock

	// Observer receives the events of all parts. May be nil. The store has an observer in
	// its own options.
	Observer observe.Observer
}

// Rollout is a flag and the stores that it moves clients between.
type Rollout struct {
	// Name is the value of the flag that selects the store given to New, which also
	// serves clients that the flag selects no store for. Required.
	Name string

	// Others are the other stores, by the values of the flag. Required.
	Others map[string]handoff.Store

	// Client evaluates the flag. Required.
	Client openfeature.IClient

	// Options configures the rollout. May be nil.
	Options *rollout.Options
}

// Shadow is a candidate that sees the same traffic and serves no client.
type Shadow struct {
	// Candidate is another store, with its own keys: under another prefix, if the
	// servers are the same. Required.
	Candidate handoff.Store

	// Options configures the shadow. May be nil.
	Options *shadow.Options
}

// Levels says where policies are decided.
type Levels struct {
	// Policies are the policies that may change their consistency level, each with the one that it
	// begins at. Other policies are exact. In a process that starts shortly after others
	// have changed a level, begin at the old one, and set the new one in Stack.Levels.
	Policies map[*quota.Policy]consistency.Level

	// Others lets policies that are not in Policies get a level later, by Stack.Levels.
	Others bool

	// Agree is consistency.Options.Agree: for how long processes may have different levels. If
	// zero, consistency.DefaultAgree.
	Agree time.Duration

	// Leased configures the leases of the store. Its Leases must be nil: policies at level
	// consistency.Leased have leases. If Leased is nil, no policy can be leased. With it,
	// Options.Refusals should be set: a key without units to lease asks the store each time.
	Leased *leased.Options

	// Synced configures syncs. If nil, no policy can be synced.
	Synced *Synced
}

// Synced configures syncs.
type Synced struct {
	// Roots are the servers where processes agree, at least one.
	Roots []synced.Root

	// Options configures the syncs. May be nil.
	Options *synced.Options
}

// Stack is a store and the parts around it.
type Stack struct {
	// Backend is the outermost part, the backend for throttler.New. With Options.Levels it is a
	// driver.Router, and a wrapper around it fails.
	Backend driver.Backend

	// The parts, for their Stats and other methods. Parts that Options leaves out are nil.
	Rollout  *rollout.Backend
	Shadow   *shadow.Backend
	Leased   *leased.Backend
	Fallback *fallback.Backend
	Refusals *refusals.Backend
	Levels   *consistency.Table // its Set changes the level of a policy
	Synced   *synced.Backend

	parts []part // in the order of New
}

// part reports on a part and closes it.
type part struct {
	name  string // in metrics
	stats func() any
	close func(context.Context) error // or nil
}

// New returns store with the parts that options selects around it. store must keep counts,
// like a backend of package redisbackend. The caller must close the Stack, and after it the
// stores and clients.
//
// Errors are about options and wrap quota.ErrInvalid. Before New returns one, it closes the
// parts that it made. New panics if store is nil.
func New(store driver.Backend, options *Options) (*Stack, error) {
	if store == nil {
		panic("stack: New: store is nil")
	}
	o := *cmp.Or(options, new(Options))
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.System{})
	s := &Stack{Backend: store}
	for _, add := range []func(*Options) error{
		s.addRollout, s.addShadow, s.addLeases, s.addFallback, s.addRefusals, s.addLevels,
	} {
		if err := add(&o); err != nil {
			_ = s.Close(context.Background()) // it has decided nothing, so it holds no leases
			return nil, err
		}
	}
	return s, nil
}

// Close ends the background work of the parts, outermost first: it sends charges that are not
// synced yet, hands over charges that a fallback allowed, and returns leases. Call it after
// the last decision, and before the stores and clients are closed. It returns an error if
// leases could not be returned before ctx was done: their units count as used until their
// windows end, unless a second Close returns them.
func (s *Stack) Close(ctx context.Context) error {
	var errs []error
	for _, p := range slices.Backward(s.parts) {
		if p.close != nil {
			errs = append(errs, p.close(ctx))
		}
	}
	return errors.Join(errs...)
}

// Stats returns the Stats method of each part, by its name in metrics: "rollout", "shadow",
// "leased", "fallback", "refusals" and "synced".
func (s *Stack) Stats() map[string]func() any {
	stats := make(map[string]func() any)
	for _, p := range s.parts {
		stats[p.name] = p.stats
	}
	return stats
}

// closing adapts a Close that takes no context and returns no error to part.close.
func closing(c func()) func(context.Context) error {
	return func(context.Context) error { c(); return nil }
}
