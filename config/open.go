package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/open-feature/go-sdk/openfeature/isolated"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/guard/shadow"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/internal/receiptkey"
	"github.com/weir-go/weir/local/shares"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
)

// Stack is an open configuration: the stores, the parts around them, and a throttler in
// front.
type Stack struct {
	*guard.Stack

	// Throttler decides by the Stack.
	Throttler *throttler.Throttler

	// Config is the configuration of the Stack.
	Config *Config

	// The stores, for their Stats and other methods.
	Memory *memorybackend.Backend           // nil if no store is in memory
	Redis  map[string]*redisbackend.Backend // by the names of backends, and "shadow"
	Shares *shares.Backend                  // nil if it does not serve

	policies *redispolicies.Watch // nil without policies_at

	offline bool       // nothing dials or listens: see Check
	greeted []greeting // servers to ask at the start
	closers []func() error
}

// Open reads a file and opens the Stack that it describes. A server that doesn't answer
// within a second is logged, but is not an error: the file's on_failure applies until it
// answers. The observer is warned of Config.Warnings. The caller must close the Stack.
func Open(file string, options *Options) (*Stack, error) {
	c, err := Read(file, options)
	if err != nil {
		return nil, err
	}
	s, err := c.Open()
	if err != nil {
		return nil, err
	}
	s.Throttler.Warn(weirlog.Ensure(s.Throttler.Observer()), "", c.Warnings()...)
	return s, nil
}

// Open opens the Stack that c describes, as the function Open does.
func (c *Config) Open() (*Stack, error) { return c.open(false) }

// Check builds and closes the Stack that c describes, without a connection to a server, and
// returns the error. It also checks the file of flags.
func (c *Config) Check() error {
	if c.keys.Flags.name != "" {
		if _, err := c.readPercentages(); err != nil {
			return c.inFile(err)
		}
	}
	quiet := *c
	quiet.options.Observer, quiet.options.Log = weirlog.New(slog.New(slog.DiscardHandler), nil), slog.New(slog.DiscardHandler)
	s, err := quiet.open(true)
	if err != nil {
		return err
	}
	return s.Close()
}

// inFile returns err as an error about the file as a whole.
func (c *Config) inFile(err error) error {
	if c.File == "" {
		return err
	}
	return fmt.Errorf("%s: %w", c.File, err)
}

// startTimeout bounds how long servers that do not answer delay Open.
const startTimeout = time.Second

func (c *Config) open(offline bool) (*Stack, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s := &Stack{Config: c, Redis: make(map[string]*redisbackend.Backend), offline: offline}
	if err := s.open(ctx); err != nil {
		_ = s.Close() // it has decided nothing, so it holds no leases
		return nil, c.inFile(err)
	}
	return s, nil
}

// Close closes everything that was opened. It returns an error if leases could not be returned
// within a second: their units count as used until their windows end.
func (s *Stack) Close() error {
	var errs []error
	for _, c := range slices.Backward(s.closers) { // last opened, first closed
		errs = append(errs, c())
	}
	s.closers = nil
	return errors.Join(errs...)
}

func (s *Stack) onClose(c func()) {
	s.closers = append(s.closers, func() error { c(); return nil })
}

// Stats returns the Stats of the guard.Stack, and the Stats of the store in memory under the
// name "memory".
func (s *Stack) Stats() map[string]func() any {
	stats := s.Stack.Stats()
	if s.Memory != nil {
		stats["memory"] = func() any { return s.Memory.Stats() }
	}
	return stats
}

// Clock returns the clock of the Throttler: this process's clock or, with Redis, that clock
// corrected by the servers'.
func (s *Stack) Clock() clock.Clock {
	for _, name := range append(s.Config.names(), "shadow") {
		if b := s.Redis[name]; b != nil {
			return b.Clock()
		}
	}
	return clock.System{}
}

// shadowPrefix begins the candidate's keys, which must differ from the keys of every
// backend that serves.
const shadowPrefix = "weir-shadow:"

// open opens the stores, and puts the parts of the configuration around them.
func (s *Stack) open(ctx context.Context) error {
	c := s.Config
	options := &guard.Options{Observer: c.options.Observer}
	store, err := s.openServing(ctx, options)
	if err != nil {
		return err
	}
	if c.keys.Shadow != "" {
		candidate, err := kindOf(string(c.keys.Shadow)).open(s, shadowPrefix)
		if err != nil {
			return err
		}
		options.Shadow = &guard.Shadow{Candidate: candidate, Options: &shadow.Options{Deadline: c.Deadline}}
	}
	if options.Levels, err = s.openLevels(); err != nil {
		return err
	}
	if c.Remote() {
		options.Fallback, _ = c.fallback() // Warnings has what is unused
	}
	if cache := c.keys.RefusalCache; !cache.disabled {
		options.Refusals = &refusals.Options{Except: cache.Except}
	}
	if _, err := receiptkey.NewKey(c.options.ReceiptKey); err != nil {
		return err
	}
	if err := s.openPolicies(ctx); err != nil {
		return err
	}
	options.Clock = s.Clock()
	if s.Stack, err = guard.New(store, options); err != nil {
		return err
	}
	s.closers = append(s.closers, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return s.Stack.Close(ctx)
	})
	s.Throttler = throttler.New(s.Backend, &throttler.Options{Clock: s.Clock(), Observer: c.options.Observer, Policies: c.options.Table, ReceiptKey: c.options.ReceiptKey})
	// A middleware for a policy of the program, with other limits than the file's, is then an error.
	if err := s.Throttler.Declare(slices.Collect(maps.Values(c.Policies))...); err != nil {
		return err
	}
	if !s.offline {
		s.askServers(ctx)
	}
	// Policies began in the levels that other processes have, or had until recently.
	for name, level := range c.Levels {
		if err := s.setLevel(name, level); err != nil {
			return err
		}
	}
	return nil
}

// fallback returns the options for outages, and a text about each key that no choice uses.
func (c *Config) fallback() (o *fallback.Options, unused []string) {
	o = &fallback.Options{Policies: make(map[string]fallback.Choice)}
	switch {
	case c.keys.OnFailure != nil:
		o.OnFailure = *c.keys.OnFailure
	case c.Backend == sharesName:
		// Before its first share, and with a key that the others don't accept, a process
		// has no other way to decide.
		o.OnFailure = fallback.Local
	}
	choices := []fallback.Choice{o.OnFailure}
	for name, p := range c.keys.Policies {
		if p.OnFailure != nil {
			o.Policies[name] = *p.OnFailure
			choices = append(choices, *p.OnFailure)
		}
	}
	if slices.Contains(choices, fallback.Local) {
		o.Processes = int(c.keys.Processes)
	} else if c.keys.Processes != 0 {
		unused = append(unused, "processes has no effect, because no on_failure is local")
	}
	if slices.Contains(choices, fallback.Open) {
		o.OpenFor = time.Duration(c.keys.OpenFor)
	} else if c.keys.OpenFor != 0 {
		unused = append(unused, "open_for has no effect, because no on_failure is open")
	}
	return o, unused
}

// openServing opens the backend that serves and, with flags, the backends that clients move
// to.
func (s *Stack) openServing(ctx context.Context, options *guard.Options) (driver.Backend, error) {
	c := s.Config
	if c.Backend == sharesName {
		return s.openShares()
	}
	store, err := kindOf(c.Backend).open(s, "")
	if err != nil || !c.flagged() {
		return store, err
	}
	stores := make(map[string]handoff.Store)
	for _, name := range c.names()[1:] {
		if stores[name], err = kindOf(name).open(s, ""); err != nil {
			return nil, err
		}
	}
	api := isolated.NewAPI() // not the global one, which is the program's
	s.onClose(func() { _ = api.Shutdown(context.Background()) })
	provider := c.options.Flags
	if provider == nil {
		f := newFlags(c)
		watch, stop := context.WithCancel(context.Background())
		var done sync.WaitGroup
		done.Go(func() { every.Do(watch, flagsEvery, f.refresh) })
		s.onClose(func() { stop(); done.Wait() })
		provider = f
	}
	if err := api.SetProviderAndWait(ctx, provider); err != nil {
		c.options.Log.Warn("the provider of flags is not ready; until it is, one backend serves all clients", "backend", c.Backend, "error", err)
	}
	options.Rollout = &guard.Rollout{Name: c.Backend, Others: stores, Client: api.NewClient()}
	return store, nil
}

// openMemory opens a store in this process's memory.
func (s *Stack) openMemory(prefix string) (handoff.Store, error) {
	m, err := memorybackend.New(&memorybackend.Options{Observer: s.Config.options.Observer})
	if err != nil {
		return nil, err
	}
	if prefix == "" || s.Memory == nil {
		s.Memory = m
	}
	return m, nil
}

// greeting is a server that is asked at the start.
type greeting struct {
	attrs []any
	ping  func(context.Context) error
}

// askServers asks all servers at once, and logs the servers that do not answer.
func (s *Stack) askServers(ctx context.Context) {
	log := s.Config.options.Log
	errs := make([]error, len(s.greeted))
	var wg sync.WaitGroup
	for i, a := range s.greeted {
		wg.Go(func() { errs[i] = a.ping(ctx) })
	}
	wg.Wait()
	for i, a := range s.greeted {
		if errs[i] != nil {
			log.Warn("a server does not answer", append(a.attrs, "error", errs[i])...)
		}
	}
	if errors.Join(errs...) != nil {
		return // the scripts would not be loaded either
	}
	for _, b := range s.Redis {
		if err := b.Load(ctx); err != nil {
			log.Warn("a script was not loaded; it will be sent with the first decision", "error", err)
		}
	}
}
