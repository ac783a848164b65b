package config

import (
	"fmt"
	"slices"

	"github.com/weir-go/weir/guard"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler/quota"
)

// openLevels returns the levels of policies, or nil if no policy has a level or can get one.
func (s *Stack) openLevels() (*guard.Levels, error) {
	c := s.Config
	changeable := c.options.Levels && (c.Remote() || len(c.agreeing()) > 0)
	if len(c.Levels) == 0 && !changeable {
		return nil, nil
	}
	m := &guard.Levels{Policies: make(map[*quota.Policy]consistency.Level), Others: changeable}
	for name := range c.Levels {
		m.Policies[c.Policies[name]], m.Policies[c.DryRun(name)] = c.initialLevel(name), c.initialLevel(name)
	}
	if c.Remote() {
		m.Leased = &leased.Options{}
	}
	if len(c.agreeing()) > 0 && (changeable || c.syncable()) {
		roots, err := s.openRoots()
		if err != nil {
			return nil, err
		}
		m.Synced = &guard.Synced{Roots: roots, Options: c.syncedOptions()}
	}
	return m, nil
}

// Supports returns nil if a policy that is not in the file can be at a level, given that
// Options.Levels is true. The error is a problem for the policy's place in another file: it
// names the missing setting, and wraps quota.ErrInvalid.
func (c *Config) Supports(p *quota.Policy, m consistency.Level) error {
	switch reason := c.lacks(m); {
	case reason != "":
		return invalid.Errorf("%s", reason)
	case m == consistency.Synced:
		return synced.Supports(p)
	}
	return nil
}

// lacks returns why c doesn't support a level, or "".
func (c *Config) lacks(m consistency.Level) string {
	switch {
	case m == consistency.Leased && !c.Remote():
		return "counts live in memory, where a lease saves no round trip; write exact, or choose another backend"
	case m == consistency.Synced && len(c.agreeing()) == 0:
		return fmt.Sprintf("there are no shards to agree at that are single servers of Redis, at most %d; set roots, such as roots: [127.0.0.1:6379]", synced.MaxRoots)
	}
	return ""
}

// syncable reports whether a policy with a level, and its dry run, is synced or can be when
// the level changes.
func (c *Config) syncable() bool {
	return slices.ContainsFunc(sorted(c.Levels), func(name string) bool {
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
	return &synced.Options{Sync: c.sync, Lows: lows, Prefix: c.prefixed("weir-sync:")}
}

// openRoots returns the roots, with their own clients, so that a root that hangs takes no
// connections from decisions.
func (s *Stack) openRoots() ([]synced.Root, error) {
	var roots []synced.Root
	for _, r := range s.Config.agreeing() {
		client, err := s.connect(&r.server)
		if err != nil {
			return nil, err
		}
		roots = append(roots, synced.Root{Name: r.Name, Client: client, Group: r.Group})
	}
	return roots, nil
}

// setLevel changes the level of a policy and of its dry run, or of neither.
func (s *Stack) setLevel(name string, m consistency.Level) error {
	pair := []*quota.Policy{s.Config.Policies[name], s.Config.DryRun(name)}
	for _, p := range pair {
		if err := consistency.Supports(p, m); err != nil {
			return err
		}
	}
	for _, p := range pair {
		if err := s.Levels.Set(p, m); err != nil {
			return err
		}
	}
	return nil
}

// agreeing returns the servers where processes agree: the roots, if set, otherwise the shards'
// primaries, or nil if a shard is a Cluster or there are too many shards.
func (c *Config) agreeing() []root {
	shards := c.keys.Redis.Shards
	if c.Backend == reshardedName {
		shards = c.keys.Redis.Resharded
	}
	if len(c.keys.Roots) > 0 || len(shards) > synced.MaxRoots || slices.ContainsFunc(shards, func(s shard) bool { return s.options.IsClusterMode }) {
		return c.keys.Roots
	}
	var addresses []root
	for _, s := range shards {
		addresses = append(addresses, root{Name: s.Name, server: s.server})
	}
	return addresses
}
