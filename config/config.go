// Package config reads policies and backends from a YAML file, and opens what the file
// describes: a [guard.Stack] around the stores, with a throttler in front and one Close.
//
//	backend: redis
//	redis: {shards: [{name: a, primary: 127.0.0.1:6379}]}
//	policies:
//	  core: 60 per 1h
//	  search: [30 per 1m, 5 per 1s token-bucket burst 10]
//
// docs/reference/configuration.md has all keys. Every mistake in a file is reported at once, each
// with its line, the field, its value and a valid one:
//
//	weir.yaml:4: policies.cor is no policy of the program; did you mean core? It uses core, search
//
// A program may have its own keys in the file: see [Options].
package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// Options describes the program around a configuration. Nil and the zero value are for a
// program that uses the policies of the file.
type Options struct {
	// Policies are the policies that the program uses. The file may replace each by its
	// name, and must if it has no Limits here. A policy of the file with nearly one of
	// these names is a mistake. If nil, the program uses the policies of the file.
	Policies []*quota.Policy

	// Program points to a struct for the program's own keys, at the top of the file. Fields
	// that the file leaves out keep their values. The YAML package decodes it: a field's key is
	// in its tag, as in `yaml:"listen_on"`, or is its name in lower case. If an UnmarshalText or
	// UnmarshalYAML returns an error that begins with "it must be", the problem also names the
	// field and its value.
	//
	// If Program has a method Check(mustBe func(key, right string)), Read calls it at the
	// end: mustBe adds a problem with the value of key; right describes a valid one. A method
	// CheckTogether is the same, for values that depend on others: Read calls it only if it has
	// found no problem yet.
	Program any

	// Levels lets policies that are not in the file get a consistency level, by Stack.Levels, if
	// Config.Supports allows it.
	Levels bool

	// Observer receives the events of everything that Open makes. May be nil.
	Observer observe.Observer

	// Table is the throttler's table: its policies are in force in place of the file's,
	// and may change. May be nil.
	Table *policies.Table

	// CountsHavePolicies makes the table watch the one shard of Redis that has the counts,
	// unless the file has policies_at.
	CountsHavePolicies bool

	// Flags has the flag that moves clients between backends, in place of a file that the
	// key flags names: see package rollout. Close shuts it down. May be nil.
	Flags openfeature.FeatureProvider

	// ReceiptKey is the throttler's ReceiptKey. Nil is no key, and a short one an error.
	ReceiptKey []byte

	// Log receives lines about servers that do not answer. If nil, slog.Default().
	Log *slog.Logger

	// Getenv returns the environment variables that the file names, such as password_env.
	// If nil, os.Getenv.
	Getenv func(name string) string
}

// Config is the content of a file. Treat it as immutable.
type Config struct {
	// File is the name of the file.
	File string

	// Policies are the policies of the file, and the policies of the program that the file
	// leaves out, by their names. They are valid.
	Policies map[string]*quota.Policy

	// DryRuns are policies to try but not enforce, by the names of the policies that they
	// stand in for: see middleware.Options.DryRun. Their own names end in ".dry-run".
	DryRuns map[string]*quota.Policy

	// Levels are the consistency levels that the file gives policies, by their names.
	Levels map[string]consistency.Level

	// Backend is the name of the backend that serves, such as "redis": the key backend of
	// the file, or "memory".
	Backend string

	// Deadline is the deadline of a decision: see middleware.Options.Deadline. It is at
	// least 1 ms; if the file does not set it, 50 ms.
	Deadline time.Duration

	options Options
	text    []byte // of the file
	before  any    // a copy of options.Program before the file was decoded
	keys    keys
	sync    time.Duration // of all synced policies; 0 for the default
}

// keys are the keys of a file.
type keys struct {
	Backend      backend
	Redis        redisKeys
	Memcached    memcachedKeys
	Shares       *sharesKeys
	Seed         integer // of the choice of a shard or server
	Prefix       prefix  // of all stored keys
	Flags        file
	Shadow       store
	RefusalCache *refusalCache `yaml:"refusal_cache"`
	Roots        []root
	PoliciesAt   *policiesAt `yaml:"policies_at"`
	Policies     map[string]policy
	DryRuns      map[string]dryRun `yaml:"dry_runs"`
	Deadline     duration
	OnFailure    *fallback.Choice `yaml:"on_failure"`
	OpenFor      duration         `yaml:"open_for"`
	Processes    integer
}

// Read reads a file. It makes no connections, and may be called again while a Stack of the
// file is in use, such as for policies that have changed. The error has a line for each
// mistake, and wraps quota.ErrInvalid unless the file can't be read.
func Read(file string, options *Options) (*Config, error) {
	text, err := readFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return Parse(file, text, options)
}

// Parse is like Read for a file that the program has read. File names in text are relative to
// the directory of file.
func Parse(file string, text []byte, options *Options) (*Config, error) {
	c := &Config{
		File: file, Policies: make(map[string]*quota.Policy), DryRuns: make(map[string]*quota.Policy), Levels: make(map[string]consistency.Level),
		keys: keys{Backend: memoryName, Deadline: duration(50 * time.Millisecond)}, options: *cmp.Or(options, new(Options)), text: text,
	}
	c.options.Log = cmp.Or(c.options.Log, slog.Default())
	c.before = copyOf(c.options.Program)
	d := newDocument(file)
	if c.options.Getenv != nil {
		d.getenv = c.options.Getenv
	}
	// If the file was cut off, the defaults would silently be the wrong limits.
	if d.parse(text, "the file is empty; any key may be left out, but not all of them") && d.decode(c.together()) {
		c.complete(d)
		d.checkProgram(c.options.Program)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// together returns a pointer to a struct with the program's keys and the configuration's.
func (c *Config) together() any {
	const inline = `yaml:",inline"`
	fields := []reflect.StructField{{Name: "Keys", Type: reflect.TypeFor[*keys](), Tag: inline}}
	values := []reflect.Value{reflect.ValueOf(&c.keys)}
	if c.options.Program != nil {
		program := reflect.ValueOf(c.options.Program)
		fields, values = slices.Insert(fields, 0, reflect.StructField{Name: "Program", Type: program.Type(), Tag: inline}), slices.Insert(values, 0, program)
	}
	together := reflect.New(reflect.StructOf(fields))
	for i, v := range values {
		together.Elem().Field(i).Set(v)
	}
	return together.Interface()
}

// complete checks the keys together, and sets the fields of c.
func (c *Config) complete(d *document) {
	c.Backend, c.Deadline = string(c.keys.Backend), time.Duration(c.keys.Deadline)
	c.servers(d)
	c.shares(d)
	d.read(&c.keys.Flags, path{"flags"}, "a file of percentages, such as redis: 5")
	c.backends(d)
	c.failures(d)
	c.policies(d)
	c.parents(d)
	c.refusals(d)
	c.divisible(d)
	c.levels(d)
	if c.keys.PoliciesAt != nil && c.options.Table == nil {
		d.problem(path{"policies_at"}, "policies_at is set, but the program has no table of policies; remove it")
	}
	if c.keys.Seed != 0 && !c.Remote() && c.keys.Shadow == "" {
		d.problem(path{"seed"}, "seed is set, but counts live in memory, which has no shards; leave it out, or choose another backend")
	}
	if c.keys.Prefix != "" && !c.Remote() && c.keys.Shadow == "" && len(c.keys.Roots) == 0 && c.keys.PoliciesAt == nil {
		d.problem(path{"prefix"}, "prefix is set, but counts live in memory, which no other process shares; leave it out, or choose another backend")
	}
	d.checkRange(path{"deadline"}, c.Deadline, time.Millisecond, 30*time.Second)
}

// DryRun returns the policy that replaces the policy of that name in a dry run of a
// decision: its dry run in the file, or a policy with the same limits and separate counts.
func (c *Config) DryRun(name string) *quota.Policy {
	if p := c.DryRuns[name]; p != nil {
		return p
	}
	return &quota.Policy{Name: name + dryRunSuffix, Limits: c.Policies[name].Limits}
}

// Warnings returns a text about each setting that is allowed, but probably a mistake.
func (c *Config) Warnings() (texts []string) {
	var used, unused []string
	for _, p := range c.options.Policies {
		used = append(used, p.Name)
	}
	for _, name := range sorted(c.Policies) {
		texts = append(texts, c.Policies[name].Warnings()...)
		if len(used) > 0 && !slices.Contains(used, name) {
			unused = append(unused, fmt.Sprintf("%q", name))
		}
	}
	if further := len(unused) - 3; further > 0 {
		unused = append(unused[:3], fmt.Sprintf("and %d more", further))
	}
	if len(unused) > 0 {
		texts = append(texts, fmt.Sprintf("nothing uses the policies %s; the program uses %s", strings.Join(unused, ", "), strings.Join(used, ", ")))
	}
	for _, name := range sorted(c.DryRuns) {
		texts = append(texts, c.DryRuns[name].Warnings()...)
	}
	texts = append(texts, c.serverWarnings()...)
	_, idle := c.fallback()
	texts = append(texts, idle...)
	if s := c.keys.Shares; s != nil && !slices.Contains(s.Members, s.Self) {
		texts = append(texts, fmt.Sprintf("shares.self is %s, which is not one of shares.members: until a list of members has it, this process holds no shares", s.Self))
	}
	return texts
}
