package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Names of the backends, in the configuration and as values of the flag.
const (
	memoryName    = "memory"
	redisName     = "redis"
	reshardedName = "redis-resharded" // another list of shards
	memcachedName = "memcached"
)

// backendsConfig is where counts live.
type backendsConfig struct {
	serving   string // its name, or, with flags, that of the flag's default
	shards    []shardConfig
	resharded []shardConfig
	servers   []serverConfig
	flags     string // file
	shadow    string // name
}

type shardConfig struct {
	name     string
	primary  string   // host:port
	replicas []string // host:port
}

type serverConfig struct{ name, address string }

// names returns the names of the backends that are configured, the serving one
// first.
func (c *backendsConfig) names() []string {
	names := []string{c.serving}
	for name, configured := range map[string]bool{
		redisName: len(c.shards) > 0, reshardedName: len(c.resharded) > 0, memcachedName: len(c.servers) > 0,
	} {
		if configured && name != c.serving {
			names = append(names, name)
		}
	}
	slices.Sort(names[1:])
	return names
}

// describe says where counts live, for a person.
func (c *backendsConfig) describe() string {
	where := c.describeOne(c.serving)
	if c.flags != "" {
		where += fmt.Sprintf(", unless %s says %s", filepath.Base(c.flags), strings.Join(c.names()[1:], " or "))
	}
	if c.shadow != "" {
		where += fmt.Sprintf("; %s sees the same", c.shadow)
	}
	return where
}

func (c *backendsConfig) describeOne(name string) string {
	count := func(n int, what string) string {
		if n == 1 {
			return "1 " + what
		}
		return fmt.Sprintf("%d %ss", n, what)
	}
	switch name {
	case redisName:
		return "Redis, on " + count(len(c.shards), "shard")
	case reshardedName:
		return "Redis, on " + count(len(c.resharded), "shard")
	case memcachedName:
		return "Memcached, on " + count(len(c.servers), "server")
	}
	return "memory"
}

type redisFile struct {
	Shards    []shardFile `yaml:"shards"`
	Resharded []shardFile `yaml:"resharded"`
}

type shardFile struct {
	Name     string        `yaml:"name"`
	Primary  string        `yaml:"primary"`
	Replicas []addressFile `yaml:"replicas"`
}

type memcachedFile struct {
	Servers []serverFile `yaml:"servers"`
}

// serverFile is an address, or a name and an address.
type serverFile struct {
	Name    string `yaml:"name"`
	Address string `yaml:"address"`
}

// UnmarshalYAML takes an address alone for a server of that name.
func (s *serverFile) UnmarshalYAML(decode func(any) error) error {
	type plain serverFile
	var keys map[string]string
	isMap := decode(&keys) == nil
	_, named := keys["name"]
	_, addressed := keys["address"]
	if isMap && (named || addressed || len(keys) != 1) {
		return decode((*plain)(s))
	}
	var address addressFile
	if err := address.UnmarshalYAML(decode); err != nil {
		return err
	}
	s.Name, s.Address = string(address), string(address)
	return nil
}

type addressFile string

// UnmarshalYAML takes {host: port} for host:port: that is how go-yaml 1.19
// reads an address in a list in a flow mapping, {replicas: [127.0.0.1:7002]}.
func (a *addressFile) UnmarshalYAML(decode func(any) error) error {
	var pair map[string]string
	if decode(&pair) == nil && len(pair) == 1 {
		for host, port := range pair {
			*a = addressFile(host + ":" + port)
		}
		return nil
	}
	return decode((*string)(a))
}

func (c *backendsConfig) read(r *reader, file *configFile) {
	if file.Redis != nil {
		c.shards = r.shards(file.Redis.Shards, "shards")
		c.resharded = r.shards(file.Redis.Resharded, "resharded")
	}
	if file.Memcached != nil {
		c.servers = r.servers(file.Memcached.Servers)
	}
	if file.Backend != "" {
		c.serving = file.Backend
	}
	if !c.checkName(r, file, c.serving, "backend") {
		return
	}
	if file.Shadow != "" && c.checkName(r, file, file.Shadow, "shadow") {
		c.shadow = file.Shadow
	}
	if c.flags = file.Flags; c.flags != "" && !filepath.IsAbs(c.flags) {
		c.flags = filepath.Join(filepath.Dir(r.name), c.flags)
	}
	if c.flags == "" {
		for _, name := range c.names()[1:] {
			if name != c.shadow {
				section, _, _ := strings.Cut(name, "-")
				r.problem(fmt.Sprintf("%s is set, but the backend is %s; write backend: %s, or flags: FILE to move clients between them, or leave %s out", section, c.serving, name, section), section)
			}
		}
	} else if len(c.names()) == 1 {
		r.problem(fmt.Sprintf("flags is set, but there is no backend beside %s to move clients to; set redis or memcached", c.serving), "flags")
	}
}

// checkName notes what is wrong with the name of a backend that stands at a
// key, and reports whether it is right.
func (c *backendsConfig) checkName(r *reader, file *configFile, name, at string) bool {
	switch name {
	case memoryName:
	case redisName:
		if file.Redis == nil || len(file.Redis.Shards) == 0 {
			r.problem("redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}", "redis", "shards")
			return false
		}
	case reshardedName:
		if file.Redis == nil || len(file.Redis.Resharded) == 0 {
			r.problem("redis.resharded is empty; the redis-resharded backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}", "redis", "resharded")
			return false
		}
	case memcachedName:
		if file.Memcached == nil || len(file.Memcached.Servers) == 0 {
			r.problem("memcached.servers is empty; the memcached backend needs at least one server, such as 127.0.0.1:11211", "memcached", "servers")
			return false
		}
	default:
		r.wrong("memory, redis, redis-resharded or memcached", name, at)
		return false
	}
	return true
}

func (r *reader) shards(files []shardFile, list string) []shardConfig {
	var shards []shardConfig
	seen := map[string]int{}
	for i, s := range files {
		at := func(more ...any) []any { return append([]any{"redis", list, i}, more...) }
		switch first, again := seen[s.Name]; {
		case s.Name == "":
			r.problem(fmt.Sprintf("redis.%s[%d].name is missing; keys find their shard by its name", list, i), at()...)
		case again:
			r.wrong(fmt.Sprintf("another than that of redis.%s[%d]: keys find their shard by its name", list, first), s.Name, at("name")...)
		default:
			seen[s.Name] = i
		}
		shard := shardConfig{name: s.Name, primary: r.address(s.Primary, at("primary")...)}
		for j, replica := range s.Replicas {
			shard.replicas = append(shard.replicas, r.address(string(replica), at("replicas", j)...))
		}
		shards = append(shards, shard)
	}
	return shards
}

func (r *reader) servers(files []serverFile) []serverConfig {
	var servers []serverConfig
	seen := map[string]int{}
	for i, s := range files {
		at := func(more ...any) []any { return append([]any{"memcached", "servers", i}, more...) }
		switch first, again := seen[s.Name]; {
		case s.Name == "":
			r.problem(fmt.Sprintf("memcached.servers[%d].name is missing; keys find their server by its name", i), at()...)
		case again:
			r.problem(fmt.Sprintf("memcached.servers[%d] is named %q as memcached.servers[%d] is; keys find their server by its name", i, s.Name, first), at()...)
		default:
			seen[s.Name] = i
		}
		servers = append(servers, serverConfig{s.Name, r.address(s.Address, at("address")...)})
	}
	return servers
}
