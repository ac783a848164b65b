package main

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/throttler"
)

// config is what the demo runs on: the defaults, and what a file changes.
type config struct {
	listen         string
	shards         []shardConfig // none: counts live in this process
	policies       map[string]*throttler.Policy
	trustedProxies []string // CIDR prefixes
	deadline       time.Duration
	failClosed     bool
}

type shardConfig struct {
	name     string
	primary  string   // host:port
	replicas []string // host:port
}

// Names of the policies that the routes use.
const (
	corePolicy        = "core"
	searchPolicy      = "search"
	createTokenPolicy = "auth.createToken"
	orgPolicy         = "org"        // what an organisation's members may do together
	memberPolicy      = "org.member" // and each of them
)

// routePolicies are those names.
var routePolicies = []string{corePolicy, searchPolicy, createTokenPolicy, orgPolicy, memberPolicy}

func defaultConfig() *config {
	c := &config{
		listen:   "127.0.0.1:8080",
		policies: map[string]*throttler.Policy{},
		deadline: 50 * time.Millisecond,
	}
	for _, p := range []*throttler.Policy{
		{Name: corePolicy, Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}},
		{Name: searchPolicy, Limits: []throttler.Limit{{Quota: 30, Window: time.Minute}}},
		{Name: createTokenPolicy, Limits: []throttler.Limit{
			{Quota: 20, Window: time.Minute},
			{Quota: 5, Window: 3 * time.Second},
		}},
		{Name: orgPolicy, Limits: []throttler.Limit{{Quota: 100, Window: time.Minute}}},
		{Name: memberPolicy, Limits: []throttler.Limit{{Quota: 20, Window: time.Minute}}},
	} {
		c.policies[p.Name] = p
	}
	return c
}

// policyNames returns the names of all policies, sorted.
func (c *config) policyNames() []string {
	return slices.Sorted(maps.Keys(c.policies))
}

// warnings names what is allowed, but hardly meant.
func (c *config) warnings() []string {
	var all []string
	for _, name := range c.policyNames() {
		all = append(all, c.policies[name].Warnings()...)
		if !slices.Contains(routePolicies, name) {
			all = append(all, fmt.Sprintf("policy %q limits no route; the routes use %s", name, strings.Join(routePolicies, ", ")))
		}
	}
	return all
}

// configFile is the file as it is written. Its leaves are strings, so that
// whatever stands there can be quoted in an error; YAML would make a 4 of 4.5.
type configFile struct {
	Listen         string                `yaml:"listen"`
	Backend        string                `yaml:"backend"`
	Redis          *redisFile            `yaml:"redis"`
	Policies       map[string]policyFile `yaml:"policies"`
	TrustedProxies []string              `yaml:"trusted_proxies"`
	Deadline       string                `yaml:"deadline"`
	OnFailure      string                `yaml:"on_failure"`
}

type redisFile struct {
	Shards []shardFile `yaml:"shards"`
}

type shardFile struct {
	Name     string        `yaml:"name"`
	Primary  string        `yaml:"primary"`
	Replicas []addressFile `yaml:"replicas"`
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

type policyFile struct {
	Limits []limitFile `yaml:"limits"`
}

type limitFile struct {
	Quota     string `yaml:"quota"`
	Window    string `yaml:"window"`
	Algorithm string `yaml:"algorithm"`
	Aligned   string `yaml:"aligned"`
	Burst     string `yaml:"burst"`
	MaxWait   string `yaml:"max_wait"`
}

// loadConfig reads the file over the defaults: what it does not mention stays,
// a policy that it does not mention too. The error lists all that is wrong.
func loadConfig(name string) (*config, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parseConfig(name, text)
}

func parseConfig(name string, text []byte) (*config, error) {
	r, file := newReader(name, text)
	c := defaultConfig()
	if r.failed() {
		return nil, r.err()
	}
	if file.Listen != "" {
		c.listen = r.address(file.Listen, "listen")
	}
	c.readBackend(r, &file)
	for _, name := range slices.Sorted(maps.Keys(file.Policies)) {
		if p := r.policy(name, file.Policies[name]); p != nil {
			c.policies[name] = p
		}
	}
	for i, prefix := range file.TrustedProxies {
		if _, err := netip.ParsePrefix(prefix); err != nil {
			r.wrong("an address range such as 10.0.0.0/8 or 192.0.2.7/32", prefix, "trusted_proxies", i)
		}
	}
	c.trustedProxies = file.TrustedProxies
	if file.Deadline != "" {
		c.deadline = r.duration(file.Deadline, "deadline")
	}
	c.failClosed = file.OnFailure == "closed"
	if !slices.Contains([]string{"", "open", "closed"}, file.OnFailure) {
		r.wrong("open or closed", file.OnFailure, "on_failure")
	}
	return c, r.err()
}

func (c *config) readBackend(r *reader, file *configFile) {
	switch file.Backend {
	case "", "memory":
		if file.Redis != nil {
			r.problem("redis is set, but the backend is memory; write backend: redis, or leave redis out", "redis")
		}
		return
	case "redis":
	default:
		r.wrong("memory or redis", file.Backend, "backend")
		return
	}
	if file.Redis == nil || len(file.Redis.Shards) == 0 {
		r.problem("redis.shards is empty; the redis backend needs at least one shard, such as {name: a, primary: 127.0.0.1:6379}", "redis", "shards")
		return
	}
	seen := map[string]int{}
	for i, s := range file.Redis.Shards {
		switch first, again := seen[s.Name]; {
		case s.Name == "":
			r.problem(fmt.Sprintf("redis.shards[%d].name is missing; keys find their shard by its name", i), "redis", "shards", i)
		case again:
			r.wrong(fmt.Sprintf("another than that of redis.shards[%d]: keys find their shard by its name", first), s.Name, "redis", "shards", i, "name")
		default:
			seen[s.Name] = i
		}
		shard := shardConfig{name: s.Name, primary: r.address(s.Primary, "redis", "shards", i, "primary")}
		for j, replica := range s.Replicas {
			shard.replicas = append(shard.replicas, r.address(string(replica), "redis", "shards", i, "replicas", j))
		}
		c.shards = append(c.shards, shard)
	}
}

// policy returns nil if the policy is wrong.
func (r *reader) policy(name string, file policyFile) *throttler.Policy {
	before := len(r.problems)
	p := &throttler.Policy{Name: name}
	for i, l := range file.Limits {
		p.Limits = append(p.Limits, r.limit(l, "policies", name, "limits", i))
	}
	if len(r.problems) > before {
		return nil
	}
	err := p.Validate()
	if err == nil {
		return p
	}
	at := []any{"policies", name}
	for i := range p.Limits { // which one is it?
		alone := throttler.Policy{Name: name, Limits: p.Limits[i : i+1]}
		if alone.Validate() != nil {
			at = append(at, "limits", i)
			break
		}
	}
	r.problem(strings.TrimPrefix(err.Error(), "throttler: "), at...)
	return nil
}

func (r *reader) limit(file limitFile, at ...any) throttler.Limit {
	l := throttler.Limit{
		Quota:  r.whole(file.Quota, append(at, "quota")...),
		Window: r.duration(file.Window, append(at, "window")...),
	}
	if file.Algorithm != "" {
		algorithm, err := throttler.ParseAlgorithm(file.Algorithm)
		if err != nil {
			r.problem(strings.TrimPrefix(err.Error(), "throttler: "), append(at, "algorithm")...)
		}
		l.Algorithm = algorithm
	}
	if file.Aligned != "" {
		l.Aligned = file.Aligned == "true"
		if !l.Aligned && file.Aligned != "false" {
			r.wrong("true or false", file.Aligned, append(at, "aligned")...)
		}
	}
	if file.Burst != "" {
		l.Burst = r.whole(file.Burst, append(at, "burst")...)
	}
	if file.MaxWait != "" {
		l.MaxWait = r.duration(file.MaxWait, append(at, "max_wait")...)
	}
	return l
}

func (r *reader) whole(text string, at ...any) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		r.wrong("a whole number, 1 or more", text, at...)
	}
	return n
}

func (r *reader) duration(text string, at ...any) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		r.wrong("a duration above zero, with its unit, such as 50ms, 60s or 1h", text, at...)
	}
	return d
}

func (r *reader) address(text string, at ...any) string {
	if err := checkAddress(text); err != nil {
		r.wrong("a host and a port, such as 127.0.0.1:8080", text, at...)
	}
	return text
}

func checkAddress(text string) error {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return err
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err
}
