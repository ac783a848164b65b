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

	"github.com/weir-go/weir/internal/invalid"
)

// DefaultPoll is the time between two reads of the file if Options sets none.
const DefaultPoll = 200 * time.Millisecond

// Options configures a Provider. Nil and the zero value select the defaults.
type Options struct {
	// Poll is the time between two reads of the file. If zero, DefaultPoll.
	Poll time.Duration

	// Log receives a line when the flags change, and one when the file is wrong,
	// which says what is wrong and in which line. If nil, slog.Default().
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

	// Owned by the goroutine.
	text     []byte // the file as last read
	problem  error  // what is wrong with it
	reported bool   // problem was seen twice, and logged
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
	o := Options{}
	if options != nil {
		o = *options
	}
	switch {
	case name == "":
		return nil, invalid.Errorf("flagfile: name is %q; it must be the name of a file in flagd's form", name)
	case o.Poll < 0:
		return nil, invalid.Errorf("flagfile: Poll is %v; it must be positive, or 0 for %v", o.Poll, DefaultPoll)
	}
	if o.Poll == 0 {
		o.Poll = DefaultPoll
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Provider{name: name, poll: o.Poll, log: o.Log, events: make(chan openfeature.Event, 16)}, nil
}

// Check returns an error that says what is wrong with the named file, or nil.
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

// Init reads the file and starts to watch it. If the file is missing or wrong, Init
// returns an error and watches it all the same: flags have no values until the file
// is right.
func (p *Provider) Init(openfeature.EvaluationContext) error {
	p.text, p.problem = read(p.name)
	if p.problem == nil {
		p.problem = p.load()
	}
	if p.problem != nil {
		p.reported = true
		p.problem = fmt.Errorf("%s: %w", p.name, p.problem)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	err := p.problem // the goroutine's from here on
	p.running.Go(func() { p.watch(ctx) })
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
			p.readAgain(ctx)
		}
	}
}

// maxBytes bounds what is read of a file.
const maxBytes = 4 << 20

func read(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err) // without the name, which callers add
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("the file has more than %d bytes", maxBytes)
	}
	return text, err
}

// readAgain reads the file and loads its flags if it has changed and is good. A
// problem is logged when it is seen twice in a row: a file that is being written is
// wrong for a moment.
func (p *Provider) readAgain(ctx context.Context) {
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
		p.problem, p.reported = nil, false
		p.log.Info("read the flags", "file", p.name)
		if !wasGood {
			p.emit(ctx, openfeature.ProviderReady, "the file is right again")
		}
		p.emit(ctx, openfeature.ProviderConfigChange, "the file has changed")
		return
	}
	p.problem = fmt.Errorf("%s: %w", p.name, err)
	if wasGood || before.Error() != p.problem.Error() {
		p.reported = false
		return
	}
	if !p.reported {
		p.reported = true
		p.log.Warn("the flags' file is wrong; its last good state stays in use", "error", p.problem)
		p.emit(ctx, openfeature.ProviderStale, p.problem.Error())
	}
}

// load parses p.text and makes its flags the current ones.
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
