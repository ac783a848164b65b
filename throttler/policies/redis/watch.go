package redispolicies

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// Defaults of Options.
const (
	DefaultEvery   = time.Second
	DefaultTimeout = 25 * time.Millisecond // half of the middleware's deadline
)

// Options configures a Watch. Nil and the zero value select the defaults.
type Options struct {
	// Every is how often to check for a newer version. If zero or less, DefaultEvery.
	Every time.Duration

	// Timeout bounds a decision's wait for the override of a key. After a failed wait,
	// decisions don't ask until a check for a newer version succeeds. If zero or less,
	// DefaultTimeout.
	Timeout time.Duration

	// MaxFound is policies.SourceOptions.MaxFound.
	MaxFound int

	// Observer is warned once when the server doesn't answer, once of each version that is
	// wrong, and of limits that can never refuse. If nil, weirlog.Default(), which logs to slog.Default().
	Observer observe.Observer
}

// Watch keeps a source of a table at the version of a Store. It is safe for concurrent use.
type Watch struct {
	store   *Store
	source  *policies.Source
	options Options
	asks    atomic.Pointer[asks] // nil while the server can't be asked

	mu      sync.Mutex
	current version // the version in force
	again   bool    // the server was down: its changes since current may be incomplete
	bad     version // the version that was refused
	wrong   error   // why
	warned  string

	closed context.Context
	close  context.CancelFunc
	done   sync.WaitGroup
}

// asks says what decisions that ask for overrides expect of the server.
type asks struct {
	minimum version // the server has it, or a later one
	inForce bool    // the current version is in force, so that answers may be kept
}

// NewWatch reads the store into the source of that name of table, and then its changes, until
// Close. If the server doesn't answer at first, the source is empty until it does, and the
// Observer is warned.
func NewWatch(ctx context.Context, table *policies.Table, name string, store *Store, options *Options) *Watch {
	w := &Watch{store: store, options: *cmp.Or(options, new(Options))}
	w.options.Every, w.options.Timeout = cmp.Or(max(w.options.Every, 0), DefaultEvery), cmp.Or(max(w.options.Timeout, 0), DefaultTimeout)
	w.options.Observer = weirlog.Ensure(w.options.Observer)
	w.source = table.SourceWith(name, &policies.SourceOptions{Find: w.find, MaxFound: w.options.MaxFound})
	w.closed, w.close = context.WithCancel(context.Background())
	_ = w.Refresh(ctx) // Refresh warns
	w.done.Go(func() {
		every.Do(w.closed, w.options.Every, func() { _ = w.Refresh(w.closed) })
	})
	return w
}

// Close stops watching. The source keeps its content, and doesn't ask for more overrides.
func (w *Watch) Close() {
	w.close()
	w.done.Wait()
	w.asks.Store(nil)
}

var errAway = errors.New("redispolicies: the server does not answer")

// find returns the override of a key, for decisions. keep is false if the override is of a
// version that is not in force: the server may lose that version.
func (w *Watch) find(ctx context.Context, policy, key string) (o *policies.Override, keep bool, err error) {
	asks := w.asks.Load()
	if asks == nil {
		return nil, false, errAway
	}
	bound, cancel := context.WithTimeout(ctx, w.options.Timeout)
	defer cancel()
	answers := make(chan answered, 1)
	key = strings.Clone(key) // the caller may reuse its memory after a return
	go func() {              // the client may not keep the deadline
		var a answered
		if a.override, a.current, a.err = w.store.findAt(bound, asks.minimum, policy, key); a.err != nil {
			if deadline, _ := bound.Deadline(); time.Until(deadline) <= 0 {
				<-bound.Done() // a connection's deadline may come first
			}
			a.err = cmp.Or(bound.Err(), a.err)
		}
		answers <- a
	}()
	var a answered
	select {
	case a = <-answers:
	case <-bound.Done():
		a.err = bound.Err()
	}
	if a.err != nil && ctx.Err() == nil && !errors.Is(a.err, quota.ErrInvalid) {
		w.asks.CompareAndSwap(asks, nil) // so that no other decision waits, until Refresh has an answer
	}
	return a.override, a.err == nil && asks.inForce && a.current == asks.minimum, a.err
}

// answered is the answer to a decision that asks for an override.
type answered struct {
	override *policies.Override
	current  version // of the server
	err      error
}

// Refresh checks for a newer version now. The error says why the store's is not in force.
func (w *Watch) Refresh(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.source.WarnUnused(w.options.Observer)
	err := w.refresh(ctx)
	away := err != nil && !errors.Is(err, quota.ErrInvalid)
	w.again = w.again || away
	switch {
	case err == nil && w.warned != "":
		w.warned = ""
		w.source.Wrong(nil)
	case err != nil && ctx.Err() == nil && (w.warned == "" || !away && w.warned != err.Error()):
		w.warned = err.Error()
		w.source.Wrong(err)
		w.options.Observer.Warned(observe.Warned{
			Text: "the policies of a Redis server are not in force: " + w.warned,
			Hint: "the last version that was read stays in force until then",
		})
	}
	return err
}

func (w *Watch) refresh(ctx context.Context) error {
	current, err := w.store.version(ctx)
	if err == nil && current == "" && w.current != "" {
		err = errLost
	}
	if err != nil {
		w.asks.Store(nil)
		return err
	}
	w.asks.Store(&asks{w.current, true})
	switch current {
	case w.current:
		w.again = false
		return nil
	case w.bad:
		return w.wrong
	}
	return w.read(ctx, current)
}

// read reads a version, and puts it in force.
func (w *Watch) read(ctx context.Context, current version) (err error) {
	var read *reading
	if number := w.current.number(); w.again || number == 0 || current.number() <= number {
		read, err = w.store.readAll(ctx)
	} else if read, err = w.store.readSince(ctx, w.current); errors.Is(err, errUnknownVersion) {
		read, err = w.store.readAll(ctx)
	}
	if err == nil {
		w.asks.Store(&asks{read.version, false}) // overrides found from now on are of that version, or later
		err = w.put(read)
	}
	if errors.Is(err, quota.ErrInvalid) {
		w.bad, w.wrong = current, err
	}
	if err == nil {
		w.current, w.again, w.bad = read.version, false, ""
		w.asks.Store(&asks{w.current, true})
		for _, warning := range read.warnings {
			w.options.Observer.Warned(warning)
		}
	}
	return err
}

// errLost is returned if the servers no longer have a version.
var errLost = errors.New("redispolicies: the server has lost its policies; write them again")

// put puts a reading in force.
func (w *Watch) put(read *reading) error {
	return w.source.Edit(func(e *policies.Edit) {
		if read.complete {
			e.Clear()
			e.FindAllAgain()
		}
		for field, text := range read.overrides {
			policy, key, _ := strings.Cut(field, "\n")
			if text == "" {
				e.Learn(policy, key, nil)
			} else if o, err := parseOverride(field, text); err != nil {
				e.Mistake(err)
			} else {
				e.Learn(policy, key, o)
			}
		}
		for name, p := range read.policies {
			if p.text == "" && !read.complete {
				e.Remove(name)
			} else if p, err := parsePolicy(name, p.text, p.parent); err != nil {
				e.Mistake(err)
			} else {
				e.Set(p)
				read.warn(p)
			}
		}
		for policy, mark := range read.marks {
			e.Find(policy, mark)
		}
		e.SetVersion(read.version.number())
	})
}

// reading is the result of reading a store. In a reading of changes, an entry that was removed
// has the text "". In a reading of all entries, an empty text is a mistake.
type reading struct {
	complete  bool // all entries were read, not only changes
	version   version
	policies  map[string]stored
	marks     map[string]bool   // whether policies have overrides
	overrides map[string]string // changed ones, by their fields
	warnings  []observe.Warned  // of limits that can never refuse
}

// maxWarnings bounds the warnings of a reading.
const maxWarnings = 20

// warn notes the limits of p that can never refuse.
func (r *reading) warn(p *quota.Policy) {
	for _, text := range p.Warnings() {
		if len(r.warnings) < maxWarnings {
			r.warnings = append(r.warnings, observe.Warned{Policy: p.Name, Text: text, Hint: "the policy in Redis should do without that limit, or change it"})
		}
	}
}

// stored is a policy at a server.
type stored struct{ text, parent string }

func newReading(complete bool) *reading {
	return &reading{complete: complete, policies: make(map[string]stored), marks: make(map[string]bool), overrides: make(map[string]string)}
}

// change notes a change, as changes.lua returns it.
func (r *reading) change(member, value, mark string) {
	switch kind, field := kindOf(member); {
	case kind == "p" && value == "" && r.complete:
		delete(r.policies, field)
	case kind == "p":
		r.policies[field] = stored{value, mark}
	case kind == "o":
		policy, _, _ := strings.Cut(field, "\n")
		r.marks[policy], r.overrides[field] = mark == "1", value
	}
}

// errUnknownVersion is returned if the log doesn't go back to the version, or has not had it.
var errUnknownVersion = errors.New("redispolicies: the log does not go back as far, or another server has come in its place")
