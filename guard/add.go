package guard

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/guard/shadow"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler/quota"
)

// Each function adds one part around the parts before it, in the order of New.

func (s *Stack) addRollout(o *Options) error {
	r := o.Rollout
	if r == nil {
		return nil
	}
	store, ok := s.Backend.(handoff.Store)
	switch {
	case !ok:
		return invalid.Errorf("stack: store is a %T, whose counts cannot move; with Rollout it must be a handoff.Store, such as a Redis, Memcached or memory backend", s.Backend)
	case r.Name == "":
		return invalid.Errorf(`stack: Rollout.Name is ""; it must be the value of the flag that selects store, such as redis`)
	case r.Others[r.Name] != nil:
		return invalid.Errorf("stack: Rollout.Others[%q] has the Name of store; give it the value of the flag that selects it", r.Name)
	case len(r.Others) == 0:
		return invalid.Errorf("stack: Rollout.Others is empty; it must have a store to move clients to, or leave Rollout nil")
	case r.Client == nil:
		return invalid.Errorf("stack: Rollout.Client is nil; it must be the OpenFeature client that evaluates the flag")
	}
	stores := maps.Clone(r.Others)
	stores[r.Name] = store
	options := *cmp.Or(r.Options, new(rollout.Options))
	options.Observer = cmp.Or(options.Observer, o.Observer)
	b, err := rollout.New(stores, r.Name, r.Client, &options)
	if err != nil {
		return err
	}
	s.Backend, s.Rollout = b, b
	s.parts = append(s.parts, part{"rollout", func() any { return b.Stats() }, closing(b.Close)})
	return nil
}

func (s *Stack) addShadow(o *Options) error {
	if o.Shadow == nil {
		return nil
	}
	if o.Shadow.Candidate == nil {
		return invalid.Errorf("stack: Shadow.Candidate is nil; it must be the store that is tried, or leave Shadow nil")
	}
	b, err := shadow.New(s.Backend, o.Shadow.Candidate, o.Shadow.Options)
	if err != nil {
		return err
	}
	s.Backend, s.Shadow = b, b
	s.parts = append(s.parts, part{"shadow", func() any { return b.Stats() }, closing(b.Close)})
	return nil
}

// addLeases adds the table of levels, and the leases that it switches.
func (s *Stack) addLeases(o *Options) error {
	m := o.Levels
	if m == nil {
		return nil
	}
	table, err := consistency.NewTable(&consistency.Options{Agree: m.Agree, Clock: o.Clock})
	if err != nil {
		return err
	}
	for _, p := range m.sorted() {
		level := m.Policies[p]
		if err := table.Begin(p, level); err != nil {
			return err
		}
		switch {
		case level == consistency.Leased && m.Leased == nil:
			return invalid.Errorf("stack: Levels.Policies has %q leased, and Levels.Leased is nil; set it, or make the policy exact", p.Name)
		case level == consistency.Synced && m.Synced == nil:
			return invalid.Errorf("stack: Levels.Policies has %q synced, and Levels.Synced is nil; set it and its Roots, or make the policy exact", p.Name)
		}
	}
	s.Levels = table
	if m.Leased == nil {
		return nil
	}
	if m.Leased.Leases != nil {
		return invalid.Errorf("stack: Levels.Leased.Leases is set; leave it nil, and set the level of policies to leased in Levels.Policies")
	}
	options := *m.Leased
	options.Clock = cmp.Or(options.Clock, o.Clock)
	options.Leases = table.Leases
	b, err := leased.New(s.Backend, &options)
	if err != nil {
		return err
	}
	s.Backend, s.Leased = b, b
	s.parts = append(s.parts, part{"leased", func() any { return b.Stats() }, b.Close})
	return nil
}

func (s *Stack) addFallback(o *Options) error {
	if o.Fallback == nil {
		return nil
	}
	options := *o.Fallback
	options.Observer = cmp.Or(options.Observer, o.Observer)
	b, err := fallback.New(s.Backend, &options)
	if err != nil {
		return err
	}
	s.Backend, s.Fallback = b, b
	s.parts = append(s.parts, part{"fallback", func() any { return b.Stats() }, closing(b.Close)})
	return nil
}

func (s *Stack) addRefusals(o *Options) error {
	if o.Refusals == nil {
		return nil
	}
	b, err := refusals.New(s.Backend, o.Refusals)
	if err != nil {
		return err
	}
	s.Backend, s.Refusals = b, b
	s.parts = append(s.parts, part{"refusals", func() any { return b.Stats() }, nil})
	return nil
}

// addLevels adds the backend that sends each charge to the store or to the synced counts.
func (s *Stack) addLevels(o *Options) error {
	if o.Levels == nil {
		return nil
	}
	if o.Levels.Synced != nil {
		if err := s.addSynced(o); err != nil {
			return err
		}
	}
	b, err := consistency.New(s.Backend, s.Synced, s.Levels)
	if err != nil {
		return err
	}
	s.Backend = b
	return nil
}

// addSynced adds the counts of policies that are synced, or can be when their level changes.
func (s *Stack) addSynced(o *Options) error {
	m := o.Levels
	if !m.Others && !slices.ContainsFunc(m.sorted(), func(p *quota.Policy) bool { return synced.Supports(p) == nil }) {
		return invalid.Errorf("stack: Levels.Synced is set, but no policy of Levels.Policies can be synced; add one of token buckets or aligned fixed windows, or leave Synced nil")
	}
	options := *cmp.Or(m.Synced.Options, new(synced.Options))
	options.Clock = cmp.Or(options.Clock, o.Clock)
	options.Observer = cmp.Or(options.Observer, o.Observer)
	b, err := synced.New(m.Synced.Roots, &options)
	if err != nil {
		return err
	}
	s.Synced = b
	s.parts = append(s.parts, part{"synced", func() any { return b.Stats() }, closing(b.Close)})
	return nil
}

// sorted returns the policies by name, so that errors are the same each time.
func (m *Levels) sorted() []*quota.Policy {
	return slices.SortedFunc(maps.Keys(m.Policies), func(a, b *quota.Policy) int {
		if a == nil || b == nil { // Begin refuses a nil one
			return 0
		}
		return strings.Compare(a.Name, b.Name)
	})
}
