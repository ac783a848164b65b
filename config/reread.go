package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

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

// changed returns the keys that have other values in next, except for changes that Reread makes.
func (c *Config) changed(next *Config) (names []string) {
	before, after := c.values(), next.values()
	for _, key := range keysOf(reflect.TypeFor[keys]()) {
		if !reflect.DeepEqual(before[key], after[key]) {
			names = append(names, key)
		}
	}
	return names
}

// values returns the values in the file by their keys, without those that Reread puts in force.
func (c *Config) values() map[string]any {
	var values map[string]any
	_ = yaml.Load(c.text, &values) // it was read before
	if shares, ok := values["shares"].(map[string]any); ok {
		delete(shares, "members")
		delete(shares, "epoch")
	}
	policies, _ := values["policies"].(map[string]any)
	for _, p := range policies {
		if p, ok := p.(map[string]any); ok {
			delete(p, "consistency")
			delete(p, "was")
		}
	}
	return values
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
