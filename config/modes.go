package config

import (
	"slices"

	"github.com/weir-go/weir/fleet/leased"
	"github.com/weir-go/weir/fleet/modes"
	"github.com/weir-go/weir/fleet/synced"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/stack"
)

// openModes returns where policies are decided, or nil if none has a mode.
func (s *Stack) openModes() (*stack.Modes, error) {
	c := s.Config
	if len(c.Modes) == 0 {
		return nil, nil
	}
	m := &stack.Modes{Policies: make(map[*quota.Policy]modes.Mode)}
	for name := range c.Modes {
		m.Policies[c.Policies[name]], m.Policies[c.DryRun(name)] = c.was(name), c.was(name)
	}
	if c.remote() {
		m.Leased = &leased.Options{}
	}
	if len(c.agreeing()) > 0 && c.syncable() {
		roots, err := s.openRoots()
		if err != nil {
			return nil, err
		}
		m.Synced = &stack.Synced{Roots: roots, Options: c.syncedOptions()}
	}
	return m, nil
}

// syncable reports whether a policy with a mode, and its dry run, is synced or can be when
// the mode changes.
func (c *Config) syncable() bool {
	return slices.ContainsFunc(sorted(c.Modes), func(name string) bool {
		return synced.Supports(c.Policies[name]) == nil && synced.Supports(c.DryRun(name)) == nil
	})
}

func (c *Config) syncedOptions() *synced.Options {
	lows := make(map[string]float64)
	for name, p := range c.keys.Policies {
		if p.Low > 0 {
			lows[name], lows[name+dryRunSuffix] = float64(p.Low), float64(p.Low)
		}
	}
	return &synced.Options{Sync: c.sync, Lows: lows}
}

// openRoots returns the roots, with clients of their own: one that hangs keeps no
// connection from decisions.
func (s *Stack) openRoots() ([]synced.Root, error) {
	var roots []synced.Root
	for _, r := range s.Config.agreeing() {
		client, err := s.newClient(r.options)
		if err != nil {
			return nil, err
		}
		roots = append(roots, synced.Root{Name: r.Name, Client: client, Group: r.Group})
	}
	return roots, nil
}

// setMode changes the mode of a policy and of its dry run, or of neither.
func (s *Stack) setMode(name string, m modes.Mode) error {
	both := []*quota.Policy{s.Config.Policies[name], s.Config.DryRun(name)}
	for _, p := range both {
		if err := modes.Supports(p, m); err != nil {
			return err
		}
	}
	for _, p := range both {
		if err := s.Modes.Set(p, m); err != nil {
			return err
		}
	}
	return nil
}

// agreeing returns the servers at which processes agree: the roots, or else the shards'
// primaries, or none if one of them is a Cluster or they are too many.
func (c *Config) agreeing() []root {
	shards := c.keys.Redis.Shards
	if c.Backend == reshardedName {
		shards = c.keys.Redis.Resharded
	}
	if len(c.keys.Roots) > 0 || len(shards) > synced.MaxRoots || slices.ContainsFunc(shards, func(s shard) bool { return s.options.IsClusterMode }) {
		return c.keys.Roots
	}
	var all []root
	for _, s := range shards {
		all = append(all, root{Name: s.Name, server: s.server})
	}
	return all
}
