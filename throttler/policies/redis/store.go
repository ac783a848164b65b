// Package redispolicies keeps policies and overrides at a Redis server, for all processes:
// a [Store] writes them, and a [Watch] puts them into a source of a policies.Table.
//
// # Versions
//
// The server numbers the changes: each [Store.Write] makes one version, numbered one more
// than the last, whatever its callers' clocks say. A process checks for a newer version once
// in [Options.Every], by a GET of some 60 bytes, and reads only the changes since its own
// version. So a change is in force everywhere within that time, and all of it at once.
//
// # Overrides
//
// The server holds the overrides, however many. A process asks for a key's override when the
// key is charged under a policy that has overrides, and remembers up to
// policies.SourceOptions.MaxFound answers. So a key that was not charged lately gets its
// override with its first decision, which waits for one HGET; other keys get theirs when the
// version comes into force. An override of a version that is not in force yet holds for one
// decision, and the next one asks again: the server may lose that version.
//
// # Writer and copies
//
// One server takes the changes. To survive its loss, let Redis Sentinel choose it, and give
// NewStore the Sentinel's client. A process may read from a Redis replica of that server, such
// as one in its data centre: then its Store has the replica's client, and a Write there is an
// error. A change is in force when the replica has it and the process has looked.
//
// # When the server is down
//
// A Write is an error. Decisions use the policies and overrides that the process has, and
// don't ask for others, so that no decision waits. When the server is back with another
// version, everything is read again, because a replica in its place may lack the last changes.
// A server that has lost everything is ignored until something is written to it.
package redispolicies

import (
	"cmp"
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
	"github.com/weir-go/weir/internal/jsontext"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

var (
	//go:embed write.lua
	writeText string
	//go:embed changes.lua
	changesText string

	write   = redis.NewScript(writeText)
	changes = redis.NewScript(changesText)
)

// MaxChange is the most entries of one Change. They take a server some 5 ms, or 10 ms if all
// are policies that have parents.
const MaxChange = 1000

// DefaultPrefix is the default prefix of a Store's keys.
const DefaultPrefix = "weir:policies"

// maxLog is the most members that the log keeps: changed entries and versions. A process at an
// older version reads everything.
const maxLog = 200_000

// Store is the policies and overrides at one Redis server, or in one slot of a Cluster. It is
// safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	prefix string
	maxLog int
}

// NewStore returns the Store of that prefix, or of DefaultPrefix if it is empty. It panics
// if client is nil. The caller closes client.
func NewStore(client redis.UniversalClient, prefix string) *Store {
	if client == nil {
		panic("redispolicies: NewStore: client is nil")
	}
	return &Store{client, "{" + cmp.Or(prefix, DefaultPrefix) + "}:", maxLog}
}

// Change lists the changes of one Write.
type Change struct {
	Set             []*quota.Policy     // to add, or to replace policies of their names
	Remove          []string            // names of policies
	Override        []policies.Override // to add, or to replace overrides of their policies and keys
	RemoveOverrides []policies.Override // only Policy and Key are read
}

// Write makes a change as one version, and returns its number. The change is in force in all
// processes within their Options.Every. The error wraps quota.ErrInvalid, and lists the
// mistakes, if a policy or an override is invalid, if there are no entries or more than
// MaxChange, or if the parents of policies are not in the store or form a cycle. Then nothing
// has changed. After another error the change may have been made; Write may be called again.
func (s *Store) Write(ctx context.Context, c Change) (version int64, err error) {
	entries, err := c.entries()
	if err != nil {
		return 0, err
	}
	return s.write(ctx, entries)
}

// write makes a change of entries, arguments of write.lua.
func (s *Store) write(ctx context.Context, entries []any) (version int64, err error) {
	version, err = write.Run(ctx, s.client, s.keys(), append([]any{s.maxLog, rand.Text()[:8]}, entries...)...).Int64()
	if err == nil {
		return version, nil
	}
	if _, problem, ok := strings.Cut(err.Error(), "TREE "); ok {
		return 0, invalid.Errorf("redispolicies: %s", problem)
	}
	if strings.HasPrefix(err.Error(), "READONLY ") {
		return 0, fmt.Errorf("redispolicies: the server is a replica, which takes no changes; write to its primary: %w", err)
	}
	return 0, fmt.Errorf("redispolicies: the server did not confirm the change; until it is made, the policies that processes have stay in force: %w", err)
}

// entries returns the arguments of write.lua.
func (c *Change) entries() (args []any, err error) {
	n := len(c.Set) + len(c.Remove) + len(c.Override) + len(c.RemoveOverrides)
	if n == 0 || n > MaxChange {
		return nil, invalid.Errorf("redispolicies: the change has %d entries; it must have from 1 to %d", n, MaxChange)
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	for _, p := range c.Set {
		text, err := json.Marshal(quota.Policy{Limits: p.Limits, Unit: p.Unit, Hidden: p.Hidden, Until: p.Until})
		if err != nil {
			return nil, invalid.Errorf("redispolicies: policy %q: %v", p.Name, err)
		}
		parent := ""
		if p.Parent != "" {
			parent = fieldOf(p.Parent, p.ParentKey)
		}
		args = append(args, "p", p.Name, text, parent)
	}
	for _, name := range c.Remove {
		args = append(args, "p", name, "", "")
	}
	for _, o := range c.Override {
		field := fieldOf(o.Policy, o.Key)
		o.Policy, o.Key = "", ""
		text, err := json.Marshal(o)
		if err != nil {
			return nil, invalid.Errorf("redispolicies: override: %v", err)
		}
		args = append(args, "o", field, text, "")
	}
	for _, o := range c.RemoveOverrides {
		if strings.Contains(o.Policy, "\n") {
			return nil, invalid.Errorf("redispolicies: policy name is %q; it must have no newline", o.Policy)
		}
		args = append(args, "o", fieldOf(o.Policy, o.Key), "", "")
	}
	return args, nil
}

// validate returns why c is invalid, or nil. It doesn't check parents, which may be in the
// store.
func (c *Change) validate() error {
	var scratch policies.Table // it validates c
	var errs []error
	if err := scratch.Source("change").Edit(func(e *policies.Edit) {
		content := policies.Content{Overrides: c.Override}
		for _, p := range c.Set {
			if p != nil && p.Parent != "" {
				errs = append(errs, p.Validate())
				p = &quota.Policy{Name: p.Name, Limits: p.Limits}
			}
			content.Policies = append(content.Policies, p)
		}
		e.Replace(content)
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

// Read returns the policies, and the number of their version. It may include changes that are
// made while it reads.
func (s *Store) Read(ctx context.Context) (policies []*quota.Policy, number int64, err error) {
	current, err := s.version(ctx)
	if err != nil {
		return nil, 0, err
	}
	r := newReading(true)
	if err := s.readPolicies(ctx, r); err != nil {
		return nil, 0, err
	}
	for name, stored := range r.policies {
		p, err := parsePolicy(name, stored.text, stored.parent)
		if err != nil {
			return nil, 0, err
		}
		policies = append(policies, p)
	}
	return policies, current.number(), nil
}

// Overrides calls yield with each override, until yield returns false. An override that
// changes during the call may come twice. Overrides skips values that are not valid, because
// they were written by other means; after the others, it returns an error about them.
func (s *Store) Overrides(ctx context.Context, yield func(policies.Override) bool) error {
	errStop := errors.New("enough")
	var foreign []error
	err := s.scan(ctx, "overrides", func(field, text string) error {
		o, err := parseOverride(field, text)
		switch {
		case err != nil:
			foreign = append(foreign, err)
		case !yield(*o):
			return errStop
		}
		return nil
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return errors.Join(append([]error{err}, foreign[:min(len(foreign), 20)]...)...)
}

// RemoveEnded removes the overrides that ended before an instant, and returns how many it
// found. An override that changes during the call stays.
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
			return nil // invalid values stay, too
		}
		found++
		if entries = append(entries, "e", field, text, ""); len(entries) < 4*MaxChange {
			return nil
		}
		return remove()
	}
	err = s.scan(ctx, "overrides", remember)
	return found, errors.Join(err, remove())
}

func parsePolicy(name, text, parent string) (*quota.Policy, error) {
	p := new(quota.Policy)
	if err := unmarshal(text, p); err != nil {
		return nil, invalid.Errorf("redispolicies: policy %q: %v", name, err)
	}
	p.Name = name
	p.Parent, p.ParentKey, _ = strings.Cut(parent, "\n")
	return p, p.Validate()
}

// unmarshal decodes a value. Operators may have written it by hand.
func unmarshal(text string, v any) error {
	listed, err := jsontext.Listed([]byte(text), "limits")
	if err != nil {
		return err
	}
	return json.Unmarshal(listed, v)
}

func parseOverride(field, text string) (*policies.Override, error) {
	var o policies.Override
	policy, key, ok := strings.Cut(field, "\n")
	if err := unmarshal(text, &o); err != nil || !ok {
		return nil, invalid.Errorf("redispolicies: an override of policy %q: %v", policy, err)
	}
	o.Policy, o.Key = policy, key
	return &o, o.Validate()
}
