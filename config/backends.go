package config

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Names of the backends, in the configuration and as values of the flag.
const (
	memoryName    = "memory"
	redisName     = "redis"
	reshardedName = "redis-resharded" // another list of shards
	memcachedName = "memcached"
	sharesName    = "shares" // in this process, divided with others
)

// backend is the name of one of them.
type backend string

func (b *backend) UnmarshalText(text []byte) error {
	*b = backend(text)
	if !slices.Contains([]string{memoryName, redisName, reshardedName, memcachedName, sharesName}, string(text)) {
		return errors.New("it must be memory, redis, redis-resharded, memcached or shares")
	}
	return nil
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
	saves := c.remote() && c.Backend != sharesName
	cache := c.keys.RefusalCache
	if cache == nil {
		c.keys.RefusalCache = &refusalCache{off: !saves}
		return
	}
	unsure := len(r.problems) > 0 // a policy that seems to be missing may be the one that is wrong
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
	for _, name := range []string{memcachedName, redisName, reshardedName, sharesName} {
		if name != c.Backend && c.size(name) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// size returns how many shards, servers or members a backend has.
func (c *Config) size(name string) int {
	switch name {
	case memoryName:
		return 1
	case redisName:
		return len(c.keys.Redis.Shards)
	case reshardedName:
		return len(c.keys.Redis.Resharded)
	case memcachedName:
		return len(c.keys.Memcached.Servers)
	}
	if c.keys.Shares == nil {
		return 0
	}
	return len(c.keys.Shares.Members)
}

// remote reports whether a decision may need another process.
func (c *Config) remote() bool { return c.Backend != memoryName || c.keys.Flags.name != "" }

// backends checks that there is what serves, what it is compared with, and what the flags
// choose from, and nothing else.
func (c *Config) backends(r *reader) {
	if c.keys.Shadow == sharesName {
		r.mustBe(r.at("shadow"), "memory, redis, redis-resharded or memcached")
	}
	for _, key := range []string{"backend", "shadow", "flags", "redis", "memcached", "shares"} {
		if r.at(key).wrong {
			return // what seems to be missing may be what is wrong
		}
	}
	names := c.names()
	switch {
	case !c.isThere(r, c.Backend, r.at("backend")), c.keys.Shadow != "" && !c.isThere(r, string(c.keys.Shadow), r.at("shadow")):
	case c.keys.Flags.name != "" && slices.Contains(names, sharesName):
		r.problem(r.at("flags"), "flags is set, and so is shares, which counts cannot be moved to or from; leave one of them out")
	case c.keys.Flags.name != "" && len(names) == 1:
		r.problem(r.at("flags"), "flags is set, but there is no backend other than %s to move clients to; set redis or memcached", c.Backend)
	case c.keys.Flags.name == "":
		for _, name := range names[1:] {
			if name != string(c.keys.Shadow) {
				section, _, _ := strings.Cut(name, "-")
				r.problem(r.at(section), "%[1]s is set, but the backend is %[2]s; write backend: %[3]s, or flags: FILE to move clients between them, or leave %[1]s out", section, c.Backend, name)
			}
		}
	}
}

// isThere reports whether the backend of that name has a server. If not, it adds a
// problem, to the list that should have one, or where the name is.
func (c *Config) isThere(r *reader, name string, named *place) bool {
	if c.size(name) > 0 {
		return true
	}
	need := map[string]struct{ list, least string }{
		redisName:     {"redis.shards", "one shard, such as {name: a, primary: 127.0.0.1:6379}"},
		reshardedName: {"redis.resharded", "one shard, such as {name: a, primary: 127.0.0.1:6379}"},
		memcachedName: {"memcached.servers", "one server, such as 127.0.0.1:11211"},
		sharesName:    {"shares", "self, members and key_file"},
	}[name]
	if list := r.find(need.list); list.has() {
		named = list
	}
	r.problem(named, "%s is empty; the %s backend needs at least %s", need.list, name, need.least)
	return false
}

// Where says where counts live, for a person.
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
