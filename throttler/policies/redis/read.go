package redispolicies

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// key returns the name of a key of the Store.
func (s *Store) key(name string) string { return s.prefix + name }

// keys returns the keys of the scripts.
func (s *Store) keys() (keys []string) {
	for _, name := range []string{"version", "trimmed", "policies", "overrides", "marks", "log", "parents", "children"} {
		keys = append(keys, s.key(name))
	}
	return keys
}

// version is a server's version: a number, a space, and random text from its writer. It is
// empty if the server has no version.
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
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("redispolicies: %w", err)
	}
	return version(text), nil
}

// Find returns the override for a policy and key, or nil.
func (s *Store) Find(ctx context.Context, policy, key string) (*policies.Override, error) {
	text, err := s.client.HGet(ctx, s.key("overrides"), fieldOf(policy, key)).Result()
	return found(policy, key, text, err)
}

// FindPolicy returns the policy of that name, or nil. If the policy is not valid, because it
// was written by other means, the error wraps quota.ErrInvalid.
func (s *Store) FindPolicy(ctx context.Context, name string) (*quota.Policy, error) {
	pipe := s.client.Pipeline()
	text, parent := pipe.HGet(ctx, s.key("policies"), name), pipe.HGet(ctx, s.key("parents"), name)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("redispolicies: %w", err)
	}
	if text.Err() != nil {
		return nil, nil
	}
	return parsePolicy(name, text.Val(), parent.Val())
}

// findAt is Find for decisions under the version least, which this server may have lost: it
// returns an error if the server's version is older. It also returns the server's version.
func (s *Store) findAt(ctx context.Context, least version, policy, key string) (*policies.Override, version, error) {
	pipe := s.client.TxPipeline() // a change must not come between the override and the version
	override, current := pipe.HGet(ctx, s.key("overrides"), fieldOf(policy, key)), pipe.Get(ctx, s.key("version"))
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, "", fmt.Errorf("redispolicies: %w", err)
	}
	number := version(current.Val())
	if number.number() < least.number() {
		return nil, "", errAway
	}
	o, err := found(policy, key, override.Val(), override.Err())
	return o, number, err
}

// found returns the override in a server's reply.
func found(policy, key, text string, err error) (*policies.Override, error) {
	switch {
	case errors.Is(err, redis.Nil):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("redispolicies: %w", err)
	}
	return parseOverride(fieldOf(policy, key), text)
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

// readAll reads all policies, and the names of policies that have overrides.
func (s *Store) readAll(ctx context.Context) (*reading, error) {
	current, err := s.version(ctx)
	if err != nil {
		return nil, err
	}
	r := newReading(true)
	if err := s.readPolicies(ctx, r); err != nil {
		return nil, err
	}
	if err := s.scan(ctx, "marks", func(policy, _ string) error {
		r.marks[policy] = true
		return nil
	}); err != nil {
		return nil, err
	}
	r.version, err = s.changes(ctx, current, r.change) // changes during the reads
	return r, err
}

// readPolicies adds all policies and their parents to r. Some may change while it reads.
func (s *Store) readPolicies(ctx context.Context, r *reading) error {
	parents := make(map[string]string)
	if err := s.scan(ctx, "parents", func(name, parent string) error {
		parents[name] = parent
		return nil
	}); err != nil {
		return err
	}
	return s.scan(ctx, "policies", func(name, text string) error {
		r.policies[name] = stored{text, parents[name]}
		return nil
	})
}

// readSince reads the changes since a version.
func (s *Store) readSince(ctx context.Context, previous version) (r *reading, err error) {
	r = newReading(false)
	r.version, err = s.changes(ctx, previous, r.change)
	return r, err
}

// kindOf returns the kind and the field of a member of the log: "p" for a policy, "o" for an
// override.
func kindOf(member string) (kind, field string) {
	return member[:min(len(member), 1)], member[min(len(member), 1):]
}

// changes calls yield with the changes since a version, up to the version that it returns. The
// error is errUnknownVersion if the server can't tell them.
func (s *Store) changes(ctx context.Context, previous version, yield func(member, value, mark string)) (version, error) {
	number := previous.number()
	for {
		reply, err := changes.Run(ctx, s.client, s.keys(), number, MaxChange, string(previous)).Slice()
		if err != nil {
			return "", fmt.Errorf("redispolicies: %w", err)
		}
		to, ok := int64(0), len(reply) >= 2 && len(reply)%3 == 2
		if ok {
			to, ok = reply[1].(int64)
		}
		switch {
		case !ok:
			return "", invalid.Errorf("redispolicies: the server's reply has another form")
		case to < 0:
			return "", errUnknownVersion
		}
		current := version(fmt.Sprint(reply[0]))
		for i := 2; i+2 < len(reply); i += 3 {
			yield(fmt.Sprint(reply[i]), fmt.Sprint(reply[i+1]), fmt.Sprint(reply[i+2]))
		}
		if number, previous = to, current; to >= current.number() {
			return current, nil
		}
	}
}
