package settings

import (
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/config"
)

// Backend is where counts are kept.
type Backend struct {
	// ConfigFile is a file of package config. It replaces the variables below, and can do
	// more: shards, fallbacks, levels.
	ConfigFile string `env:"WEIR_CONFIG"`

	// Seed affects the choice of a shard: see seed in docs/reference/configuration.md.
	Seed uint64 `env:"WEIR_SEED"`

	// Prefix begins all stored keys, before weir:.
	Prefix string `env:"CACHE_KEY_PREFIX"`

	// Processes is how many throttlerds share the quotas, for WEIR_ON_FAILURE=local.
	Processes int64 `env:"WEIR_PROCESSES" envDefault:"1"`

	BackendType string `env:"BACKEND_TYPE" envDefault:"redis"` // also memory

	RedisSocketType   string `env:"REDIS_SOCKET_TYPE" envDefault:"unix"`
	RedisType         string `env:"REDIS_TYPE" envDefault:"SINGLE"`
	RedisURL          string `env:"REDIS_URL" envDefault:"/var/run/nutcracker/ratelimit.sock"`
	RedisAuth         string `env:"REDIS_AUTH"`
	RedisSentinelAuth string `env:"REDIS_SENTINEL_AUTH"`
	RedisTLS          bool   `env:"REDIS_TLS" envDefault:"false"`
	RedisTLSCert      string `env:"REDIS_TLS_CLIENT_CERT"`
	RedisTLSKey       string `env:"REDIS_TLS_CLIENT_KEY"`
	RedisTLSCA        string `env:"REDIS_TLS_CACERT"`
	RedisTLSSkip      bool   `env:"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION" envDefault:"false"`

	// RedisIdleTimeout is after how long an idle connection is closed: see idle_timeout in
	// docs/reference/configuration.md. If zero, after its default.
	RedisIdleTimeout time.Duration `env:"WEIR_REDIS_IDLE_TIMEOUT" envDefault:"0s"`

	MemcacheHostPort []string `env:"MEMCACHE_HOST_PORT"`
	MemcacheSRV      string   `env:"MEMCACHE_SRV"`
	MemcacheTLS      bool     `env:"MEMCACHE_TLS" envDefault:"false"`
}

var prefixForm = regexp.MustCompile(`^[\w.:/-]{1,64}$`) // as of prefix in package config

func (s *Settings) checkBackend() (problems mistakes) {
	if s.ConfigFile != "" {
		return nil
	}
	memcache := s.BackendType == "memcache"
	problems.add(s.Prefix != "" && !prefixForm.MatchString(s.Prefix), "CACHE_KEY_PREFIX is %q; it must be 1 to 64 letters, digits, and . _ - / :, such as staging:", s.Prefix)
	problems.add(s.Prefix != "" && s.BackendType == "memory", "CACHE_KEY_PREFIX is set, and counts live in memory, which no other process shares; leave it out")
	problems.add(!slices.Contains([]string{"", "redis", "memcache", "memory"}, s.BackendType), "BACKEND_TYPE is %q; it must be redis, memcache or memory", s.BackendType)
	problems.add(memcache && len(s.MemcacheHostPort) == 0, "MEMCACHE_HOST_PORT is missing; it must be a list of servers, such as 10.0.0.1:11211,10.0.0.2:11211")
	problems.add(memcache && s.MemcacheSRV != "", "MEMCACHE_SRV is set; list the servers in MEMCACHE_HOST_PORT")
	problems.add(memcache && s.MemcacheTLS, "MEMCACHE_TLS is set, and connections to Memcached are without TLS; leave it out")
	if s.BackendType != "" && s.BackendType != "redis" {
		return problems
	}
	kind, urls := strings.ToLower(s.RedisType), s.redisURLs()
	problems.add(!slices.Contains([]string{"single", "sentinel", "cluster"}, kind), "REDIS_TYPE is %q; it must be SINGLE, SENTINEL or CLUSTER", s.RedisType)
	problems.add(kind == "sentinel" && len(urls) < 2, "REDIS_URL has %d parts; with REDIS_TYPE=SENTINEL it must be the primary's name and the Sentinels, such as mymaster,10.0.0.1:26379,10.0.0.2:26379", len(urls))
	problems.add(kind == "single" && len(urls) > 1, "REDIS_URL has %d servers; with REDIS_TYPE=SINGLE it must be one, or REDIS_TYPE must be CLUSTER, or SENTINEL for mymaster,10.0.0.1:26379,10.0.0.2:26379; WEIR_CONFIG is for several shards", len(urls))
	problems.add(kind == "single" && s.RedisSocketType == "unix" && !strings.HasPrefix(s.RedisURL, "/"), "REDIS_SOCKET_TYPE is unix, and REDIS_URL is no path of a socket; set REDIS_SOCKET_TYPE=tcp for a host and a port")
	problems.add(!slices.Contains([]string{"unix", "tcp"}, s.RedisSocketType), "REDIS_SOCKET_TYPE is %q; it must be tcp or unix", s.RedisSocketType)
	problems.add(s.RedisIdleTimeout != 0 && (s.RedisIdleTimeout < time.Second || s.RedisIdleTimeout > 24*time.Hour), "WEIR_REDIS_IDLE_TIMEOUT is %v; it must be from 1s to 24h0m0s, or 0s for the default", s.RedisIdleTimeout)
	return problems
}

func (s *Settings) redisURLs() []string { return strings.Split(s.RedisURL, ",") }

// Config returns the configuration of the store and of its wrappers.
func (s *Settings) Config(options *config.Options) (*config.Config, error) {
	if s.ConfigFile != "" {
		return config.Read(s.ConfigFile, options)
	}
	o := *options
	o.Getenv = s.secret
	text, err := yaml.Marshal(s.keys())
	if err != nil {
		return nil, err
	}
	return config.Parse("the environment", text, &o)
}

// Names that the configuration uses to ask for passwords.
const (
	passwordEnv         = "password of REDIS_AUTH"
	sentinelPasswordEnv = "password of REDIS_SENTINEL_AUTH"
)

func (s *Settings) secret(name string) string {
	auth := map[string]string{passwordEnv: s.RedisAuth, sentinelPasswordEnv: s.RedisSentinelAuth}[name]
	_, password := account(auth)
	return password
}

// account returns the parts of USER:PASSWORD or PASSWORD.
func account(auth string) (user, password string) {
	if user, password, ok := strings.Cut(auth, ":"); ok {
		return user, password
	}
	return "", auth
}

type keys = map[string]any

// keys returns the keys of a file of package config that is equivalent to the variables.
func (s *Settings) keys() keys {
	k := keys{"deadline": s.Deadline.String()}
	if s.BackendType == "memory" {
		k["backend"] = "memory"
		return k
	}
	if s.Seed != 0 {
		k["seed"] = s.Seed
	}
	if s.Prefix != "" {
		k["prefix"] = s.Prefix
	}
	// A cache of refusals repeats the store's answers, so it is always exact. It is off where
	// envoyproxy/ratelimit's is, because a dashboard may show how often Redis is asked.
	k["refusal_cache"] = s.LocalCacheBytes > 0 && !s.Compatible // package rls has a cache, then
	k["on_failure"] = string(s.OnFailure)
	if s.OnFailure == FailError {
		k["on_failure"] = string(FailClosed) // an error that a call can return
	}
	if s.OnFailure == FailLocal {
		k["processes"] = s.Processes
	}
	if s.BackendType == "memcache" {
		k["backend"], k["memcached"] = "memcached", keys{"servers": s.MemcacheHostPort}
		return k
	}
	k["backend"], k["redis"] = "redis", keys{"shards": []keys{s.shard()}}
	return k
}

// shard returns the one shard of Redis that the variables describe.
func (s *Settings) shard() keys {
	shard := keys{"name": "redis"}
	signIn(shard, s.RedisAuth, passwordEnv)
	if s.RedisIdleTimeout > 0 {
		shard["idle_timeout"] = s.RedisIdleTimeout.String()
	}
	if s.RedisTLS {
		tls := keys{}
		for key, file := range map[string]string{"ca_file": s.RedisTLSCA, "cert_file": s.RedisTLSCert, "key_file": s.RedisTLSKey} {
			if file != "" {
				tls[key] = file
			}
		}
		if s.RedisTLSSkip {
			tls["any_name"] = true
		}
		shard["tls"] = any(true)
		if len(tls) > 0 {
			shard["tls"] = tls
		}
	}
	switch urls := s.redisURLs(); strings.ToLower(s.RedisType) {
	case "sentinel":
		sentinel := keys{"master": urls[0], "addrs": addresses(urls[1:])}
		signIn(sentinel, s.RedisSentinelAuth, sentinelPasswordEnv)
		shard["sentinel"] = sentinel
	case "cluster":
		shard["cluster"] = addresses(urls)
	default:
		shard["primary"] = addresses(urls[:1])[0]
	}
	return shard
}

func signIn(k keys, auth, passwordName string) {
	user, password := account(auth)
	if user != "" {
		k["username"] = user
	}
	if password != "" {
		k["password_env"] = passwordName
	}
}

// addresses returns hosts with their ports: 6379 by default, as with radix.
func addresses(urls []string) (list []string) {
	for _, u := range urls {
		if _, _, err := net.SplitHostPort(u); err != nil && !strings.ContainsAny(u, "/@") {
			u = net.JoinHostPort(u, "6379")
		}
		list = append(list, u)
	}
	return list
}
