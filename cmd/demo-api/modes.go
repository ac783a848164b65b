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
	"github.com/weir-go/weir/throttler"
)

// openLeases leases units of the backend to policies that are leased. What decides while
// the backend does not answer, and the refusal cache, go in front.
func (b *backends) openLeases() error {
	table, err := modes.NewTable(&modes.Options{Clock: b.clock()})
	if err != nil {
		return err
	}
	for name := range b.config.modes.policies {
		if err := b.config.beginMode(table, name); err != nil {
			return err
		}
	}
	b.modes = table
	if !b.config.backends.remote() {
		return nil
	}
	l, err := leased.New(b.serving, &leased.Options{Clock: b.clock(), Leases: table.Leases})
	if err != nil {
		return err
	}
	b.closers = append(b.closers, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			b.log.Warn("leases were not given back; their units count until their windows end", "error", err)
		}
	})
	b.observed.export("leased", func() any { return l.Stats() })
	b.serving, b.leased = l, l
	return nil
}

// openSynced puts what is synced around all others: no failure of theirs concerns it.
func (b *backends) openSynced() error {
	if !b.config.syncs() {
		return nil
	}
	roots, err := b.openRoots()
	if err != nil {
		return err
	}
	options := b.config.syncedOptions()
	options.Clock, options.Observer = b.clock(), b.observed.observer
	s, err := synced.New(roots, b.config.syncable(), options)
	if err != nil {
		return err
	}
	b.closers = append(b.closers, s.Close) // before the roots' clients
	b.observed.export("synced", func() any { return s.Stats() })
	b.serving, b.synced = modes.New(b.serving, s, b.modes), s
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

// beginMode begins the policy of that name, and its dry run, in the mode that other
// processes have, or had.
func (c *config) beginMode(table *modes.Table, name string) error {
	m := c.modes.policies[name]
	for _, p := range []*throttler.Policy{c.policies[name], c.dryRunOf(name)} {
		if err := table.Begin(p, m.was); err != nil {
			return err
		}
		if err := table.Set(p, m.mode); err != nil {
			return err
		}
	}
	return nil
}

// rereadModes puts c's modes of policies in force.
func (b *backends) rereadModes(c *config, log *slog.Logger) {
	changed := false
	for _, name := range slices.Sorted(maps.Keys(c.modes.policies)) {
		m, current := c.modes.policies[name], b.modes.Of(name).Mode
		_, known := b.config.modes.policies[name]
		switch {
		case !known:
			log.Warn("SIGHUP: the policy had no mode at the start; it needs one to change it: start the demo again", "policy", name)
		case m.mode == modes.Synced && b.synced == nil:
			log.Warn("SIGHUP: nothing could be synced at the start, without roots or a policy with a mode that can be; start the demo again", "policy", name)
		case m.mode == modes.Leased && b.leased == nil:
			log.Warn("SIGHUP: counts live in memory, where nothing is leased", "policy", name)
		case m.mode == current:
		default:
			if err := b.config.changeMode(b.modes, name, m.mode); err != nil {
				log.Warn("SIGHUP: the mode was not changed", "policy", name, "error", err)
				continue
			}
			changed = true
			attrs := []any{"policy", name, "from", current, "to", m.mode}
			if until := b.modes.Of(name).BothUntil; !until.IsZero() {
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
	if b.modes == nil {
		return nil
	}
	d := &debugModes{Policies: make(map[string]debugMode)}
	now := b.clock().Now()
	for name := range b.config.modes.policies {
		s := b.modes.Of(name)
		m := debugMode{Mode: s.Mode.String()}
		if s.BothUntil.After(now) {
			m.BothUntil = &s.BothUntil
		}
		d.Policies[name] = m
	}
	if b.leased != nil {
		s := b.leased.Stats()
		d.Leased = &s
	}
	if b.synced != nil {
		s := b.synced.Stats()
		d.Synced = &s
	}
	return d
}
