package redispolicies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/every"
	weirlog "github.com/weir-go/weir/log"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/policies"
	"github.com/weir-go/weir/quota"
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

	// Observer is warned once when the server doesn't answer, and once of each version
	// that is wrong. If nil, weirlog.Default(), which logs to slog.Default().
	Observer observe.Observer
}

// Watch keeps a source of a table at the version of a Store. It is safe for concurrent use.
type Watch struct {
	store   *Store
	source  *policies.Source
	options Options
	asks    atomic.Pointer[asks] // nil while no server can be asked

	mu     sync.Mutex
	turn   int     // index of the server that look asked last
	known  version // the version in force
	again  bool    // the server was down: its changes since known may be incomplete
	bad    version // the version that was refused
	wrong  error   // why
	warned string

	mending  atomic.Bool
	unmended []atomic.Int32 // for each server, failed copies to it since it was last up to date

	closed context.Context
	close  context.CancelFunc
	done   sync.WaitGroup
}

// asks says where decisions ask for overrides.
type asks struct {
	first   *server
	known   version // of first
	inForce bool    // known is in force, so that answers may be kept
}

// NewWatch reads the store into the source of that name of table, and then its changes, until
// Close. If the server doesn't answer at first, the source is empty until it does, and the
// Observer is warned.
func NewWatch(ctx context.Context, table *policies.Table, name string, store *Store, options *Options) *Watch {
	w := &Watch{store: store, options: *cmp.Or(options, new(Options)), unmended: make([]atomic.Int32, len(store.servers))}
	w.options.Every, w.options.Timeout = cmp.Or(max(w.options.Every, 0), DefaultEvery), cmp.Or(max(w.options.Timeout, 0), DefaultTimeout)
	w.options.Observer = cmp.Or[observe.Observer](w.options.Observer, weirlog.Default())
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
// version that is not in force: that may be lost, with a root or a writer.
func (w *Watch) find(ctx context.Context, policy, key string) (o *policies.Override, keep bool, err error) {
	asks := w.asks.Load()
	if asks == nil {
		return nil, false, errAway
	}
	bound, cancel := context.WithTimeout(ctx, w.options.Timeout)
	defer cancel()
	answers := make(chan answered, 1)
	key = strings.Clone(key)                                   // the caller may reuse its memory after a return
	go func() { answers <- w.ask(bound, asks, policy, key) }() // the client may not keep the deadline
	var a answered
	select {
	case a = <-answers:
	case <-bound.Done():
		a.err = bound.Err()
	}
	if a.err != nil && ctx.Err() == nil && !errors.Is(a.err, quota.ErrInvalid) {
		w.asks.CompareAndSwap(asks, nil) // so that no other decision waits, until Refresh has an answer
	}
	return a.override, a.err == nil && asks.inForce && a.is == asks.known, a.err
}

// answered is the answer to a decision that asks for an override.
type answered struct {
	override *policies.Override
	is       version // of the server
	err      error
}

// ask asks the servers, one after the other, for find. ctx has a deadline. After it, the error
// is the context's.
func (w *Watch) ask(ctx context.Context, asks *asks, policy, key string) (a answered) {
	servers := w.store.servers
	for i := range servers {
		at := servers[(asks.first.index+i)%len(servers)]
		if a.override, a.is, a.err = at.findAt(ctx, asks.known, policy, key); a.err == nil {
			return a
		}
		if deadline, _ := ctx.Deadline(); time.Until(deadline) <= 0 {
			<-ctx.Done() // a connection's deadline may come first
		}
		if ctx.Err() != nil {
			return answered{err: ctx.Err()}
		}
	}
	return a
}

// Refresh checks for a newer version now. The error says why the store's is not in force.
func (w *Watch) Refresh(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
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

func (w *Watch) refresh(ctx context.Context) (err error) {
	for range 2 { // a root may be killed while it is read; others have its content
		at, is, asked := w.look(ctx)
		if at != nil {
			w.asks.Store(&asks{at, w.known, true})
		} else {
			w.asks.Store(nil)
		}
		switch {
		case asked != nil:
			return asked
		case is == w.known:
			w.again = false
			return nil
		case is == w.bad:
			return w.wrong
		}
		if err = w.read(ctx, at, is); err == nil || errors.Is(err, quota.ErrInvalid) || len(w.store.servers) == 1 {
			break
		}
	}
	return err
}

// read reads a version, and puts it in force.
func (w *Watch) read(ctx context.Context, at *server, is version) (err error) {
	var read *reading
	if known := w.known.number(); w.again || known == 0 || is.number() <= known {
		read, err = at.readAll(ctx)
	} else if read, err = at.readSince(ctx, w.known); errors.Is(err, errUnknownVersion) {
		read, err = at.readAll(ctx)
	}
	if err == nil {
		w.asks.Store(&asks{at, read.version, false}) // overrides found from now on are of that version, or later
		err = w.put(read)
	}
	if errors.Is(err, quota.ErrInvalid) {
		w.bad, w.wrong = is, err
	}
	if err == nil {
		w.known, w.again, w.bad = read.version, false, ""
		w.asks.Store(&asks{at, w.known, true})
	}
	return err
}

// look returns the version to put in force, and a server that has it. Of several servers, it
// is the version of more than half. look asks one server in turn, and asks all unless
// that one has the version in force, or the one refused. If no version is at more than half,
// such as if one of three is down and another has missed the last change, look returns the
// version that the next change must follow, and mend copies it to more than half.
//
// If there is an error, the server returned has the version known, or is nil.
func (w *Watch) look(ctx context.Context) (at *server, is version, err error) {
	servers := w.store.servers
	w.turn = (w.turn + 1) % len(servers)
	one := w.store.askOne(ctx, servers[w.turn])
	if one.err == nil && one.is != "" && (one.is == w.known || one.is == w.bad) {
		w.unmended[w.turn].Store(0)
		return one.server, one.is, nil
	}
	all := w.store.ask(ctx, &one)
	for try := 0; try < patientTries && all.split() && sleep(ctx, 2*time.Millisecond<<try) == nil; try++ {
		all = w.store.ask(ctx, nil)
	}
	w.mend(all)
	return w.choose(all)
}

// choose is look for the answers of all servers.
func (w *Watch) choose(all answers) (at *server, is version, err error) {
	at = all.with(w.known)
	made, ok := all.made()
	base, sure, _ := all.base()
	highest, _, _ := all.highest()
	switch {
	case ok && (made.is.number() >= w.known.number() || at == nil && all.whole()):
		return made.server, made.is, nil
	case w.known == "" && highest.is != "": // rather than nothing
		return highest.server, highest.is, nil
	case !ok && sure && base.is.number() > w.known.number():
		return base.server, base.is, nil
	case at != nil && all.enough():
		return at, w.known, nil
	case all.lost():
		return nil, "", errLost
	case all.whole() || ok:
		return at, "", errDisagree
	}
	return at, "", fmt.Errorf("redispolicies: %w", all.err())
}

// mend makes servers that are behind copies of one that is not. It warns when that fails twice
// in a row: one failure may be a server that was killed during the copy, or mended by others.
func (w *Watch) mend(all answers) {
	from, sure, err := all.base()
	if err != nil || !sure {
		return
	}
	isBehind := func(a answer) bool { return a.err == nil && behind(a.is, from.is) }
	for i, a := range all {
		if a.err == nil && !isBehind(a) {
			w.unmended[i].Store(0)
		}
		if !isBehind(a) || w.closed.Err() != nil || !w.mending.CompareAndSwap(false, true) {
			continue
		}
		w.done.Go(func() {
			defer w.mending.Store(false)
			err := w.store.mend(w.closed, from.server, a.server, a.is, from.is)
			if err == nil || errors.Is(err, errMoved) || w.closed.Err() != nil {
				w.unmended[i].Store(0)
				return
			}
			if w.unmended[i].Add(1) == 2 {
				w.options.Observer.Warned(observe.Warned{
					Text: "the policies of a root cannot be brought up to date: " + err.Error(),
					Hint: "the others go on without it",
				})
			}
		})
	}
}

// errDisagree is returned if no version is at more than half of the servers.
var errDisagree = errors.New("redispolicies: the servers have several versions, and no more than half have the same; the next change mends that")

// errLost is returned if the servers no longer have a version.
var errLost = errors.New("redispolicies: the server has lost its policies; write them again")

// put puts a reading in force.
func (w *Watch) put(read *reading) error {
	return w.source.Edit(func(e *policies.Edit) {
		if read.all {
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
			if p.text == "" && !read.all {
				e.Remove(name)
			} else if p, err := parsePolicy(name, p.text, p.parent); err != nil {
				e.Mistake(err)
			} else {
				e.Set(p)
			}
		}
		for policy, has := range read.marks {
			e.Find(policy, has)
		}
		e.SetVersion(read.version.number())
	})
}

// reading is the result of reading a store. In a reading of changes, an entry that was removed
// has the text "". In a reading of all entries, an empty text is a mistake.
type reading struct {
	all       bool // all entries were read, not only changes
	version   version
	policies  map[string]stored
	marks     map[string]bool   // whether policies have overrides
	overrides map[string]string // changed ones, by their fields
}

// stored is a policy at a server.
type stored struct{ text, parent string }

func newReading(all bool) *reading {
	return &reading{all: all, policies: make(map[string]stored), marks: make(map[string]bool), overrides: make(map[string]string)}
}

// change notes a change, as changes.lua returns it.
func (r *reading) change(member, value, mark string) {
	switch kind, field := kindOf(member); {
	case kind == "p" && value == "" && r.all:
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
