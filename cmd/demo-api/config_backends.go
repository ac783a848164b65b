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
	sharesName    = "shares" // in this process, divided with others
)

// backendsConfig is where counts live.
type backendsConfig struct {
	serving   string // its name; with flags, the name of the flag's default
	shards    []shardConfig
	resharded []shardConfig
	servers   []serverConfig
	shares    sharesConfig
	seed      uint64 // of the choice of a shard or server
	flags     string // file
	shadow    string // name
	refusals  refusalsConfig
}

type serverConfig struct{ name, address string }

// names returns the names of the backends that are configured, the serving one
// first.
func (c *backendsConfig) names() []string {
	names := []string{c.serving}
	for name, configured := range map[string]bool{
		redisName: len(c.shards) > 0, reshardedName: len(c.resharded) > 0, memcachedName: len(c.servers) > 0, sharesName: c.shares.self != "",
	} {
		if configured && name != c.serving {
			names = append(names, name)
		}
	}
	slices.Sort(names[1:])
	return names
}

// remote reports whether a decision may need another process.
func (c *backendsConfig) remote() bool { return c.serving != memoryName || c.flags != "" }

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
		if strings.HasSuffix(what, "s") {
			what += "e"
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
	case sharesName:
		return "memory, with a share of each quota, of " + count(len(c.shares.list.Members), "process")
	}
	return "memory"
}

func (c *backendsConfig) read(f map[string]value) {
	before := len(f["backend"].r.problems)
	redis := f["redis"].fields("shards", "resharded")
	servers := f["memcached"].fields("servers")["servers"]
	c.shards = readShards(redis["shards"])
	c.resharded = readShards(redis["resharded"])
	c.servers = readServers(servers)
	c.readShares(f["shares"])
	if v := f["backend"]; !v.missing() {
		c.serving = v.oneOf(memoryName, redisName, reshardedName, memcachedName, sharesName)
	}
	if v := f["seed"]; !v.missing() {
		c.seed = uint64(v.whole())
	}
	if v := f["shadow"]; !v.missing() {
		c.shadow = v.oneOf(memoryName, redisName, reshardedName, memcachedName)
	}
	if v := f["flags"]; !v.missing() {
		c.flags, _ = v.scalar("a file in flagd's form")
		if c.flags != "" && !filepath.IsAbs(c.flags) {
			c.flags = filepath.Join(filepath.Dir(v.r.name), c.flags)
		}
	}
	if len(f["backend"].r.problems) > before {
		return // what seems to be missing may be what is wrong
	}
	lists := map[string]value{redisName: redis["shards"], reshardedName: redis["resharded"], memcachedName: servers, sharesName: f["shares"]}
	if !c.has(c.serving, lists[c.serving], f["backend"]) || !c.has(c.shadow, lists[c.shadow], f["shadow"]) {
		return
	}
	switch {
	case c.flags != "" && slices.Contains(c.names(), sharesName):
		f["flags"].problem("flags is set, and so is shares, which counts cannot be moved to or from; leave one of them out")
	case c.flags == "":
		for _, name := range c.names()[1:] {
			if name != c.shadow {
				section, _, _ := strings.Cut(name, "-")
				f[section].problem("%[1]s is set, but the backend is %[2]s; write backend: %[3]s, or flags: FILE to move clients between them, or leave %[1]s out", section, c.serving, name)
			}
		}
	case len(c.names()) == 1:
		f["flags"].problem("flags is set, but there is no backend other than %s to move clients to; set redis or memcached", c.serving)
	}
}

// has reports whether the backend of that name has a server. If not, it adds a
// problem, to the list that should name one, or where the name is.
func (c *backendsConfig) has(name string, list, at value) bool {
	needs := ""
	switch {
	case name == redisName && len(c.shards) == 0, name == reshardedName && len(c.resharded) == 0:
		needs = "one shard, such as {name: a, primary: 127.0.0.1:6379}"
	case name == memcachedName && len(c.servers) == 0:
		needs = "one server, such as 127.0.0.1:11211"
	case name == sharesName && c.shares.self == "":
		needs = "self, members and key_file"
	default:
		return true
	}
	if !list.missing() {
		at = list
	}
	at.problem("%s is empty; the %s backend needs at least %s", list.path, name, needs)
	return false
}

func readServers(v value) []serverConfig {
	var servers []serverConfig
	names := map[string]value{}
	for _, item := range v.items("a list of servers, such as [127.0.0.1:11211]") {
		if _, ok := item.peek(); ok { // an address alone names itself
			servers = append(servers, serverConfig{readName(item, names, "server"), item.address(hostNeeded)})
			continue
		}
		f := item.fields("name", "address")
		servers = append(servers, serverConfig{readName(f["name"], names, "server"), f["address"].address(hostNeeded)})
	}
	return servers
}

// readName returns a name that is none of names, and adds it there.
func readName(v value, names map[string]value, what string) string {
	mustBe := "a name, such as a: keys find their " + what + " by it"
	name, ok := v.scalar(mustBe)
	if !ok {
		return ""
	}
	if first, again := names[name]; again {
		v.problem("%s is %q, as %s is; names must differ, because keys find their %s by it", v.name(), name, first.name(), what)
	} else {
		names[name] = v
	}
	return name
}
