package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/backend/handoff"
)

// Names of backends, in the configuration and as values of the flag.
const (
	memoryName    = "memory"
	reshardedName = "redis-resharded" // another list of shards
	sharesName    = "shares"          // in this process, divided with others
)

// kind is a backend that a file can name.
type kind struct {
	name        string
	servers     func(*keys) int // how many shards, servers or members the file gives it
	list, least string          // their key, and the least that it must list

	// open opens the store. It is nil for shares, which aren't a store.
	open func(s *Stack, prefix string) (handoff.Store, error)
}

var kinds = []kind{
	{memoryName, func(*keys) int { return 1 }, "", "", (*Stack).openMemory},
	{"redis", func(k *keys) int { return len(k.Redis.Shards) }, "redis.shards", "one shard, such as {name: a, primary: 127.0.0.1:6379}", func(s *Stack, prefix string) (handoff.Store, error) {
		return s.openRedis("redis", s.Config.keys.Redis.Shards, prefix)
	}},
	{reshardedName, func(k *keys) int { return len(k.Redis.Resharded) }, "redis.resharded", "one shard, such as {name: a, primary: 127.0.0.1:6379}", func(s *Stack, prefix string) (handoff.Store, error) {
		return s.openRedis(reshardedName, s.Config.keys.Redis.Resharded, prefix)
	}},
	{"memcached", func(k *keys) int { return len(k.Memcached.Servers) }, "memcached.servers", "one server, such as 127.0.0.1:11211", (*Stack).openMemcached},
	{sharesName, func(k *keys) int {
		if k.Shares == nil {
			return 0
		}
		return len(k.Shares.Members)
	}, "shares", "self, members and key_file", nil},
}

// kindOf returns the kind of that name, which must exist.
func kindOf(name string) kind {
	return kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })]
}

func (k kind) isStore() bool { return k.open != nil }

// section returns the key at the top of a file that has k's servers, or "".
func (k kind) section() string {
	section, _, _ := strings.Cut(k.list, ".")
	return section
}

// sections returns the sections of the wanted kinds.
func sections(wanted func(kind) bool) (names []string) {
	for _, k := range kinds {
		if s := k.section(); s != "" && wanted(k) && !slices.Contains(names, s) {
			names = append(names, s)
		}
	}
	return names
}

// either lists two names or more, for a person.
func either(names []string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// checkKind returns an error unless name is the name of a wanted kind.
func checkKind(name string, wanted func(kind) bool) error {
	var names []string
	for _, k := range kinds {
		if wanted(k) {
			names = append(names, k.name)
		}
	}
	if !slices.Contains(names, name) {
		return errors.New("it must be " + either(names))
	}
	return nil
}

// backend is the name of a kind.
type backend string

func (b *backend) UnmarshalText(text []byte) error {
	*b = backend(text)
	return checkKind(string(text), func(kind) bool { return true })
}

// store is the name of a kind that has a store.
type store string

func (s *store) UnmarshalText(text []byte) error {
	*s = store(text)
	return checkKind(string(text), kind.isStore)
}

type redisKeys struct {
	Shards    []shard
	Resharded []shard
}

type memcachedKeys struct {
	Servers []memcachedServer
}

// memcachedServer is a server of Memcached. The short form is its address.
type memcachedServer struct {
	Name    string // the address if left out
	Address Address
}

func (s *memcachedServer) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return load(node, &s.Address)
	}
	type long memcachedServer
	return load(node, (*long)(s))
}

// refusalCache is true, false, or the policies that opt out.
type refusalCache struct {
	Except   []string
	disabled bool
}

func (c *refusalCache) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.MappingNode {
		type long refusalCache
		return load(node, (*long)(c))
	}
	if c.disabled = node.Value == "false"; !c.disabled && node.Value != "true" {
		return errors.New("it must be true, false or a mapping with except")
	}
	return nil
}

// refusals sets the refusal cache, which is on by default wherever it saves a round trip.
func (c *Config) refusals(d *document) {
	saves := c.Remote() && c.Backend != sharesName
	cache := c.keys.RefusalCache
	if cache == nil {
		c.keys.RefusalCache = &refusalCache{disabled: !saves}
		return
	}
	unsure := len(d.problems) > 0 // a missing policy may be one with a problem
	for i, name := range cache.Except {
		if c.Policies[name] == nil && !unsure {
			d.mustBe(path{"refusal_cache", "except"}.item(i), "the name of a policy, such as core")
		}
	}
	if !saves && !cache.disabled {
		d.problem(path{"refusal_cache"}, "refusal_cache is set, but counts live in memory, where it saves no round trip; leave it out, or choose another backend")
	}
}

// names returns the names of the backends that are configured, the serving one first.
func (c *Config) names() []string {
	names := []string{c.Backend}
	for _, k := range kinds {
		if k.name != memoryName && k.name != c.Backend && k.servers(&c.keys) > 0 {
			names = append(names, k.name)
		}
	}
	return names
}

// Remote reports whether a decision may need another process.
func (c *Config) Remote() bool { return c.Backend != memoryName || c.flagged() }

// flagged reports whether flags choose a backend for each client.
func (c *Config) flagged() bool {
	return c.keys.Flags.name != "" || c.options.Flags != nil && len(c.names()) > 1
}

// backends checks that the file has servers for the backend, the shadow, and the backends
// that the flags choose from, and for no others.
func (c *Config) backends(d *document) {
	for _, key := range append(sections(func(kind) bool { return true }), "backend", "shadow", "flags") {
		if d.wrong[key] {
			return // a key with a problem may seem to be missing
		}
	}
	names := c.names()
	switch {
	case !c.hasServers(d, c.Backend, path{"backend"}), c.keys.Shadow != "" && !c.hasServers(d, string(c.keys.Shadow), path{"shadow"}):
	case string(c.keys.Shadow) == c.Backend && !c.flagged():
		d.problem(path{"shadow"}, "shadow is %s, and so is the backend: it would decide each request twice, and compare nothing; write another store, or leave shadow out", c.keys.Shadow)
	case c.keys.Flags.name != "" && c.options.Flags != nil:
		d.problem(path{"flags"}, "flags is set, and the program has flags of its own; leave it out")
	case c.flagged() && slices.Contains(names, sharesName):
		d.problem(path{"flags"}, "flags is set, and so is shares, which counts cannot be moved to or from; leave one of them out")
	case c.keys.Flags.name != "" && len(names) == 1:
		d.problem(path{"flags"}, "flags is set, but there is no backend other than %s to move clients to; set %s", c.Backend, either(sections(kind.isStore)))
	case !c.flagged():
		for _, name := range names[1:] {
			if name != string(c.keys.Shadow) {
				section := kindOf(name).section()
				d.problem(path{section}, "%[1]s is set, but the backend is %[2]s; write backend: %[3]s, or flags: FILE to move clients between them, or leave %[1]s out", section, c.Backend, name)
			}
		}
	}
}

// hasServers reports whether the backend of that name has a server. If not, it adds a problem
// at the list of servers, or at the name if there is no list.
func (c *Config) hasServers(d *document, name string, named path) bool {
	k := kindOf(name)
	if k.servers(&c.keys) > 0 {
		return true
	}
	if list := pathOf(k.list); d.contains(list) {
		named = list
	}
	d.problem(named, "%s is empty; the %s backend needs at least %s", k.list, name, k.least)
	return false
}

// Places describes where counts live, for a person.
func (c *Config) Places() string {
	text := c.Backend
	if c.flagged() {
		flags := "the program's flag"
		if file := c.keys.Flags.name; file != "" {
			flags = filepath.Base(file)
		}
		text += fmt.Sprintf(", unless %s says %s", flags, strings.Join(c.names()[1:], " or "))
	}
	if c.keys.Shadow != "" {
		text += fmt.Sprintf("; %s sees the same", c.keys.Shadow)
	}
	return text
}
