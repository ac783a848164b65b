package redispolicies

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/invalid"
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
	away    atomic.Bool

	mu     sync.Mutex
	known  version // of what is in force
	again  bool    // the server was away: changes since known may not be all
	bad    version // that is wrong, with wrong
	wrong  error
	warned string

	closed context.Context
	close  context.CancelFunc
	done   sync.WaitGroup
}

// NewWatch reads the store into the source of that name of table, and again what changes,
// until Close. If the server does not answer at first, the table has nothing of it until it
// does. NewWatch reports that as it does later.
func NewWatch(ctx context.Context, table *policies.Table, name string, store *Store, options *Options) *Watch {
	w := &Watch{store: store, known: "0"}
	if options != nil {
		w.options = *options
	}
	if w.options.Every <= 0 {
		w.options.Every = DefaultEvery
	}
	if w.options.Timeout <= 0 {
		w.options.Timeout = DefaultTimeout
	}
	if w.options.Observer == nil {
		w.options.Observer = weirlog.Default()
	}
	w.source = table.SourceWith(name, &policies.SourceOptions{Find: w.find, MaxFound: w.options.MaxFound})
	w.closed, w.close = context.WithCancel(context.Background())
	_ = w.Refresh(ctx) // which has warned
	w.done.Go(w.watch)
	return w
}

// Close ends the watching. What the source has stays; what it has not found is not asked
// for any more.
func (w *Watch) Close() {
	w.close()
	w.done.Wait()
	w.away.Store(true)
}

func (w *Watch) watch() {
	ticker := time.NewTicker(w.options.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = w.Refresh(w.closed) // which has warned
		case <-w.closed.Done():
			return
		}
	}
}

var errAway = errors.New("redispolicies: the server does not answer")

// find returns the override of a key, for decisions.
func (w *Watch) find(ctx context.Context, policy, key string) (*policies.Override, error) {
	if w.away.Load() {
		return nil, errAway
	}
	bound, cancel := context.WithTimeout(ctx, w.options.Timeout)
	defer cancel()
	o, err := w.store.Find(bound, policy, key)
	if err != nil && ctx.Err() == nil && !errors.Is(err, quota.ErrInvalid) {
		w.away.Store(true) // so that no other decision waits, until Refresh has an answer
	}
	return o, err
}

// Refresh asks for a newer version now. The error says why the store's is not in force.
func (w *Watch) Refresh(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.refresh(ctx)
	away := err != nil && !errors.Is(err, quota.ErrInvalid)
	w.away.Store(away)
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
	is, err := w.store.version(ctx)
	if err != nil {
		return err
	}
	switch {
	case is == w.known:
		w.again = false
		return nil
	case is == w.bad:
		return w.wrong
	case is.number() == 0:
		return errLost
	}
	var read reading
	if known := w.known.number(); w.again || known == 0 || is.number() <= known {
		err = w.store.readAll(ctx, &read)
	} else if err = w.store.readSince(ctx, known, &read); errors.Is(err, errTrimmed) {
		err = w.store.readAll(ctx, &read)
	}
	if err == nil {
		err = w.put(&read)
	}
	if errors.Is(err, quota.ErrInvalid) {
		w.bad, w.wrong = is, err
	}
	if err == nil {
		w.known, w.again, w.bad = read.version, false, ""
	}
	return err
}

// errLost is of a server that has no version any more.
var errLost = errors.New("redispolicies: the server has lost its policies; write them again")

// put puts what was read in force.
func (w *Watch) put(read *reading) error {
	if err := read.mistake(); err != nil {
		return err
	}
	err := w.source.Edit(func(e *policies.Edit) {
		if read.all {
			e.Clear()
		}
		for _, p := range read.policies {
			e.Set(p)
		}
		for name := range read.removed {
			e.Remove(name)
		}
		for policy, has := range read.marks {
			e.Find(policy, has)
		}
		e.SetVersion(read.version.number())
	})
	if err != nil {
		return err
	}
	if read.all {
		w.source.Forget()
	}
	for _, o := range read.overrides {
		if err := w.source.Learn(o.policy, o.key, o.override); err != nil {
			return err
		}
	}
	return nil
}

// version is a version as the store has it: a number, a space, and what its writer drew.
type version string

func (v version) number() int64 {
	digits, _, _ := strings.Cut(string(v), " ")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (s *Store) version(ctx context.Context) (version, error) {
	text, err := s.client.Get(ctx, s.key("version")).Result()
	if errors.Is(err, redis.Nil) {
		return "0", nil
	}
	if err != nil {
		return "", fmt.Errorf("redispolicies: %w", err)
	}
	return version(text), nil
}

// reading is what was read of a store.
type reading struct {
	all       bool // it is all, not what has changed
	version   version
	policies  map[string]*quota.Policy
	removed   map[string]bool
	marks     map[string]bool
	overrides map[string]learned
	mistakes  []error
}

// learned is an override that has changed, or nil if it was removed.
type learned struct {
	policy, key string
	override    *policies.Override
}

// mistake returns what is wrong with what was read, at most 20 mistakes of it.
func (r *reading) mistake() error {
	return errors.Join(r.mistakes[:min(len(r.mistakes), 20)]...)
}

// errTrimmed is of a version that the log does not go back to.
var errTrimmed = errors.New("redispolicies: the log does not go back as far")

// readAll reads all policies, and which of them have overrides.
func (s *Store) readAll(ctx context.Context, r *reading) error {
	is, err := s.version(ctx)
	if err != nil {
		return err
	}
	*r = reading{all: true}
	r.begin()
	parents, err := s.parents(ctx)
	if err != nil {
		return err
	}
	if err := s.scan(ctx, "policies", func(name, text string) error {
		r.policy(name, text, parents[name])
		return nil
	}); err != nil {
		return err
	}
	if err := s.scan(ctx, "marks", func(policy, _ string) error {
		r.marks[policy] = true
		return nil
	}); err != nil {
		return err
	}
	return s.readSince(ctx, is.number(), r) // what has changed meanwhile
}

// readSince adds to r what has changed since a version.
func (s *Store) readSince(ctx context.Context, known int64, r *reading) error {
	r.begin()
	for {
		reply, err := changes.Run(ctx, s.client, s.keys(), known, MaxChange).Slice()
		if err != nil {
			return fmt.Errorf("redispolicies: %w", err)
		}
		is, to, ok := head(reply)
		if !ok {
			return invalid.Errorf("redispolicies: the server's reply has another form")
		}
		if to < 0 {
			return errTrimmed
		}
		for i := 2; i+2 < len(reply); i += 3 {
			r.change(fmt.Sprint(reply[i]), fmt.Sprint(reply[i+1]), fmt.Sprint(reply[i+2]))
		}
		if known, r.version = to, is; to >= is.number() {
			return nil
		}
	}
}

// head returns what the reply of changes.lua begins with.
func head(reply []any) (is version, to int64, ok bool) {
	if len(reply) < 2 || (len(reply)-2)%3 != 0 {
		return "", 0, false
	}
	text, isText := reply[0].(string)
	to, isNumber := reply[1].(int64)
	return version(text), to, isText && isNumber
}

func (r *reading) begin() {
	if r.policies == nil {
		r.policies, r.removed, r.marks, r.overrides = map[string]*quota.Policy{}, map[string]bool{}, map[string]bool{}, map[string]learned{}
	}
}

// change notes a change, as changes.lua returns it.
func (r *reading) change(member, value, mark string) {
	kind, field := member[:min(len(member), 1)], member[min(len(member), 1):]
	switch {
	case kind == "p" && value == "":
		delete(r.policies, field)
		r.removed[field] = true
	case kind == "p":
		delete(r.removed, field)
		r.policy(field, value, mark)
	case kind == "o":
		policy, key, _ := strings.Cut(field, "\n")
		r.marks[policy] = mark == "1"
		o := learned{policy: policy, key: key}
		if value != "" {
			var err error
			if o.override, err = parseOverride(field, value); err != nil {
				r.mistakes = append(r.mistakes, err)
			}
		}
		r.overrides[field] = o
	}
}

func (r *reading) policy(name, text, parent string) {
	p, err := parsePolicy(name, text, parent)
	if err != nil {
		r.mistakes = append(r.mistakes, err)
		return
	}
	r.policies[name] = p
}
