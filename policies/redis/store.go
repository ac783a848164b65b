// Package redispolicies keeps policies and overrides at a Redis server, for all processes:
// a [Store] writes them, and a [Watch] puts them into a source of a policies.Table.
//
// # Versions
//
// The server numbers the changes: each [Store.Write] is one version, one more than the
// last, whatever the clocks of its callers say. A process asks once in [Options.Every]
// whether there is a newer one, by a GET of some 60 bytes, and reads what has changed since
// its own, and nothing else. So a change is in force everywhere within that time. All that
// came with it comes into force at once.
//
// # Overrides
//
// The server has the overrides, however many. A process asks for the one of a key when the
// key is charged, under policies that have any, and remembers the answer: up to
// policies.SourceOptions.MaxFound of them. So an override is in force for a key that was
// not charged lately from its first decision on, which waits for one HGET, and for others
// when the version is. What the server has of a version that is not in force yet holds for one
// decision, and is asked for again by the next: the server may lose it.
//
// # Roots
//
// A Store may be at several servers: see [NewRoots]. A change is made when more than half of
// them have it; of an even number, the first counts for more than half of two. A Watch asks
// one of them in turn, goes by the version of more than half, and makes those that are
// behind copies of the others.
//
// # When the server is away
//
// Decisions go on by what is known. The override of a key that is not known is not asked
// for, so that no decision waits. When the server is back with another version, all is read
// again, because a replica in its place may lack what was written last. A server that has
// lost everything is not believed until something is written to it.
package redispolicies

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/policies"
	"github.com/weir-go/weir/quota"
)

var (
	//go:embed write.lua
	writeText string
	//go:embed changes.lua
	changesText string

	write   = redis.NewScript(writeText)
	changes = redis.NewScript(changesText)
)

// MaxChange is the most entries of one Change: some 5 ms of a server, or 10 ms if all are
// policies that have parents.
const MaxChange = 1000

// DefaultPrefix begins the names of the keys of a Store that has no other.
const DefaultPrefix = "weir:policies"

// maxLog is how many changed entries the log has. A process that knows a version before them
// reads all.
const maxLog = 100_000

// Store is the policies and overrides at one Redis server, one slot of a Cluster, or several
// roots. It is safe for concurrent use.
type Store struct {
	servers    []*server
	maxLog     int
	askTimeout time.Duration
}

// NewStore returns the Store of that prefix, or of DefaultPrefix if it is empty. It panics
// if client is nil, which it does not close.
func NewStore(client redis.UniversalClient, prefix string) *Store {
	return NewRoots([]redis.UniversalClient{client}, prefix)
}

// NewRoots returns the Store of that prefix at several servers, each of which has all of it:
// such as the roots of fleet/synced. They must be given in the same order everywhere. The
// first change needs all of them, later ones more than half. It panics if there are none, or
// one is nil. It does not close them.
func NewRoots(clients []redis.UniversalClient, prefix string) *Store {
	if len(clients) == 0 {
		panic("redispolicies: NewRoots: there are no clients")
	}
	s := &Store{maxLog: maxLog, askTimeout: askTimeout}
	for i, client := range clients {
		if client == nil {
			panic("redispolicies: NewStore: client is nil")
		}
		s.servers = append(s.servers, &server{client, "{" + cmp.Or(prefix, DefaultPrefix) + "}:", i})
	}
	return s
}

// Change is what one Write changes.
type Change struct {
	Set             []*quota.Policy     // are added, or replace policies of their names
	Remove          []string            // are the names of policies
	Override        []policies.Override // are added, or replace overrides of their policies and keys
	RemoveOverrides []policies.Override // of which only Policy and Key are read
}

// Write makes a change, as one version, whose number it returns. It is in force in all
// processes within their Options.Every. The error wraps quota.ErrInvalid if a policy or an
// override is, or if there are more than MaxChange entries, and lists what is wrong; or if
// the parents of policies are not in the store, are a cycle, or are more than
// policies.MaxDepth in a line. Then nothing has changed. After another error it may have:
// Write may be called again.
func (s *Store) Write(ctx context.Context, c Change) (version int64, err error) {
	entries, err := c.entries()
	if err != nil {
		return 0, err
	}
	return s.write(ctx, entries)
}

// entries returns the arguments of write.lua.
func (c *Change) entries() (all []any, err error) {
	n := len(c.Set) + len(c.Remove) + len(c.Override) + len(c.RemoveOverrides)
	if n == 0 || n > MaxChange {
		return nil, invalid.Errorf("redispolicies: the change has %d entries; it must have from 1 to %d", n, MaxChange)
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	for _, p := range c.Set {
		text, err := json.Marshal(quota.Policy{Limits: p.Limits, Unit: p.Unit, Until: p.Until})
		if err != nil {
			return nil, invalid.Errorf("redispolicies: policy %q: %v", p.Name, err)
		}
		parent := ""
		if p.Parent != "" {
			parent = fieldOf(p.Parent, p.ParentKey)
		}
		all = append(all, "p", p.Name, text, parent)
	}
	for _, name := range c.Remove {
		all = append(all, "p", name, "", "")
	}
	for _, o := range c.Override {
		field := fieldOf(o.Policy, o.Key)
		o.Policy, o.Key = "", ""
		text, err := json.Marshal(o)
		if err != nil {
			return nil, invalid.Errorf("redispolicies: override: %v", err)
		}
		all = append(all, "o", field, text, "")
	}
	for _, o := range c.RemoveOverrides {
		if strings.Contains(o.Policy, "\n") {
			return nil, invalid.Errorf("redispolicies: policy name is %q; it must have no newline", o.Policy)
		}
		all = append(all, "o", fieldOf(o.Policy, o.Key), "", "")
	}
	return all, nil
}

// validate returns what is wrong with c, but for parents: those that are not in c may be in
// the store.
func (c *Change) validate() error {
	var scratch policies.Table // which knows what is wrong
	var errs []error
	if err := scratch.Source("change").Edit(func(e *policies.Edit) {
		all := policies.Content{Overrides: c.Override}
		for _, p := range c.Set {
			if p != nil && p.Parent != "" {
				errs = append(errs, p.Validate())
				p = &quota.Policy{Name: p.Name, Limits: p.Limits}
			}
			all.Policies = append(all.Policies, p)
		}
		e.Replace(all)
	}); err != nil {
		return err
	}
	for _, o := range c.Override {
		if !utf8.ValidString(o.ParentKey) {
			errs = append(errs, invalid.Errorf("redispolicies: an override of policy %q has a parent key that is not UTF-8; give its policy the parent key, or the key another form", o.Policy))
		}
	}
	return errors.Join(errs...)
}

func fieldOf(policy, key string) string { return policy + "\n" + key }

// Find returns the override for a policy and key, or nil if there is none.
func (s *Store) Find(ctx context.Context, policy, key string) (o *policies.Override, err error) {
	return o, s.reading(ctx, func(at *server, _ version) (err error) {
		o, err = at.find(ctx, policy, key)
		return err
	})
}

// FindPolicy returns the policy of that name, or nil if there is none. What is there and not
// valid, written by other means, comes with an error that wraps quota.ErrInvalid.
func (s *Store) FindPolicy(ctx context.Context, name string) (p *quota.Policy, err error) {
	return p, s.reading(ctx, func(at *server, _ version) (err error) {
		p, err = at.findPolicy(ctx, name)
		return err
	})
}

// Read returns the policies, and the number of their version. Changes that are made
// meanwhile may be among them.
func (s *Store) Read(ctx context.Context) (all []*quota.Policy, number int64, err error) {
	err = s.reading(ctx, func(at *server, is version) error {
		number = is.number()
		r := newReading(true)
		if err := at.readPolicies(ctx, r); err != nil {
			return err
		}
		for name, stored := range r.policies {
			p, err := parsePolicy(name, stored.text, stored.parent)
			if err != nil {
				return err
			}
			all = append(all, p)
		}
		return nil
	})
	return all, number, err
}

// Overrides calls yield with each override, until it returns false. One that changes
// meanwhile may come twice. Of what is there and is no override, written by other means, the
// error says so, after the others.
func (s *Store) Overrides(ctx context.Context, yield func(policies.Override) bool) error {
	enough := errors.New("enough")
	var foreign []error
	err := s.reading(ctx, func(at *server, _ version) error {
		return at.scan(ctx, "overrides", func(field, text string) error {
			o, err := parseOverride(field, text)
			switch {
			case err != nil:
				foreign = append(foreign, err)
			case !yield(*o):
				return enough
			}
			return nil
		})
	})
	if errors.Is(err, enough) {
		return nil
	}
	return errors.Join(append([]error{err}, foreign[:min(len(foreign), 20)]...)...)
}

// RemoveEnded removes the overrides that ended before an instant, and returns how many it
// found. An override that changes meanwhile stays.
func (s *Store) RemoveEnded(ctx context.Context, before time.Time) (found int, err error) {
	var entries []any
	remove := func() error {
		if len(entries) == 0 {
			return nil
		}
		_, err := s.write(ctx, entries)
		entries = entries[:0]
		return err
	}
	remember := func(field, text string) error {
		o, err := parseOverride(field, text)
		if err != nil || o.Until.IsZero() || !o.Until.Before(before) {
			return nil // what is no override does not keep others
		}
		found++
		if entries = append(entries, "e", field, text, ""); len(entries) < 4*MaxChange {
			return nil
		}
		return remove()
	}
	err = s.reading(ctx, func(at *server, _ version) error { return at.scan(ctx, "overrides", remember) })
	return found, errors.Join(err, remove())
}

func parsePolicy(name, text, parent string) (*quota.Policy, error) {
	p := new(quota.Policy)
	if err := json.Unmarshal([]byte(text), p); err != nil {
		return nil, invalid.Errorf("redispolicies: policy %q: %v", name, err)
	}
	p.Name = name
	p.Parent, p.ParentKey, _ = strings.Cut(parent, "\n")
	return p, p.Validate()
}

func parseOverride(field, text string) (*policies.Override, error) {
	var o policies.Override
	policy, key, ok := strings.Cut(field, "\n")
	if err := json.Unmarshal([]byte(text), &o); err != nil || !ok {
		return nil, invalid.Errorf("redispolicies: an override of policy %q: %v", policy, err)
	}
	o.Policy, o.Key = policy, key
	return &o, o.Validate()
}
