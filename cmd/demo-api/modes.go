package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/weir-go/weir/fleet/leased"
	"github.com/weir-go/weir/fleet/modes"
	"github.com/weir-go/weir/fleet/synced"
	"github.com/weir-go/weir/stack"
	"github.com/weir-go/weir/throttler"
)

// modes returns where policies are decided, or nil if none has a mode.
func (b *backends) modes() (*stack.Modes, error) {
	c := b.config
	if len(c.modes.policies) == 0 {
		return nil, nil
	}
	m := &stack.Modes{Policies: make(map[*throttler.Policy]modes.Mode)}
	for name, policy := range c.modes.policies {
		m.Policies[c.policies[name]] = policy.was
		m.Policies[c.dryRunOf(name)] = policy.was
	}
	if c.backends.remote() {
		m.Leased = &leased.Options{}
	}
	if c.syncs() {
		roots, err := b.openRoots()
		if err != nil {
			return nil, err
		}
		m.Synced = &stack.Synced{Roots: roots, Options: c.syncedOptions()}
	}
	return m, nil
}

// setModes changes the modes that policies began in, which other processes have or had,
// into the configuration's.
func (b *backends) setModes() error {
	for name, policy := range b.config.modes.policies {
		if err := b.config.changeMode(b.stack.Modes, name, policy.mode); err != nil {
			return err
		}
	}
	return nil
}

func (c *config) syncedOptions() *synced.Options {
	return &synced.Options{Sync: c.modes.sync, Lows: c.modes.lows()}
}

// syncable returns the policies with a mode, and their dry runs, that are synced or can be
// when the mode changes.
func (c *config) syncable() []*throttler.Policy {
	var all []*throttler.Policy
	for _, name := range slices.Sorted(maps.Keys(c.modes.policies)) {
		if p, dry := c.policies[name], c.dryRunOf(name); synced.Supports(p) == nil && synced.Supports(dry) == nil {
			all = append(all, p, dry)
		}
	}
	return all
}

// openRoots returns the roots, with clients of their own: one that hangs keeps no
// connection from decisions.
func (b *backends) openRoots() ([]synced.Root, error) {
	var roots []synced.Root
	for _, s := range b.config.roots() {
		client, err := b.newRedisClient(s.primary)
		if err != nil {
			return nil, err
		}
		b.closers = append(b.closers, func() { _ = client.Close() }) // it has nothing left to send
		roots = append(roots, synced.Root{Name: s.name, Client: client})
	}
	return roots, nil
}

// rereadModes puts c's modes of policies in force.
func (b *backends) rereadModes(c *config, log *slog.Logger) {
	changed := false
	for _, name := range slices.Sorted(maps.Keys(c.modes.policies)) {
		m, current := c.modes.policies[name], b.stack.Modes.Of(name).Mode
		_, known := b.config.modes.policies[name]
		switch {
		case !known:
			log.Warn("SIGHUP: the policy had no mode at the start; it needs one to change it: start the demo again", "policy", name)
		case m.mode == modes.Synced && b.stack.Synced == nil:
			log.Warn("SIGHUP: nothing could be synced at the start, without roots or a policy with a mode that can be; start the demo again", "policy", name)
		case m.mode == modes.Leased && b.stack.Leased == nil:
			log.Warn("SIGHUP: counts live in memory, where nothing is leased", "policy", name)
		case m.mode == current:
		default:
			if err := b.config.changeMode(b.stack.Modes, name, m.mode); err != nil {
				log.Warn("SIGHUP: the mode was not changed", "policy", name, "error", err)
				continue
			}
			changed = true
			attrs := []any{"policy", name, "from", current, "to", m.mode}
			if until := b.stack.Modes.Of(name).BothUntil; !until.IsZero() {
				attrs = append(attrs, "both_until", until)
			}
			log.Info("SIGHUP: the mode has changed", attrs...)
		}
	}
	if !changed {
		log.Info("SIGHUP: no mode has changed; to change anything else, start the demo again")
	}
}

// changeMode changes the mode of a policy and of its dry run, or of neither, with the
// limits of c, which are those in use.
func (c *config) changeMode(table *modes.Table, name string, m modes.Mode) error {
	both := []*throttler.Policy{c.policies[name], c.dryRunOf(name)}
	for _, p := range both {
		if err := modes.Supports(p, m); err != nil {
			return err
		}
	}
	for _, p := range both {
		if err := table.Set(p, m); err != nil {
			return err
		}
	}
	return nil
}

// setQuotas gives the quotas of the configuration's policies to the roots.
func (c *config) setQuotas(ctx context.Context) error {
	if !c.syncs() {
		return fmt.Errorf("-set-quotas: no policy of the configuration that can be synced has a mode, or there are no roots")
	}
	b := &backends{config: c}
	defer b.close()
	roots, err := b.openRoots()
	if err != nil {
		return err
	}
	return synced.SetQuotas(ctx, roots, c.syncable(), c.syncedOptions())
}

// debugModes is what /debug/backend says of modes.
type debugModes struct {
	Policies map[string]debugMode `json:"policies"`
	Leased   *leased.Stats        `json:"leased,omitempty"`
	Synced   *synced.Stats        `json:"synced,omitempty"`
}

type debugMode struct {
	Mode      string     `json:"mode"`
	BothUntil *time.Time `json:"both_until,omitempty"` // of a change
}

func (b *backends) debugModes() *debugModes {
	if b.stack.Modes == nil {
		return nil
	}
	d := &debugModes{Policies: make(map[string]debugMode)}
	now := b.clock().Now()
	for name := range b.config.modes.policies {
		s := b.stack.Modes.Of(name)
		m := debugMode{Mode: s.Mode.String()}
		if s.BothUntil.After(now) {
			m.BothUntil = &s.BothUntil
		}
		d.Policies[name] = m
	}
	if b.stack.Leased != nil {
		s := b.stack.Leased.Stats()
		d.Leased = &s
	}
	if b.stack.Synced != nil {
		s := b.stack.Synced.Stats()
		d.Synced = &s
	}
	return d
}
