package config

import (
	"crypto/tls"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler/policies"
)

// Reread reads the file again, and makes the changes that are possible while it is in use: to
// the levels of policies that have one, and to the members of shares. It logs these changes,
// and the keys with changes that it ignores. It returns an error if the file is wrong, or its
// members can't be put in force; then nothing has changed.
func (s *Stack) Reread() error {
	c := s.Config
	o := c.again()
	next, err := Read(c.File, o)
	if err != nil {
		return err
	}
	if ignored := c.changed(next); len(ignored) > 0 {
		o.Log.Warn("these keys have changed, and are not read again: start the program again", "ignored", strings.Join(ignored, ", "))
	}
	if s.Shares != nil && next.keys.Shares != nil {
		if err := s.Shares.SetList(next.keys.Shares.list()); err != nil {
			return err
		}
		o.Log.Info("the members were read again, and divide the quotas")
	}
	changed := s.Shares != nil
	for _, name := range sorted(next.Levels) {
		changed = s.rereadLevel(name, next.Levels[name]) || changed
	}
	if !changed {
		o.Log.Info("the configuration was read again, and nothing has changed that can while it is in use")
	}
	return nil
}

// again returns the options of c to read the file again without changing the program's own
// keys.
func (c *Config) again() *Options {
	o := c.options
	o.Program = copyOf(c.before)
	return &o
}

// copyOf returns a pointer to a copy of the struct that program points to. It may be nil.
func copyOf(program any) any {
	if program == nil {
		return nil
	}
	copied := reflect.New(reflect.TypeOf(program).Elem())
	copied.Elem().Set(reflect.ValueOf(program).Elem())
	return copied.Interface()
}

// ParsePolicies returns the policies of a later text of c's file. It is a Parse for
// policies.FileOptions, so that a table of policies can watch the file. The error has a line
// for each mistake anywhere in the text.
func (c *Config) ParsePolicies(text []byte) (policies.Content, error) {
	next, err := Parse(c.File, text, c.again())
	if err != nil {
		return policies.Content{}, err
	}
	return policies.Content{Policies: slices.Collect(maps.Values(next.Policies))}, nil
}

// changed returns the keys with other values in o, except for changes that Reread makes.
func (c *Config) changed(o *Config) (names []string) {
	next := o.keys
	if next.Shares != nil && c.keys.Shares != nil {
		list := *next.Shares
		list.Members, list.Epoch = c.keys.Shares.Members, c.keys.Shares.Epoch
		next.Shares = &list
	}
	next.Policies = make(map[string]policy)
	for name, p := range o.keys.Policies {
		p.Level, p.Was = c.keys.Policies[name].Level, c.keys.Policies[name].Was
		next.Policies[name] = p
	}
	old, current := reflect.ValueOf(c.keys.compared()), reflect.ValueOf(next.compared())
	for i, key := range keysOf(old.Type()) {
		if !reflect.DeepEqual(old.Field(i).Interface(), current.Field(i).Interface()) {
			names = append(names, key)
		}
	}
	return names
}

// compared returns k as changed compares it: without the contents of files that are read again
// while they are in use, and without what is made of other keys, because two pools of the same
// certificates are not equal.
func (k keys) compared() keys {
	k.Flags.content = nil
	k.Redis.Shards, k.Redis.Resharded = slices.Clone(k.Redis.Shards), slices.Clone(k.Redis.Resharded)
	k.Roots = slices.Clone(k.Roots)
	if k.PoliciesAt != nil {
		server := *k.PoliciesAt
		k.PoliciesAt = &server
	}
	for _, s := range k.servers() {
		s.PasswordFile.content, s.options = nil, redis.UniversalOptions{} // a Sentinel's password is read at the start alone
		if s.TLS.config != nil {
			s.TLS.config = new(tls.Config)
		}
	}
	return k
}

// rereadLevel puts a policy at level m, and reports whether its level has changed.
func (s *Stack) rereadLevel(name string, m consistency.Level) bool {
	log := s.Config.options.Log.With("policy", name)
	_, exists := s.Config.Levels[name]
	switch {
	case !exists:
		log.Warn("the policy had no consistency at the start; it needs one for a change: start the program again")
		return false
	case m == consistency.Synced && s.Synced == nil:
		log.Warn("nothing could be synced at the start, without roots or a policy with a consistency level that can be; start the program again")
		return false
	}
	old := s.Levels.State(name).Level
	if m == old {
		return false
	}
	if err := s.setLevel(name, m); err != nil {
		log.Warn("the consistency level was not changed", "error", err)
		return false
	}
	attrs := []any{"from", old, "to", m}
	if until := s.Levels.State(name).BothUntil; !until.IsZero() {
		attrs = append(attrs, "both_until", until)
	}
	log.Info("the consistency level has changed", attrs...)
	return true
}
