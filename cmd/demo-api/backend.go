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
	"github.com/weir-go/weir/fleet/shares"
	"github.com/weir-go/weir/handoff"
	"github.com/weir-go/weir/stack"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/wrap/refusals"
	"github.com/weir-go/weir/wrap/rollout"
	"github.com/weir-go/weir/wrap/rollout/flagfile"
	"github.com/weir-go/weir/wrap/shadow"
)

// startTimeout bounds how long servers that do not answer delay the start.
const startTimeout = time.Second

// backends are the open backends: the stores, and what is around them.
type backends struct {
	config   *config
	log      *slog.Logger
	offline  bool // nothing dials or listens: see check
	observed observation
	stack    *stack.Stack            // the serving one, and what is around it
	redis    []*redisbackend.Backend // one for each list of shards
	memory   *memorybackend.Backend  // nil if no backend is in memory
	shares   *shares.Backend         // nil if it does not serve
	closers  []func()
}

// check builds what a start builds, offline, and returns what is wrong with it.
func (c *config) check() error {
	if err := c.checkFlags(); err != nil {
		return err
	}
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
	if err := b.openStack(ctx); err != nil {
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

// shadowPrefix begins the candidate's keys, which must differ from the keys of every
// backend that serves.
const shadowPrefix = "weir-shadow:"

// openStack opens the stores, and puts around them what the configuration says.
func (b *backends) openStack(ctx context.Context) error {
	c := &b.config.backends
	options := &stack.Options{Observer: b.observed.observer}
	store, err := b.openServing(ctx, options)
	if err != nil {
		return err
	}
	if c.shadow != "" {
		candidate, err := b.openOne(ctx, c.shadow, shadowPrefix)
		if err != nil {
			return err
		}
		options.Shadow = &stack.Shadow{Candidate: candidate, Options: &shadow.Options{Deadline: b.config.deadline}}
	}
	if options.Modes, err = b.modes(); err != nil {
		return err
	}
	if c.remote() {
		options.Fallback = b.config.failures.options()
	}
	if c.refusals.on {
		options.Refusals = &refusals.Options{Except: c.refusals.except}
	}
	options.Clock = b.clock()
	if b.stack, err = stack.New(store, options); err != nil {
		return err
	}
	b.closers = append(b.closers, b.closeStack)
	for name, stats := range b.stack.Stats() {
		b.observed.export(name, stats)
	}
	return b.setModes()
}

func (b *backends) closeStack() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := b.stack.Close(ctx); err != nil {
		b.log.Warn("leases were not given back; their units count until their windows end", "error", err)
	}
}

// openServing opens the backend that serves and, with flags, the others that it moves
// clients to.
func (b *backends) openServing(ctx context.Context, options *stack.Options) (driver.Backend, error) {
	c := &b.config.backends
	switch {
	case c.serving == sharesName:
		return b.openShares()
	case c.flags == "":
		return b.openOne(ctx, c.serving, "")
	}
	store, err := b.openOne(ctx, c.serving, "")
	if err != nil {
		return nil, err
	}
	others := make(map[string]handoff.Store)
	for _, name := range c.names()[1:] {
		if others[name], err = b.openOne(ctx, name, ""); err != nil {
			return nil, err
		}
	}

	// An API of its own, and not the global one: tests run several demos.
	api := isolated.NewAPI()
	b.closers = append(b.closers, func() { _ = api.Shutdown(context.Background()) })
	flags, err := flagfile.New(c.flags, &flagfile.Options{Log: b.log})
	if err != nil {
		return nil, err
	}
	if err := api.SetProviderAndWait(ctx, flags); err != nil {
		b.log.Warn("there are no flags yet", "serving", c.serving, "error", err)
	}
	options.Rollout = &stack.Rollout{Name: c.serving, Others: others, Client: api.NewClient(), Options: &rollout.Options{Events: true}}
	return store, nil
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
