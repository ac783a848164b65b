package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v4"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/local/synced"
)

// shard is a shard of Redis: a primary and its replicas.
type shard struct {
	Name     string
	server   `yaml:",inline"`
	Cluster  []Address
	Replicas []Address // with the primary's other settings
}

// root is a server where processes agree. The short form is its address or URL.
type root struct {
	Name   string // the address if left out
	Group  string // if left out, the group of all roots without a group
	server `yaml:",inline"`
}

func (s *root) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return load(node, &s.Primary)
	}
	type long root
	return load(node, (*long)(s))
}

// servers completes the servers of Redis and Memcached.
func (c *Config) servers(d *document) {
	for key, shards := range map[string][]shard{"shards": c.keys.Redis.Shards, "resharded": c.keys.Redis.Resharded} {
		list := path{"redis", key}
		for i := range shards {
			s, p := &shards[i], list.item(i)
			if s.Name == "" {
				d.mustBe(p.child("name"), "a name, such as a: keys find their shard by it")
			}
			s.complete(d, p, s.Cluster)
			if len(s.Replicas) > 0 && s.options.IsClusterMode {
				d.problem(p.child("replicas"), "%s.replicas is set, but peeks of a Cluster go to its primaries; leave it out", p)
			}
		}
		d.distinct(list, "names must differ, because keys find their shard by it", "name")
	}
	d.roots(path{"roots"}, c.keys.Roots)
	if c.keys.PoliciesAt != nil {
		(*server)(c.keys.PoliciesAt).complete(d, path{"policies_at"}, nil)
	}
	for i := range c.keys.Memcached.Servers {
		s := &c.keys.Memcached.Servers[i]
		if s.Address == "" {
			d.mustBe(path{"memcached", "servers"}.item(i).child("address"), addressMustBe)
		}
		s.Name = cmp.Or(s.Name, string(s.Address))
	}
	d.distinct(path{"memcached", "servers"}, "names must differ, because keys find their server by it", "name", "address")
}

func (d *document) roots(list path, addresses []root) {
	d.distinct(list, "each root is there once", "name", "primary")
	if node := resolved(d.get(list)); node == nil || len(node.Content) != len(addresses) {
		return // an item is wrong
	}
	groups := make(map[string]int)
	for i := range addresses {
		s := &addresses[i]
		s.complete(d, list.item(i), nil)
		s.Name = cmp.Or(s.Name, strings.Join(s.options.Addrs, ","))
		if groups[s.Group]++; groups[s.Group] == synced.MaxRoots+1 {
			d.mustBe(list, fmt.Sprintf("at most %d servers of each group", synced.MaxRoots))
		}
	}
}

// distinct adds a problem for each item of a list that equals an earlier one. Mappings are
// compared by the first of the keys that they have.
func (d *document) distinct(list path, because string, keys ...string) {
	node, first := resolved(d.get(list)), make(map[string]path)
	if node == nil || node.Kind != yaml.SequenceNode {
		return
	}
	for i := range node.Content {
		p := list.item(i)
		for _, key := range keys {
			if d.contains(p.child(key)) {
				p = p.child(key)
				break
			}
		}
		value := resolved(d.get(p)).Value
		if before, repeated := first[value]; repeated && value != "" {
			d.add(d.get(p).Line, p, "%v is %s, as %v is; %s", p, quoted(value), before, because)
		} else {
			first[value] = p
		}
	}
}

// server is the location of a primary, and the settings of a connection to it.
type server struct {
	Primary  location
	Sentinel sentinel
	TLS      tlsKeys
	account  `yaml:",inline"`

	IdleTimeout duration `yaml:"idle_timeout"` // after which the client closes a connection

	options redis.UniversalOptions // made of the fields above
	exposed bool                   // the password is in the URL
}

type sentinel struct {
	Master  string
	Addrs   []Address
	account `yaml:",inline"`
}

type account struct {
	Username     string
	PasswordFile file   `yaml:"password_file"`
	PasswordEnv  string `yaml:"password_env"`

	fromEnv string // the password of PasswordEnv
}

func (a *account) password() string {
	return cmp.Or(strings.TrimRight(string(a.PasswordFile.content), "\r\n"), a.fromEnv)
}

func (a *account) check(d *document, p path) {
	const right = "a file with a password, on one line"
	d.read(&a.PasswordFile, p.child("password_file"), right)
	if word := a.password(); a.PasswordFile.content != nil && (word == "" || strings.ContainsAny(word, "\r\n")) {
		d.mustBe(p.child("password_file"), right)
	}
	if a.PasswordEnv == "" {
		return
	}
	if a.fromEnv = d.getenv(a.PasswordEnv); a.fromEnv == "" {
		d.problem(p.child("password_env"), "%s is %s, and no such environment variable is set", p.child("password_env"), quoted(a.PasswordEnv))
	}
	if a.PasswordFile.content != nil {
		d.problem(p.child("password_env"), "%s has password_file and password_env; keep one of them", p)
	}
}

// location is the address or URL of a primary. A URL may have a password, so it is never
// shown.
type location string

const locationMustBe = "a host and a port, such as 127.0.0.1:6379, the path of a socket, such as /run/redis.sock, or a URL, such as rediss://weir@127.0.0.1:6379/0"

func (l *location) UnmarshalText(text []byte) error {
	*l = location(text)
	_, err := l.options()
	return err
}

func (l location) options() (redis.UniversalOptions, error) {
	if strings.HasPrefix(string(l), "/") {
		return redis.UniversalOptions{Addrs: []string{string(l)}}, nil // a socket, by its path
	}
	valid := func(addr string) bool { return new(Address).UnmarshalText([]byte(addr)) == nil }
	if !strings.ContainsAny(string(l), "@/") {
		if !valid(string(l)) {
			return redis.UniversalOptions{}, errors.New("it must be " + locationMustBe)
		}
		return redis.UniversalOptions{Addrs: []string{string(l)}}, nil
	}
	o, err := redisbackend.ParseURL(string(l))
	if err != nil || len(o.Addrs) > 1 || o.IsClusterMode || o.MasterName != "" || !valid(o.Addrs[0]) {
		return redis.UniversalOptions{}, errors.New("a URL must have the form redis://USER@HOST:PORT/DB or, with TLS, rediss://USER@HOST:PORT/DB; it is not shown, for it may have a password")
	}
	return *o, nil
}

// complete makes the options of s. One of three keys must name its primary.
func (s *server) complete(d *document, p path, cluster []Address) {
	s.check(d, p) // of the account
	s.TLS.check(d, p.child("tls"))
	d.checkRange(p.child("idle_timeout"), time.Duration(s.IdleTimeout), time.Second, 24*time.Hour)
	set := slices.DeleteFunc([]string{"primary", "sentinel", "cluster"}, func(key string) bool { return !d.contains(p.child(key)) })
	if node := resolved(d.get(p)); node.Kind == yaml.ScalarNode {
		set = []string{"primary"} // the short form
	}
	o := &s.options
	switch {
	case len(set) > 1:
		d.problem(p, "%s has %s; it must have one of primary, sentinel and cluster", p, strings.Join(set, " and "))
	case len(set) == 0:
		d.mustBe(p.child("primary"), locationMustBe+"; or there must be sentinel or cluster in its place")
	case set[0] == "primary":
		*o, _ = s.Primary.options() // an error is a problem already
		s.exposed = o.Password != ""
	case set[0] == "sentinel":
		o.MasterName, o.Addrs = s.Sentinel.Master, texts(s.Sentinel.Addrs)
		s.Sentinel.check(d, p.child("sentinel"))
		if s.Sentinel.Master == "" {
			d.mustBe(p.child("sentinel", "master"), "the primary's name at the Sentinels, such as mymaster")
		}
		if len(s.Sentinel.Addrs) == 0 {
			d.mustBe(p.child("sentinel", "addrs"), "a list of the Sentinels' addresses, such as [127.0.0.1:26379]")
		}
		o.SentinelUsername, o.SentinelPassword = s.Sentinel.Username, s.Sentinel.password()
	default:
		o.IsClusterMode, o.Addrs = true, texts(cluster)
		if len(cluster) == 0 {
			d.mustBe(p.child("cluster"), "a list of nodes' addresses, such as [127.0.0.1:7000]")
		}
	}
	if o.Username != "" && s.Username != "" {
		d.problem(p.child("username"), "%s.username is set, and the URL has a user too; keep one of them", p)
	}
	if o.Password != "" && s.password() != "" {
		d.problem(p.child("password_file"), "%s.password_file is set, and the URL has a password too; keep this one", p)
	}
	if s.TLS.config != nil && strings.HasPrefix(string(s.Primary), "redis:") {
		d.problem(p.child("tls"), "%[1]s.tls is set, but %[1]s.primary is a redis URL, which is without TLS; write rediss", p)
	}
	o.ConnMaxIdleTime = time.Duration(s.IdleTimeout)
	o.Username, o.Password = cmp.Or(s.Username, o.Username), cmp.Or(s.password(), o.Password)
	if s.TLS.config != nil {
		o.TLSConfig = s.TLS.config
	}
}

func texts(addrs []Address) (addresses []string) {
	for _, a := range addrs {
		addresses = append(addresses, string(a))
	}
	return addresses
}

// role returns the key that names the primary.
func (s *server) role() string {
	switch {
	case s.options.MasterName != "":
		return "sentinel"
	case s.options.IsClusterMode:
		return "cluster"
	}
	return "primary"
}

// serverWarnings returns a text about each server that is probably a mistake.
func (c *Config) serverWarnings() (texts []string) {
	for _, shards := range [][]shard{c.keys.Redis.Shards, c.keys.Redis.Resharded} {
		servers := make(map[string]string) // their places, by address and database
		again := func(place, addr string, db int) {
			id := fmt.Sprint(addr, " ", db)
			if before, found := servers[id]; found {
				texts = append(texts, fmt.Sprintf("the %s is %s, as the %s is; each needs a server of its own", place, addr, before))
			}
			servers[id] = place
		}
		for i := range shards {
			s := &shards[i]
			texts = append(texts, s.warnings(fmt.Sprintf("shard %q", s.Name))...)
			if s.options.MasterName == "" && !s.options.IsClusterMode {
				again(fmt.Sprintf("primary of shard %q", s.Name), s.options.Addrs[0], s.options.DB)
			}
			for _, addr := range s.Replicas {
				again(fmt.Sprintf("replica of shard %q", s.Name), string(addr), s.options.DB)
			}
		}
	}
	for i := range c.keys.Roots {
		texts = append(texts, c.keys.Roots[i].warnings(fmt.Sprintf("root %q", c.keys.Roots[i].Name))...)
	}
	return texts
}

func (s *server) warnings(name string) (texts []string) {
	if s.exposed {
		texts = append(texts, fmt.Sprintf("the URL of %s has a password; password_file keeps it out of the configuration", name))
	}
	if s.options.Username != "" && s.options.Password == "" {
		texts = append(texts, fmt.Sprintf("the user %q of %s has no password, without which connections are the default user's; write password_file or password_env", s.options.Username, name))
	}
	return texts
}
