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
	Name string `yaml:",required" is:"a name, such as a: keys find their shard by it"`
	server
	Cluster  []Address `is:"a list of nodes' addresses, such as [127.0.0.1:7000]"`
	Replicas []Address `is:"a list of addresses, such as [127.0.0.1:6380]"` // with the primary's other settings
}

func (s *shard) check(r *reader, p *place) {
	s.complete(r, p, s.Cluster)
	if len(s.Replicas) > 0 && s.options.IsClusterMode {
		r.problem(p.at("replicas"), "%s.replicas is set, but peeks of a Cluster go to its primaries; leave it out", p)
	}
}

// shards are a list of shards.
type shards []shard

func (all shards) check(r *reader, p *place) {
	r.distinct(p, len(all), func(i int) string { return all[i].Name }, "names must differ, because keys find their shard by it", "name")
}

// root is a server where processes agree. The short form is its address or URL.
type root struct {
	Name  string `is:"a name, such as a"`                                                // the address if left out
	Group string `is:"the name of the group of roots that keeps a part of the counters"` // if left out, the group of all roots without a group
	server
}

func (*root) long(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.ScalarNode {
		return under("primary", node)
	}
	return node
}

func (s *root) check(r *reader, p *place) {
	s.complete(r, p, nil)
	s.Name = cmp.Or(s.Name, strings.Join(s.options.Addrs, ","))
}

type roots []root

func (all roots) check(r *reader, p *place) {
	r.distinct(p, len(all), func(i int) string { return all[i].Name }, "each root is there once")
	groups := make(map[string]int)
	for _, one := range all {
		if groups[one.Group]++; groups[one.Group] == synced.MaxRoots+1 {
			r.mustBe(p, fmt.Sprintf("at most %d servers of each group", synced.MaxRoots))
		}
	}
}

// server is the location of a primary, and the settings of a connection to it.
type server struct {
	Primary  location
	Sentinel sentinel
	TLS      tlsKeys `yaml:"tls" is:"true, false or a mapping with ca_file, cert_file, key_file and server_name"`
	account
	IdleTimeout time.Duration // after which the client closes a connection

	options redis.UniversalOptions // made of the fields above
	exposed bool                   // the password is in the URL
}

type sentinel struct {
	Master string    `yaml:",required" is:"the primary's name at the Sentinels, such as mymaster"`
	Addrs  []Address `yaml:",required" is:"a list of the Sentinels' addresses, such as [127.0.0.1:26379]"`
	account
}

type account struct {
	Username     string `is:"the name of a user of Redis"`
	PasswordFile file   `is:"a file with a password, on one line"`
	PasswordEnv  string `is:"the name of an environment variable that has a password"`

	fromEnv string // the password of PasswordEnv
}

func (a *account) password() string {
	return cmp.Or(strings.TrimRight(string(a.PasswordFile.content), "\r\n"), a.fromEnv)
}

func (a *account) check(r *reader, p *place) {
	if word := a.password(); a.PasswordFile.content != nil && (word == "" || strings.ContainsAny(word, "\r\n")) {
		r.mustBe(p.at("password_file"), "a file with a password, on one line")
	}
	if a.PasswordEnv == "" {
		return
	}
	if a.fromEnv = r.getenv(a.PasswordEnv); a.fromEnv == "" {
		r.problem(p.at("password_env"), "%s is %s, and no such environment variable is set", p.at("password_env"), quoted(a.PasswordEnv))
	}
	if a.PasswordFile.content != nil {
		r.problem(p.at("password_env"), "%s has password_file and password_env; keep one of them", p)
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
func (s *server) complete(r *reader, p *place, cluster []Address) {
	s.check(r, p) // of the account
	set := slices.DeleteFunc([]string{"primary", "sentinel", "cluster"}, func(key string) bool { return !p.at(key).has() })
	r.within(p.at("idle_timeout"), s.IdleTimeout, time.Second, 24*time.Hour)
	o := &s.options
	switch {
	case len(set) > 1:
		r.problem(p, "%s has %s; it must have one of primary, sentinel and cluster", p, strings.Join(set, " and "))
	case len(set) == 0:
		r.mustBe(p.at("primary"), locationMustBe+"; or there must be sentinel or cluster in its place")
	case set[0] == "primary":
		*o, _ = s.Primary.options() // an error is a problem already
		s.exposed = o.Password != ""
	case set[0] == "sentinel":
		o.MasterName, o.Addrs = s.Sentinel.Master, texts(s.Sentinel.Addrs)
		o.SentinelUsername, o.SentinelPassword = s.Sentinel.Username, s.Sentinel.password()
	default:
		o.IsClusterMode, o.Addrs = true, texts(cluster)
		if at := p.at("cluster"); len(cluster) == 0 && !at.wrong {
			r.mustBe(at, "a list of nodes' addresses, such as [127.0.0.1:7000]")
		}
	}
	if o.Username != "" && s.Username != "" {
		r.problem(p.at("username"), "%s.username is set, and the URL has a user too; keep one of them", p)
	}
	if o.Password != "" && s.password() != "" {
		r.problem(p.at("password_file"), "%s.password_file is set, and the URL has a password too; keep this one", p)
	}
	if s.TLS.config != nil && strings.HasPrefix(string(s.Primary), "redis:") {
		r.problem(p.at("tls"), "%[1]s.tls is set, but %[1]s.primary is a redis URL, which is without TLS; write rediss", p)
	}
	o.ConnMaxIdleTime = s.IdleTimeout
	o.Username, o.Password = cmp.Or(s.Username, o.Username), cmp.Or(s.password(), o.Password)
	if s.TLS.config != nil {
		o.TLSConfig = s.TLS.config
	}
}

func texts(addrs []Address) (all []string) {
	for _, a := range addrs {
		all = append(all, string(a))
	}
	return all
}

// kind returns the key that names the primary.
func (s *server) kind() string {
	switch {
	case s.options.MasterName != "":
		return "sentinel"
	case s.options.IsClusterMode:
		return "cluster"
	}
	return "primary"
}
