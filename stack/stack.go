// Package stack puts around a store what a program wants around it, in the one order in
// which the parts belong:
//
//	Modes     decides each policy exactly, by leases, or by syncs
//	Refusals  repeats refusals from memory
//	Fallback  decides while the store does not answer
//	Leased    spends leases of the store's counts
//	Shadow    mirrors traffic to a candidate
//	Rollout   moves clients between stores
//	store
//
// A refusal cache asks a fallback, and not the other way round, so that an outage serves
// no client that was refused before it. A fallback's counts are this process's own, so
// nothing may be leased of them. Shadows and rollouts move counts between stores, which
// only stores can. What is synced needs no answer of a store, so no failure of one
// concerns it.
//
// Each part is a package that can be used by hand, too.
package stack

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/fleet/leased"
	"github.com/weir-go/weir/fleet/modes"
	"github.com/weir-go/weir/fleet/synced"
	"github.com/weir-go/weir/handoff"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/wrap/fallback"
	"github.com/weir-go/weir/wrap/refusals"
	"github.com/weir-go/weir/wrap/rollout"
	"github.com/weir-go/weir/wrap/shadow"
)

// Options says what goes around the store. Nil and the zero value add nothing: the store
// is the whole Stack.
type Options struct {
	// Rollout moves clients between the store and others. If nil, the store serves all.
	Rollout *Rollout

	// Shadow mirrors traffic to a candidate. If nil, there is none.
	Shadow *Shadow

	// Modes lets policies be leased or synced. If nil, all are exact.
	Modes *Modes

	// Fallback configures what decides while the store does not answer; its zero value
	// allows everything. If nil, decisions fail, and the program chooses: see
	// middleware.Options.OnFailure.
	Fallback *fallback.Options

	// Refusals configures the refusal cache. If nil, there is none.
	Refusals *refusals.Options

	// Clock is the clock of the throttler in front, such as the Clock of a Redis backend.
	// If nil, clock.System. Like Observer, it is for all parts whose own options leave
	// theirs nil.
	Clock clock.Clock

	// Observer receives the events of all parts that have some. May be nil. The store has
	// an observer in its own options.
	Observer observe.Observer
}

// Rollout is a flag and the stores that it moves clients between.
type Rollout struct {
	// Name is the value of the flag that selects the store given to New, which also
	// serves those that the flag selects nothing for. Required.
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

// Modes says where policies are decided.
type Modes struct {
	// Policies has the policies that may change their mode, each with the mode that it
	// begins in. Another policy is exact. In a process that starts shortly after others
	// have changed a mode, begin in the old one, and set the new one in Stack.Modes.
	Policies map[*quota.Policy]modes.Mode

	// Others lets policies that are not in Policies get a mode later, by Stack.Modes.
	Others bool

	// Agree is modes.Options.Agree: for how long processes may have different modes. If
	// zero, modes.DefaultAgree.
	Agree time.Duration

	// Leased configures the leases of the store. Its Leases must be nil: the policies
	// whose mode is Leased have them. If Leased is nil, no policy can be leased. With it,
	// Options.Refusals should be set: a key without units to lease asks the store each time.
	Leased *leased.Options

	// Synced has what syncs need. If nil, no policy can be synced.
	Synced *Synced
}

// Synced has what syncs need.
type Synced struct {
	// Roots are the servers at which processes agree, at least one.
	Roots []synced.Root

	// Options configures the syncs. May be nil.
	Options *synced.Options
}

// Stack is a store and what is around it.
type Stack struct {
	// Backend is the outermost part: what throttler.New is given.
	Backend driver.Backend

	// The parts, for their Stats and what else they can do. Those that Options leaves out
	// are nil.
	Rollout  *rollout.Backend
	Shadow   *shadow.Backend
	Leased   *leased.Backend
	Fallback *fallback.Backend
	Refusals *refusals.Backend
	Modes    *modes.Table // its Set changes the mode of a policy
	Synced   *synced.Backend

	parts []part // in the order of New
}

// part is what reports and closes a part.
type part struct {
	name  string // in metrics
	stats func() any
	close func(context.Context) error // or nil
}

// New returns store with what options says around it. Store counts: it is a backend such
// as redisbackend's. Close the Stack, and after it the stores and clients, which are the
// caller's.
//
// Errors are about options and wrap quota.ErrInvalid. New closes what it made before it
// returns one. New panics if store is nil.
func New(store driver.Backend, options *Options) (*Stack, error) {
	if store == nil {
		panic("stack: New: store is nil")
	}
	o := *cmp.Or(options, new(Options))
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.System{})
	s := &Stack{Backend: store}
	for _, add := range []func(*Options) error{
		s.addRollout, s.addShadow, s.addLeases, s.addFallback, s.addRefusals, s.addModes,
	} {
		if err := add(&o); err != nil {
			_ = s.Close(context.Background()) // it has decided nothing, so it holds no leases
			return nil, err
		}
	}
	return s, nil
}

// Close ends what the parts do in the background, outermost first: it sends what has not
// been synced, hands over what a fallback allowed, and gives back leases. Call it after
// the last decision, and before the stores and clients are closed. The error is of leases
// that could not be given back before ctx was done: their units count as used until their
// windows end, unless a second Close gives them back.
func (s *Stack) Close(ctx context.Context) error {
	var all []error
	for _, p := range slices.Backward(s.parts) {
		if p.close != nil {
			all = append(all, p.close(ctx))
		}
	}
	return errors.Join(all...)
}

// Stats returns the Stats method of each part that is there, by the name that it has in
// metrics: "rollout", "shadow", "leased", "fallback", "refusals" and "synced".
func (s *Stack) Stats() map[string]func() any {
	all := make(map[string]func() any)
	for _, p := range s.parts {
		all[p.name] = p.stats
	}
	return all
}

// closing returns a Close that has no context and no error as one that has.
func closing(c func()) func(context.Context) error {
	return func(context.Context) error { c(); return nil }
}
