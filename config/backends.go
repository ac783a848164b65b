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
func sections(wanted func(kind) bool) (all []string) {
	for _, k := range kinds {
		if s := k.section(); s != "" && wanted(k) && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
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
	Shards    shards `is:"a list of shards, such as [{name: a, primary: 127.0.0.1:6379}]"`
	Resharded shards `is:"a list of shards, such as [{name: a, primary: 127.0.0.1:6379}]"`
}

type memcachedKeys struct {
	Servers memcachedServers `is:"a list of servers, such as [127.0.0.1:11211]"`
}

// memcachedServer is a server of Memcached. The short form is its address.
type memcachedServer struct {
	Name    string  `is:"a name, such as a: keys find their server by it"` // the address if left out
	Address Address `yaml:",required"`
}

func (*memcachedServer) long(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.ScalarNode {
		return under("address", node)
	}
	return node
}

type memcachedServers []memcachedServer

func (all memcachedServers) check(r *reader, p *place) {
	for i := range all {
		all[i].Name = cmp.Or(all[i].Name, string(all[i].Address))
	}
	r.distinct(p, len(all), func(i int) string { return all[i].Name }, "names must differ, because keys find their server by it")
}

// refusalCache is true, false, or the policies that opt out.
type refusalCache struct {
	Except []string `is:"a list of policies, such as [search]"`
	off    bool
}

func (c *refusalCache) UnmarshalText(text []byte) error {
	if c.off = string(text) == "false"; !c.off && string(text) != "true" {
		return errors.New("it must be true, false or a mapping with except")
	}
	return nil
}

// refusals sets the refusal cache, which is on by default wherever it saves a round trip.
func (c *Config) refusals(r *reader) {
	saves := c.Remote() && c.Backend != sharesName
	cache := c.keys.RefusalCache
	if cache == nil {
		c.keys.RefusalCache = &refusalCache{off: !saves}
		return
	}
	unsure := len(r.problems) > 0 // a missing policy may be one with a problem
	for i, name := range cache.Except {
		if c.Policies[name] == nil && !unsure {
			r.mustBe(r.at("refusal_cache", "except").item(i), "the name of a policy, such as core")
		}
	}
	if !saves && !cache.off && !r.at("refusal_cache").wrong {
		r.problem(r.at("refusal_cache"), "refusal_cache is set, but counts live in memory, where it saves no round trip; leave it out, or choose another backend")
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
func (c *Config) Remote() bool { return c.Backend != memoryName || c.keys.Flags.name != "" }

// backends checks that the file has servers for the backend, the shadow, and the backends
// that the flags choose from, and for no others.
func (c *Config) backends(r *reader) {
	for _, key := range append(sections(func(kind) bool { return true }), "backend", "shadow", "flags") {
		if r.at(key).wrong {
			return // a key with a problem may seem to be missing
		}
	}
	names := c.names()
	switch {
	case !c.isThere(r, c.Backend, r.at("backend")), c.keys.Shadow != "" && !c.isThere(r, string(c.keys.Shadow), r.at("shadow")):
	case c.keys.Flags.name != "" && slices.Contains(names, sharesName):
		r.problem(r.at("flags"), "flags is set, and so is shares, which counts cannot be moved to or from; leave one of them out")
	case c.keys.Flags.name != "" && len(names) == 1:
		r.problem(r.at("flags"), "flags is set, but there is no backend other than %s to move clients to; set %s", c.Backend, either(sections(kind.isStore)))
	case c.keys.Flags.name == "":
		for _, name := range names[1:] {
			if name != string(c.keys.Shadow) {
				section := kindOf(name).section()
				r.problem(r.at(section), "%[1]s is set, but the backend is %[2]s; write backend: %[3]s, or flags: FILE to move clients between them, or leave %[1]s out", section, c.Backend, name)
			}
		}
	}
}

// isThere reports whether the backend of that name has a server. If not, it adds a problem
// at the list of servers, or at the name if there is no list.
func (c *Config) isThere(r *reader, name string, named *place) bool {
	k := kindOf(name)
	if k.servers(&c.keys) > 0 {
		return true
	}
	if list := r.find(k.list); list.has() {
		named = list
	}
	r.problem(named, "%s is empty; the %s backend needs at least %s", k.list, name, k.least)
	return false
}

// Where describes where counts live, for a person.
func (c *Config) Where() string {
	where := c.Backend
	if flags := c.keys.Flags.name; flags != "" {
		where += fmt.Sprintf(", unless %s says %s", filepath.Base(flags), strings.Join(c.names()[1:], " or "))
	}
	if c.keys.Shadow != "" {
		where += fmt.Sprintf("; %s sees the same", c.keys.Shadow)
	}
	return where
}
