// Package flagfile is an OpenFeature provider that reads the flag of a rollout
// from a file, without a server:
//
//	{
//	  "flags": {
//	    "throttler-backend": {
//	      "state": "ENABLED",
//	      "variants": {"redis": "redis", "memcached": "memcached"},
//	      "defaultVariant": "memcached",
//	      "targeting": {"fractional": [["redis", 30], ["memcached", 70]]}
//	    }
//	  }
//	}
//
// It covers the needs of the demo, and is not a flag service: values are strings, and
// targeting is absent, fractional as above, or fractional with exceptions for some clients:
//
//	{"if": [{"in": [{"var": "targetingKey"}, ["KEY"]]}, "redis", {"fractional": [["redis", 30], ["memcached", 70]]}]}
//
// This is a small part of flagd's form, and anything else is an error. Variants are
// assigned as in flagd: flagd, or its provider, can read the same file later, and no
// client moves.
//
// The file is polled a few times a second, so a change is seen however it is made:
// by an editor, a rename or a mount. While the file is missing or wrong, its last
// good state applies.
package flagfile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/internal/invalid"
)

// DefaultPoll is the default of Options.Poll.
const DefaultPoll = 200 * time.Millisecond

// Options configures a Provider. Nil and the zero value select the defaults.
type Options struct {
	// Poll is the time between two reads of the file. If zero, DefaultPoll.
	Poll time.Duration

	// Log receives a line when the flags change, and a line with the mistake and its
	// place when the file is wrong. If nil, slog.Default().
	Log *slog.Logger
}

// Provider is an openfeature.FeatureProvider. The SDK starts and ends its one
// goroutine, by Init and Shutdown.
type Provider struct {
	name   string
	poll   time.Duration
	log    *slog.Logger
	events chan openfeature.Event
	file   atomic.Pointer[file] // as last read without a problem; nil before

	stop    context.CancelFunc
	running sync.WaitGroup

	// Owned by the goroutine.
	problem  error // of the last read
	reported bool  // problem was seen twice, and logged
}

var (
	_ openfeature.FeatureProvider = (*Provider)(nil)
	_ openfeature.StateHandler    = (*Provider)(nil)
	_ openfeature.EventHandler    = (*Provider)(nil)
)

// New returns a Provider of the flags in the named file, for
// openfeature.SetProviderAndWait and the like. It does not read the file: Init
// does. Errors are about the name and options, and wrap quota.ErrInvalid.
func New(name string, options *Options) (*Provider, error) {
	o := *cmp.Or(options, new(Options))
	switch {
	case name == "":
		return nil, invalid.Errorf("flagfile: name is %q; it must be the name of a file of flags", name)
	case o.Poll < 0:
		return nil, invalid.Errorf("flagfile: Poll is %v; it must be positive, or 0 for %v", o.Poll, DefaultPoll)
	}
	return &Provider{name: name, poll: cmp.Or(o.Poll, DefaultPoll), log: cmp.Or(o.Log, slog.Default()), events: make(chan openfeature.Event, 16)}, nil
}

// Check returns why the named file can't be read or is wrong, or nil.
func Check(name string) error {
	_, err := read(name)
	return err
}

// file is a file without a problem.
type file struct {
	text  []byte
	flags map[string]*flag
}

func read(name string) (*file, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Unwrap(err)) // without the name
	}
	flags, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &file{text: text, flags: flags}, nil
}

// Init reads the file and starts to watch it. If the file is missing or wrong, Init
// returns an error but still watches it: flags have no values until the file is right.
func (p *Provider) Init(openfeature.EvaluationContext) error {
	f, err := read(p.name)
	if err == nil {
		p.file.Store(f)
	}
	p.problem, p.reported = err, err != nil
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.running.Go(func() {
		every.Do(ctx, p.poll, func() { p.readAgain(ctx) })
	})
	return err
}

// Shutdown stops watching the file.
func (p *Provider) Shutdown() {
	if p.stop != nil {
		p.stop()
		p.running.Wait()
	}
}

// EventChannel returns the channel of the provider's events.
func (p *Provider) EventChannel() <-chan openfeature.Event { return p.events }

// Metadata returns the provider's name, flagfile.
func (p *Provider) Metadata() openfeature.Metadata { return openfeature.Metadata{Name: "flagfile"} }

// Hooks returns nil.
func (p *Provider) Hooks() []openfeature.Hook { return nil }

// readAgain reads the file and uses its flags if they have changed. A problem is
// logged when it is seen twice in a row: a file that is being written is wrong for a
// moment.
func (p *Provider) readAgain(ctx context.Context) {
	before := p.problem
	f, err := read(p.name)
	p.problem = err
	switch {
	case err == nil && before == nil && bytes.Equal(f.text, p.file.Load().text):
	case err == nil:
		p.file.Store(f)
		p.log.Info("read the flags", "file", p.name)
		if before != nil {
			p.emit(ctx, openfeature.ProviderReady, "the file is right again")
		}
		p.emit(ctx, openfeature.ProviderConfigChange, "the file has changed")
	case before == nil || before.Error() != err.Error():
		p.reported = false
	case !p.reported:
		p.reported = true
		p.log.Warn("the flags' file is wrong; its last good state stays in use", "error", err)
		p.emit(ctx, openfeature.ProviderStale, err.Error())
	}
}

func (p *Provider) emit(ctx context.Context, what openfeature.EventType, message string) {
	e := openfeature.Event{ProviderName: "flagfile", EventType: what}
	e.Message = message
	select {
	case p.events <- e:
	case <-ctx.Done():
	}
}
