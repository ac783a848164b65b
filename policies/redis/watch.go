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
	// Every is how often to ask for a newer version. If zero or less, DefaultEvery.
	Every time.Duration

	// Timeout bounds the wait of a decision for the override of a key. After one that was
	// in vain, decisions do not ask until the next look at the version has an answer. If
	// zero or less, DefaultTimeout.
	Timeout time.Duration

	// MaxFound is policies.SourceOptions.MaxFound.
	MaxFound int

	// Observer is warned, once, when the server does not answer and of each version that
	// is wrong. If nil, weirlog.Default(), which logs to slog.Default().
	Observer observe.Observer
}

// Watch keeps a source of a table at the version of a Store. It is safe for concurrent use.
type Watch struct {
	store   *Store
	source  *policies.Source
	options Options
	asks    atomic.Pointer[asks] // or nil while no server can be asked

	mu     sync.Mutex
	turn   int     // of the servers, to be looked at
	known  version // of what is in force
	again  bool    // the server was away: changes since known may not be all
	bad    version // the one that was refused
	wrong  error   // why
	warned string

	mending  atomic.Bool
	unmended []atomic.Int32 // for each server, copies to it that have failed since it was seen not to be behind

	closed context.Context
	close  context.CancelFunc
	done   sync.WaitGroup
}

// asks is where decisions ask for overrides.
type asks struct {
	first   *server
	known   version // which first has
	inForce bool    // known is in force, so that answers may be kept
}

// NewWatch reads the store into the source of that name of table, and again what changes,
// until Close. If the server does not answer at first, the table has nothing of it until it
// does. NewWatch reports that as it does later.
func NewWatch(ctx context.Context, table *policies.Table, name string, store *Store, options *Options) *Watch {
	w := &Watch{store: store, options: *cmp.Or(options, new(Options)), unmended: make([]atomic.Int32, len(store.servers))}
	w.options.Every, w.options.Timeout = cmp.Or(max(w.options.Every, 0), DefaultEvery), cmp.Or(max(w.options.Timeout, 0), DefaultTimeout)
	w.options.Observer = cmp.Or[observe.Observer](w.options.Observer, weirlog.Default())
	w.source = table.SourceWith(name, &policies.SourceOptions{Find: w.find, MaxFound: w.options.MaxFound})
	w.closed, w.close = context.WithCancel(context.Background())
	_ = w.Refresh(ctx) // which has warned
	w.done.Go(func() {
		every.Do(w.closed, w.options.Every, func() { _ = w.Refresh(w.closed) })
	})
	return w
}

// Close ends the watching. What the source has stays; what it has not found is not asked
// for any more.
func (w *Watch) Close() {
	w.close()
	w.done.Wait()
	w.asks.Store(nil)
}

var errAway = errors.New("redispolicies: the server does not answer")

// find returns the override of a key, for decisions. What is of a version that is not in force
// is not to be remembered: the version may be lost, with a root or a writer.
func (w *Watch) find(ctx context.Context, policy, key string) (o *policies.Override, keep bool, err error) {
	asks := w.asks.Load()
	if asks == nil {
		return nil, false, errAway
	}
	bound, cancel := context.WithTimeout(ctx, w.options.Timeout)
	defer cancel()
	servers := w.store.servers
	for i := range servers {
		var is version
		at := servers[(asks.first.index+i)%len(servers)]
		if o, is, err = at.findAt(bound, asks.known, policy, key); err == nil {
			return o, asks.inForce && is == asks.known, nil
		}
		if bound.Err() != nil {
			break
		}
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, quota.ErrInvalid) {
		w.asks.CompareAndSwap(asks, nil) // so that no other decision waits, until Refresh has an answer
	}
	return nil, false, err
}

// Refresh asks for a newer version now. The error says why the store's is not in force.
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
	for range 2 { // a root may be killed while it is read; others have what it had
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
	} else if read, err = at.readSince(ctx, known); errors.Is(err, errTrimmed) {
		read, err = at.readAll(ctx)
	}
	if err == nil {
		w.asks.Store(&asks{at, read.version, false}) // what is read from now on is of that, or later
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

// look returns the version that is to be in force, and a server that has it: of several
// servers, the version of more than half. That is known, but for what is new, which they
// are all asked for, when the one whose turn it is has another. Where several versions are at
// half or fewer, such as at two servers when one has missed the last change and a third
// is away, it is what the next change is to follow, and mend copies it to more than half.
//
// If there is an error, the server returned has what is known, or is nil.
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

// mend makes servers that are behind copies of one that is not. It warns when that has failed
// twice in a row: a server may be killed while it is copied, and others may have mended it.
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

// errDisagree is of servers that have several versions, none of them more than half.
var errDisagree = errors.New("redispolicies: the servers have several versions, and no more than half have the same; the next change mends that")

// errLost is of servers that have no version any more.
var errLost = errors.New("redispolicies: the server has lost its policies; write them again")

// put puts what was read in force.
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

// reading is what was read of a store. Of what has changed, what was removed has the text "". All
// are without it: an empty text that is in a hash is a mistake.
type reading struct {
	all       bool // it is all, not what has changed
	version   version
	policies  map[string]stored
	marks     map[string]bool   // whether policies have overrides
	overrides map[string]string // that have changed, by their fields
}

// stored is a policy as a server has it.
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

// errTrimmed is of a version that the log does not go back to.
var errTrimmed = errors.New("redispolicies: the log does not go back as far")
