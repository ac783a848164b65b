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

	"github.com/weir-go/weir/backend/rollout/flagfile"
	"github.com/weir-go/weir/throttler"
)

// config is what the demo runs on: the defaults, and what a file changes.
type config struct {
	listen         string
	backends       backendsConfig
	policies       map[string]*throttler.Policy
	dryRuns        map[string]*throttler.Policy // by the policies beside which they are tried
	trustedProxies []string                     // CIDR prefixes
	deadline       time.Duration
	failClosed     bool
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
		backends: backendsConfig{serving: memoryName},
		policies: map[string]*throttler.Policy{},
		dryRuns:  map[string]*throttler.Policy{},
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
	for _, name := range slices.Sorted(maps.Keys(c.dryRuns)) {
		all = append(all, c.dryRuns[name].Warnings()...)
	}
	if c.backends.flags != "" {
		if err := flagfile.Check(c.backends.flags); err != nil {
			all = append(all, fmt.Sprintf("the flags' file is wrong, until it is right all clients are on %s: %v", c.backends.serving, err))
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
	Memcached      *memcachedFile        `yaml:"memcached"`
	Flags          string                `yaml:"flags"`
	Shadow         string                `yaml:"shadow"`
	Policies       map[string]policyFile `yaml:"policies"`
	DryRuns        map[string]policyFile `yaml:"dry_runs"`
	TrustedProxies []string              `yaml:"trusted_proxies"`
	Deadline       string                `yaml:"deadline"`
	OnFailure      string                `yaml:"on_failure"`
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
	c.backends.read(r, &file)
	for _, name := range slices.Sorted(maps.Keys(file.Policies)) {
		if p := r.policy(name, file.Policies[name], "policies", name); p != nil {
			c.policies[name] = p
		}
	}
	c.readDryRuns(r, file.DryRuns)
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
