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
// when the version is.
//
// # When the server is away
//
// Decisions go on by what is known. The override of a key that is not known is not asked
// for, so that no decision waits. When the server is back with another version, all is read
// again, because a replica in its place may lack what was written last. A server that has
// lost everything is not believed until something is written to it.
package redispolicies

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
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

// maxLog is how many changed entries the log has. A process that knows a version before them reads all.
const maxLog = 100_000

// Store is the policies and overrides at one Redis server, or one slot of a Cluster. It is
// safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	prefix string
	maxLog int
}

// NewStore returns the Store of that prefix, or of DefaultPrefix if it is empty. It panics
// if client is nil, which it does not close.
func NewStore(client redis.UniversalClient, prefix string) *Store {
	if client == nil {
		panic("redispolicies: NewStore: client is nil")
	}
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return &Store{client, "{" + prefix + "}:", maxLog}
}

func (s *Store) keys() []string {
	return []string{s.key("version"), s.key("trimmed"), s.key("policies"), s.key("overrides"), s.key("marks"), s.key("log"), s.key("parents"), s.key("heights")}
}

func (s *Store) key(name string) string { return s.prefix + name }

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

// write makes a change of entries, as write.lua has them.
func (s *Store) write(ctx context.Context, entries []any) (version int64, err error) {
	version, err = write.Run(ctx, s.client, s.keys(), append([]any{s.maxLog, rand.Text()[:8], policies.MaxDepth}, entries...)...).Int64()
	if err != nil {
		if _, problem, ok := strings.Cut(err.Error(), "TREE "); ok {
			return 0, invalid.Errorf("redispolicies: %s", problem)
		}
		return 0, fmt.Errorf("redispolicies: %w", err)
	}
	return version, nil
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
		text, err := json.Marshal(storedPolicy{p.Limits, p.Unit})
		if err != nil {
			return nil, err
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
func (s *Store) Find(ctx context.Context, policy, key string) (*policies.Override, error) {
	text, err := s.client.HGet(ctx, s.key("overrides"), fieldOf(policy, key)).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("redispolicies: %w", err)
	}
	return parseOverride(fieldOf(policy, key), text)
}

// Read returns the policies, and the number of their version. Changes that are made
// meanwhile may be among them.
func (s *Store) Read(ctx context.Context) (all []*quota.Policy, version int64, err error) {
	is, err := s.version(ctx)
	if err != nil {
		return nil, 0, err
	}
	parents, err := s.parents(ctx)
	if err != nil {
		return nil, 0, err
	}
	err = s.scan(ctx, "policies", func(name, text string) error {
		p, err := parsePolicy(name, text, parents[name])
		all = append(all, p)
		return err
	})
	return all, is.number(), err
}

// parents returns the parents of all policies that have one, each with its key.
func (s *Store) parents(ctx context.Context) (map[string]string, error) {
	all := make(map[string]string)
	return all, s.scan(ctx, "parents", func(name, parent string) error {
		all[name] = parent
		return nil
	})
}

// Overrides calls yield with each override, until it returns false. One that changes
// meanwhile may come twice.
func (s *Store) Overrides(ctx context.Context, yield func(policies.Override) bool) error {
	enough := errors.New("enough")
	err := s.scan(ctx, "overrides", func(field, text string) error {
		o, err := parseOverride(field, text)
		if err == nil && !yield(*o) {
			err = enough
		}
		return err
	})
	if errors.Is(err, enough) {
		return nil
	}
	return err
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
	err = s.scan(ctx, "overrides", func(field, text string) error {
		o, err := parseOverride(field, text)
		if err != nil || o.Until.IsZero() || !o.Until.Before(before) {
			return err
		}
		found++
		if entries = append(entries, "e", field, text, ""); len(entries) < 4*MaxChange {
			return nil
		}
		return remove()
	})
	return found, errors.Join(err, remove())
}

// scan calls yield with each field of a hash and its value, at least once.
func (s *Store) scan(ctx context.Context, hash string, yield func(field, value string) error) error {
	for cursor := uint64(0); ; {
		page, next, err := s.client.HScan(ctx, s.key(hash), cursor, "", MaxChange).Result()
		if err != nil {
			return fmt.Errorf("redispolicies: %w", err)
		}
		for i := 0; i+1 < len(page); i += 2 {
			if err := yield(page[i], page[i+1]); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// storedPolicy is a policy as Redis has it, under its name.
type storedPolicy struct {
	Limits []quota.Limit `json:"limits"`
	Unit   quota.Unit    `json:"unit,omitempty"`
}

func parsePolicy(name, text, parent string) (*quota.Policy, error) {
	var stored storedPolicy
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return nil, invalid.Errorf("redispolicies: policy %q: %v", name, err)
	}
	p := &quota.Policy{Name: name, Limits: stored.Limits, Unit: stored.Unit}
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
