package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/open-feature/go-sdk/openfeature/isolated"

	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/fleet/leased"
	"github.com/weir-go/weir/fleet/modes"
	"github.com/weir-go/weir/fleet/shares"
	"github.com/weir-go/weir/fleet/synced"
	"github.com/weir-go/weir/handoff"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/wrap/fallback"
	"github.com/weir-go/weir/wrap/refusals"
	"github.com/weir-go/weir/wrap/rollout"
	"github.com/weir-go/weir/wrap/rollout/flagfile"
	"github.com/weir-go/weir/wrap/shadow"
)

// startTimeout bounds how long servers that do not answer delay the start.
const startTimeout = time.Second

// backends are the open backends: the serving one, which may wrap others, and what
// closes them all.
type backends struct {
	config   *config
	log      *slog.Logger
	offline  bool // nothing dials or listens: see check
	observed observation
	serving  driver.Backend
	redis    []*redisbackend.Backend // one for each list of shards
	memory   *memorybackend.Backend  // nil if no backend is in memory
	shares   *shares.Backend         // nil if it does not serve
	rollout  *rollout.Backend        // nil without flags
	shadow   *shadow.Backend         // nil without a candidate
	fallback *fallback.Backend       // nil if all counts live in memory
	refusals *refusals.Backend       // nil without a refusal cache
	modes    *modes.Table            // nil if no policy has a mode
	leased   *leased.Backend         // nil without, or if all counts live in memory
	synced   *synced.Backend         // nil without, or if there are no roots
	closers  []func()
}

// check builds what a start builds, offline, and returns what is wrong with it.
func (c *config) check() error {
	b, err := c.open(context.Background(), slog.New(slog.DiscardHandler), true)
	if err != nil {
		return err
	}
	defer b.close()
	_, _, err = routes(c, b)
	return err
}

// open opens the configured backends. A server that does not answer is only worth a
// warning: on_failure decides what its callers get, and it may come back.
func (c *config) open(ctx context.Context, log *slog.Logger, offline bool) (*backends, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	observed, err := newObservation(log)
	if err != nil {
		return nil, err
	}
	b := &backends{config: c, log: log, observed: observed, offline: offline}
	err = b.openServing(ctx)
	if err == nil && c.backends.shadow != "" {
		err = b.openShadow(ctx)
	}
	if err == nil && len(c.modes.policies) > 0 {
		err = b.openLeases()
	}
	if err == nil && c.backends.remote() {
		err = b.openFallback()
	}
	if err == nil && c.backends.refusals.on {
		err = b.openRefusals()
	}
	if err == nil {
		err = b.openSynced()
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// clock returns what decisions go by: this process' clock, or with Redis, that clock
// corrected by the servers'.
func (b *backends) clock() clock.Clock {
	if len(b.redis) == 0 {
		return clock.System{}
	}
	return b.redis[0].Clock()
}

// close closes what was opened, in reverse order.
func (b *backends) close() {
	for i := len(b.closers) - 1; i >= 0; i-- {
		b.closers[i]()
	}
}

func (b *backends) openServing(ctx context.Context) error {
	c := &b.config.backends
	if c.serving == sharesName {
		return b.openShares()
	}
	all := make(map[string]handoff.Store)
	names := c.names()
	if c.flags == "" {
		names = names[:1]
	}
	for _, name := range names {
		backend, err := b.openOne(ctx, name, "")
		if err != nil {
			return err
		}
		all[name] = backend
	}
	if c.flags == "" {
		b.serving = all[c.serving]
		return nil
	}

	// An API of its own, and not the global one: tests run several demos.
	api := isolated.NewAPI()
	b.closers = append(b.closers, func() { _ = api.Shutdown(context.Background()) })
	flags, err := flagfile.New(c.flags, &flagfile.Options{Log: b.log})
	if err != nil {
		return err
	}
	if err := api.SetProviderAndWait(ctx, flags); err != nil {
		b.log.Warn("there are no flags yet", "serving", c.serving, "error", err)
	}
	r, err := rollout.New(all, c.serving, api.NewClient(), &rollout.Options{Events: true, Observer: b.observed.observer})
	if err != nil {
		return err
	}
	b.closers = append(b.closers, r.Close)
	b.serving, b.rollout = r, r
	b.observed.export("rollout", func() any { return r.Stats() })
	return nil
}

// shadowPrefix begins the candidate's keys, which must differ from the keys of every
// backend that serves.
const shadowPrefix = "weir-shadow:"

func (b *backends) openShadow(ctx context.Context) error {
	candidate, err := b.openOne(ctx, b.config.backends.shadow, shadowPrefix)
	if err != nil {
		return err
	}
	s, err := shadow.New(b.serving, candidate, &shadow.Options{Deadline: b.config.deadline})
	if err != nil {
		return err
	}
	b.closers = append(b.closers, s.Close)
	b.serving, b.shadow = s, s
	b.observed.export("shadow", func() any { return s.Stats() })
	return nil
}

// openFallback decides while the others do not answer.
func (b *backends) openFallback() error {
	options := b.config.failures.options()
	options.Log = b.log
	f, err := fallback.New(b.serving, options)
	if err != nil {
		return err
	}
	b.closers = append(b.closers, f.Close)
	b.serving, b.fallback = f, f
	b.observed.export("fallback", func() any { return f.Stats() })
	return nil
}

// openRefusals wraps the refusal cache around all others: the backends inside a
// rollout or a shadow must be able to hand counts over, and a cache cannot.
func (b *backends) openRefusals() error {
	r, err := refusals.New(b.serving, &refusals.Options{Except: b.config.backends.refusals.except})
	if err != nil {
		return err
	}
	b.serving, b.refusals = r, r
	b.observed.export("refusals", func() any { return r.Stats() })
	return nil
}

// openOne opens the backend of that name. An empty prefix is the usual one.
func (b *backends) openOne(ctx context.Context, name, prefix string) (handoff.Store, error) {
	switch name {
	case memoryName:
		m, err := memorybackend.New(&memorybackend.Options{Observer: b.observed.observer})
		if err != nil {
			return nil, err
		}
		b.memory = m
		if prefix == "" { // else it is the candidate's
			b.observed.export("memory", func() any { return m.Stats() })
		}
		return m, nil
	case redisName:
		return b.openRedis(ctx, b.config.backends.shards, prefix)
	case reshardedName:
		return b.openRedis(ctx, b.config.backends.resharded, prefix)
	case memcachedName:
		return b.openMemcached(ctx, prefix)
	}
	return nil, fmt.Errorf("there is no backend %q", name)
}
