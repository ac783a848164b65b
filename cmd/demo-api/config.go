package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/wrap/fallback"
	"github.com/weir-go/weir/wrap/rollout/flagfile"
)

// config is what the demo runs on: the defaults, and what a file changes.
type config struct {
	file           string // that it was read from; "" if there is none
	listen         string
	debugListen    string // "" if debugging is off
	backends       backendsConfig
	policies       map[string]*throttler.Policy
	dryRuns        map[string]*throttler.Policy // by the enforced policy that each is tried next to
	tokens         tokensConfig
	trustedProxies []netip.Prefix
	deadline       time.Duration
	failures       failuresConfig
	modes          modesConfig
}

func defaultConfig() *config {
	return &config{
		listen:      "127.0.0.1:8080",
		debugListen: "127.0.0.1:0",
		backends:    backendsConfig{serving: memoryName},
		policies:    defaultPolicies(),
		dryRuns:     map[string]*throttler.Policy{},
		tokens:      defaultTokens(),
		deadline:    50 * time.Millisecond,
		failures:    failuresConfig{policies: map[string]fallback.Choice{}},
		modes:       modesConfig{policies: map[string]modeConfig{}},
	}
}

// loadConfig reads the file over the defaults: what it does not mention stays,
// a policy that it does not mention too. The error lists all that is wrong.
func loadConfig(name string) (*config, error) {
	r := &reader{name: name}
	text := r.readFile()
	if r.failed() {
		return nil, r.err()
	}
	c, err := r.config(text)
	if err != nil {
		return nil, err
	}
	c.file = name
	return c, nil
}

func (r *reader) config(text []byte) (*config, error) {
	file := r.parse(text)
	if !r.failed() && file.missing() {
		// The defaults in place of a file that was cut off would be the wrong
		// limits, in silence.
		r.problem(0, "the file is empty; any key may be left out, but not all of them")
	}
	if r.failed() {
		return nil, r.err()
	}
	c := defaultConfig()
	f := file.fields("listen", "debug_listen", "backend", "redis", "memcached", "shares", "seed", "flags", "shadow",
		"refusal_cache", "roots", "policies", "dry_runs", "tokens", "trusted_proxies", "deadline",
		"on_failure", "open_for", "processes")
	if v := f["listen"]; !v.missing() {
		c.listen = v.address(hostOptional)
	}
	if v := f["debug_listen"]; !v.missing() {
		c.readDebugListen(v)
		if c.debugListen == c.listen && !strings.HasSuffix(c.listen, ":0") {
			v.wrong("another address than listen")
		}
	}
	c.backends.read(f)
	c.readFailures(f)
	c.readPolicies(f["policies"], f["processes"])
	c.readRefusals(f["refusal_cache"])
	c.readDryRuns(f["dry_runs"])
	c.readUndividable(f["policies"], f["dry_runs"], f["shares"])
	c.readRoots(f["roots"])
	c.checkModes(f["policies"], f["dry_runs"])
	if v := f["tokens"]; !v.missing() {
		c.tokens = readTokens(v)
	}
	c.readTrustedProxies(f["trusted_proxies"])
	if v := f["deadline"]; !v.missing() {
		c.readDeadline(v)
	}
	return c, r.err()
}

func (c *config) readDebugListen(v value) {
	if text, ok := v.peek(); ok && text == "off" {
		c.debugListen = ""
		return
	}
	c.debugListen = v.address(hostNeeded)
}

// A shorter deadline ends most decisions, and a longer one outlasts the client's
// own.
const (
	minDeadline = time.Millisecond
	maxDeadline = 30 * time.Second
)

func (c *config) readDeadline(v value) {
	c.deadline = v.duration()
	if c.deadline != 0 && (c.deadline < minDeadline || c.deadline > maxDeadline) {
		v.wrong(fmt.Sprintf("from %v to %v", minDeadline, maxDeadline))
	}
}

// The shortest prefixes that a proxy's network may have, as the largest private
// networks have them: 10.0.0.0/8 and fc00::/7. A shorter prefix includes public
// addresses, and a client at one could choose the address that it is counted by.
const (
	minPrefix4 = 8
	minPrefix6 = 7
)

func (c *config) readTrustedProxies(v value) {
	const mustBe = "an address range such as 10.0.0.0/8 or 192.0.2.7/32"
	for _, item := range v.items("a list of address ranges, such as [10.0.0.0/8]") {
		text, ok := item.scalar(mustBe)
		if !ok {
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			item.wrong(mustBe)
		case prefix.Addr().Is4In6():
			item.wrong("in the form of IPv4, such as 10.0.0.0/8")
		case prefix.Addr().Is4() && prefix.Bits() < minPrefix4, prefix.Addr().Is6() && prefix.Bits() < minPrefix6:
			item.wrong(fmt.Sprintf("your proxies' own range, at most a /%d (of IPv6 a /%d): a client inside it could choose the address that it is counted by", minPrefix4, minPrefix6))
		case prefix.Masked() != prefix:
			item.wrong(fmt.Sprintf("%v for the range, or %s for the one address", prefix.Masked(), netip.PrefixFrom(prefix.Addr(), prefix.Addr().BitLen())))
		}
		c.trustedProxies = append(c.trustedProxies, prefix)
	}
}

// warnings names what is allowed, but hardly meant.
func (c *config) warnings() []string {
	var all []string
	var unused []string
	for _, name := range slices.Sorted(maps.Keys(c.policies)) {
		all = append(all, c.policies[name].Warnings()...)
		if slices.Contains(routePolicies, name) {
			all = append(all, waitWarnings(c.policies[name])...)
		} else {
			unused = append(unused, fmt.Sprintf("%q", name))
		}
	}
	if more := len(unused) - 3; more > 0 {
		unused = append(unused[:3], fmt.Sprintf("and %d more", more))
	}
	if len(unused) > 0 {
		all = append(all, fmt.Sprintf("no route uses the policies %s; the routes use %s", strings.Join(unused, ", "), strings.Join(routePolicies, ", ")))
	}
	for _, name := range slices.Sorted(maps.Keys(c.dryRuns)) {
		all = append(all, c.dryRuns[name].Warnings()...)
	}
	all = append(all, c.modeWarnings()...)
	if c.tokens.any {
		all = append(all, "tokens is any: every invented token gets a fresh quota; that is for tests and load, not for clients")
	}
	if c.debugListen != "" && !isLoopback(c.debugListen) {
		all = append(all, fmt.Sprintf("debug_listen is %s, which is not on loopback: other machines may reach it, and it has no password", c.debugListen))
	}
	for _, s := range slices.Concat(c.backends.shards, c.backends.resharded, c.modes.roots) {
		if s.exposed {
			all = append(all, fmt.Sprintf("the URL of shard %q has a password; password_file keeps it out of the configuration", s.name))
		}
	}
	if s := &c.backends.shares; s.self != "" && !slices.Contains(s.list.Members, s.self) {
		all = append(all, fmt.Sprintf("shares.self is %s, which is not one of shares.members: until a list of members has it, this process holds no shares", s.self))
	}
	return all
}

// checkFlags returns what is wrong with the flags' file. A demo starts all the same, and
// sends clients where the flags say once the file is right.
func (c *config) checkFlags() error {
	if c.backends.flags == "" {
		return nil
	}
	if err := flagfile.Check(c.backends.flags); err != nil {
		return fmt.Errorf("the flags' file is wrong, until it is right all clients are on %s: %w", c.backends.serving, err)
	}
	return nil
}
