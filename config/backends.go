package config

import (
	"cmp"
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
	name           string
	section, least string          // the key at the top of the file that has its servers, or "", and the least that it needs
	servers        func(*keys) int // how many shards, servers or members the file gives it

	// open opens the store. It is nil for shares, which aren't a store.
	open func(s *Stack, prefix string) (handoff.Store, error)
}

const leastOfRedis = "one shard, such as {name: a, primary: 127.0.0.1:6379}"

var kinds = []kind{
	{memoryName, "", "", func(*keys) int { return 1 }, (*Stack).openMemory},
	{"redis", "redis.shards", leastOfRedis, func(k *keys) int { return len(k.Redis.Shards) }, func(s *Stack, prefix string) (handoff.Store, error) {
		return s.openRedis("redis", s.Config.keys.Redis.Shards, prefix)
	}},
	{reshardedName, "redis.resharded", leastOfRedis, func(k *keys) int { return len(k.Redis.Resharded) }, func(s *Stack, prefix string) (handoff.Store, error) {
		return s.openRedis(reshardedName, s.Config.keys.Redis.Resharded, prefix)
	}},
	{"memcached", "memcached.servers", "one server, such as 127.0.0.1:11211", func(k *keys) int { return len(k.Memcached.Servers) }, (*Stack).openMemcached},
	{sharesName, "shares", "self, members and key_file", func(k *keys) int {
		if k.Shares == nil {
			return 0
		}
		return len(k.Shares.Members)
	}, nil},
}

// kindOf returns the kind of that name, which must exist.
func kindOf(name string) kind {
	return kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })]
}

// backend is the name of a kind.
type backend string

func (b *backend) UnmarshalText(text []byte) error {
	if *b = backend(text); !slices.ContainsFunc(kinds, func(k kind) bool { return k.name == string(text) }) {
		return errors.New("it must be memory, redis, redis-resharded, memcached or shares")
	}
	return nil
}

// store is the name of a kind that has a store.
type store string

func (s *store) UnmarshalText(text []byte) error {
	*s = store(text)
	if err := new(backend).UnmarshalText(text); err != nil || *s == sharesName {
		return errors.New("it must be memory, redis, redis-resharded or memcached")
	}
	return nil
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
	Name    string  // the address if left out
	Address Address `must:""`
}

func (s *memcachedServer) short(_ *document, node *yaml.Node) any {
	if node.Kind == yaml.ScalarNode {
		return &s.Address
	}
	return nil
}

func (s *memcachedServer) check(*document, path) { s.Name = cmp.Or(s.Name, string(s.Address)) }

// refusalCache is true, false, or the policies that opt out.
type refusalCache struct {
	Except   []string
	disabled bool
}

func (c *refusalCache) short(_ *document, node *yaml.Node) any {
	if node.Kind != yaml.MappingNode {
		return (*refusalSwitch)(c)
	}
	return nil
}

// refusalSwitch is the short form of a refusalCache.
type refusalSwitch refusalCache

func (c *refusalSwitch) UnmarshalText(text []byte) error {
	if c.disabled = string(text) == "false"; !c.disabled && string(text) != "true" {
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
	for _, key := range []string{"redis", "memcached", "shares", "backend", "shadow", "flags"} {
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
		d.problem(path{"flags"}, "flags is set, but there is no backend other than %s to move clients to; set redis or memcached", c.Backend)
	case !c.flagged():
		for _, name := range names[1:] {
			if name != string(c.keys.Shadow) {
				section := pathOf(kindOf(name).section)[0]
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
	if list := pathOf(k.section); d.contains(list) {
		named = list
	}
	d.problem(named, "%s is empty; the %s backend needs at least %s", k.section, name, k.least)
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
