// Package flagfile is an OpenFeature provider that reads flags from a file in
// flagd's JSON form, with no server and no watcher:
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
// Variants are assigned as flagd assigns them, so that flagd can serve the same
// file later and no client moves. Of flagd's targeting it implements fractional,
// if, ==, in, cat and var; another operator is an error. So is a weight below 0,
// which flagd treats as 0, and so are weights that add up to 0, with which flagd
// assigns nothing, and a comparison or join of values of different types, which
// flagd would convert.
//
// The file is polled a few times a second, so a change is seen however it is made:
// by an editor, a rename or a mount. While the file is missing or wrong, its last
// good state applies.
package flagfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-feature/go-sdk/openfeature"
)

// Options are what a Provider can be told. The zero value, and nil, are fine.
type Options struct {
	// Poll is how often the file is read. If zero, 200 ms.
	Poll time.Duration

	// Log is told of new states and of what is wrong with the file, with its
	// place in it. If nil, slog.Default.
	Log *slog.Logger
}

// Provider is an openfeature.FeatureProvider. The SDK starts and ends its one
// goroutine, by Init and Shutdown.
type Provider struct {
	name   string
	poll   time.Duration
	log    *slog.Logger
	events chan openfeature.Event
	flags  atomic.Pointer[map[string]*flag] // the last good state, nil before the first

	stop    context.CancelFunc
	running sync.WaitGroup

	// of the goroutine alone:
	text    []byte // the file as last read
	problem error  // what is wrong with it
	again   bool   // that was so twice, and told
}

var (
	_ openfeature.FeatureProvider = (*Provider)(nil)
	_ openfeature.StateHandler    = (*Provider)(nil)
	_ openfeature.EventHandler    = (*Provider)(nil)
)

// New returns a Provider of the file of that name, to be given to
// openfeature.SetProviderAndWait or its like.
func New(name string, options *Options) *Provider {
	p := &Provider{name: name, poll: 200 * time.Millisecond, log: slog.Default(), events: make(chan openfeature.Event, 16)}
	if options != nil && options.Poll > 0 {
		p.poll = options.Poll
	}
	if options != nil && options.Log != nil {
		p.log = options.Log
	}
	return p
}

// Check returns what is wrong with the file of that name, or nil.
func Check(name string) error {
	text, err := read(name)
	if err == nil {
		_, err = parse(text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Init reads the file, and begins to watch it. If it is missing or wrong, it
// returns an error and watches all the same: flags have no values until it is
// right.
func (p *Provider) Init(openfeature.EvaluationContext) error {
	p.text, p.problem = read(p.name)
	if p.problem == nil {
		p.problem = p.load()
	}
	if p.problem != nil {
		p.again = true
		p.problem = fmt.Errorf("%s: %w", p.name, p.problem)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	err := p.problem // the goroutine's from here on
	p.running.Go(func() { p.watch(ctx) })
	return err
}

// Shutdown ends watching.
func (p *Provider) Shutdown() {
	if p.stop != nil {
		p.stop()
		p.running.Wait()
	}
}

// EventChannel tells the SDK of changes.
func (p *Provider) EventChannel() <-chan openfeature.Event { return p.events }

// Metadata names the provider.
func (p *Provider) Metadata() openfeature.Metadata { return openfeature.Metadata{Name: "flagfile"} }

// Hooks returns none.
func (p *Provider) Hooks() []openfeature.Hook { return nil }

func (p *Provider) watch(ctx context.Context) {
	ticker := time.NewTicker(p.poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.look(ctx)
		}
	}
}

// maxBytes bounds what is read of a file.
const maxBytes = 4 << 20

func read(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err) // without the name, which stands in front
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("the file has more than %d bytes", maxBytes)
	}
	return text, err
}

// look reads the file and takes its state over, if it has changed and is good.
// What is wrong is told when it was so twice: a file that is being written is
// wrong for a moment.
func (p *Provider) look(ctx context.Context) {
	text, err := read(p.name)
	same := err == nil && p.problem == nil && bytes.Equal(text, p.text)
	if same {
		return
	}
	wasGood, before := p.problem == nil, p.problem
	p.text = text
	if err == nil {
		err = p.load()
	}
	if err == nil {
		p.problem, p.again = nil, false
		p.log.Info("flags were read", "file", p.name)
		if !wasGood {
			p.emit(ctx, openfeature.ProviderReady, "the file is right again")
		}
		p.emit(ctx, openfeature.ProviderConfigChange, "the file has changed")
		return
	}
	p.problem = fmt.Errorf("%s: %w", p.name, err)
	if wasGood || before.Error() != p.problem.Error() {
		p.again = false
		return
	}
	if !p.again {
		p.again = true
		p.log.Warn("the flags' file is wrong, their last good state holds", "error", p.problem)
		p.emit(ctx, openfeature.ProviderStale, p.problem.Error())
	}
}

// load takes over the state that p.text has.
func (p *Provider) load() error {
	flags, err := parse(p.text)
	if err == nil {
		p.flags.Store(&flags)
	}
	return err
}

func (p *Provider) emit(ctx context.Context, what openfeature.EventType, message string) {
	e := openfeature.Event{ProviderName: "flagfile", EventType: what}
	e.Message = message
	select {
	case p.events <- e:
	case <-ctx.Done():
	}
}
