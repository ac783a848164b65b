package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/fleet/modes"
	"github.com/weir-go/weir/fleet/synced"
	"github.com/weir-go/weir/throttler"
)

// modesConfig says in which mode each policy decides. It is empty, and nothing of it
// opened, if no policy of the file has a mode.
type modesConfig struct {
	policies map[string]modeConfig
	sync     time.Duration // of all that are synced, 0 for the default
	roots    []shardConfig // none: the shards
}

// modeConfig is the mode of one policy.
type modeConfig struct {
	mode, was modes.Mode
	low       float64 // 0 for the default
}

// syncs reports whether a policy is synced, or may be.
func (c *config) syncs() bool { return len(c.roots()) > 0 && len(c.syncable()) > 0 }

// lows are the lows of the policies that have one, and of their dry runs.
func (c *modesConfig) lows() map[string]float64 {
	lows := make(map[string]float64)
	for name, p := range c.policies {
		if p.low > 0 {
			lows[name], lows[name+dryRunSuffix] = p.low, p.low
		}
	}
	return lows
}

var modeNames = []string{modes.Exact.String(), modes.Leased.String(), modes.Synced.String()}

// modeFields are the keys of a policy that readMode reads.
var modeFields = []string{"mode", "was", "sync", "low"}

// readMode reads how the policy of that name decides.
func (c *config) readMode(name string, f map[string]value) {
	v := f["mode"]
	if v.missing() {
		for _, key := range modeFields[1:] {
			if !f[key].missing() {
				f[key].problem("%s is set, but there is no mode; it is exact, leased or synced", f[key].name())
			}
		}
		return
	}
	m := modeConfig{mode: v.mode()}
	m.was = m.mode
	if was := f["was"]; !was.missing() {
		m.was = was.mode()
	}
	if low := f["low"]; !low.missing() {
		m.low = low.part()
	}
	if sync := f["sync"]; !sync.missing() {
		every := sync.duration()
		switch {
		case every != 0 && (every < 10*time.Millisecond || every > time.Minute):
			sync.wrong("from 10ms to 1m")
		case c.modes.sync != 0 && c.modes.sync != every:
			sync.problem("%s is %v, but another policy's is %v; all are synced at once, so there is one for all", sync.name(), every, c.modes.sync)
		}
		c.modes.sync = every
	}
	c.modes.policies[name] = m
}

func (v value) mode() modes.Mode {
	m, _ := modes.ParseMode(v.oneOf(modeNames...)) // a problem says what is wrong
	return m
}

// part returns a number above 0 and at most 1.
func (v value) part() float64 {
	const mustBe = "a part of a bucket's capacity, above 0 and at most 1, such as 0.5"
	text, ok := v.scalar(mustBe)
	if !ok {
		return 0
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f > 0 && f <= 1) {
		v.wrong(mustBe)
		return 0
	}
	return f
}

// readRoots reads where processes agree on counts, if that is not at the shards'
// primaries.
func (c *config) readRoots(v value) {
	names := map[string]value{}
	for _, item := range v.items("a list of Redis servers, such as [127.0.0.1:6379]") {
		root := shardConfig{}
		if text, ok := item.peek(); ok {
			root.readServer(item, "a host and a port, such as 127.0.0.1:6379, or a URL, such as rediss://weir@127.0.0.1:6379/0")
			root.name = text
			if root.exposed {
				root.name = strings.Join(root.primary.Addrs, ",")
			}
		} else {
			f := item.fields("name", "primary", "sentinel", "tls", "username", "password_file")
			root.name = readName(f["name"], names, "root")
			root.readPrimary(item, f)
			root.readAccess(f)
		}
		if slices.ContainsFunc(c.modes.roots, func(o shardConfig) bool { return o.name == root.name }) {
			item.problem("%s is %s, as another is; each root is there once", item.name(), quoted(root.name))
		}
		c.modes.roots = append(c.modes.roots, root)
	}
	if len(c.modes.roots) > synced.MaxRoots {
		v.wrong(fmt.Sprintf("at most %d servers", synced.MaxRoots))
	}
	if !v.missing() && len(c.modes.policies) == 0 && !v.r.failed() {
		v.problem("%s is set, but no policy has a mode; write mode: synced in one", v.name())
	}
}

// roots returns the servers at which processes agree, or none if a shard is a Cluster or
// they are too many.
func (c *config) roots() []shardConfig {
	shards := c.backends.shards
	if c.backends.serving == reshardedName {
		shards = c.backends.resharded
	}
	switch {
	case len(c.modes.roots) > 0:
		return c.modes.roots
	case len(shards) > synced.MaxRoots, slices.ContainsFunc(shards, isCluster):
		return nil
	}
	return shards
}

func isCluster(s shardConfig) bool { return s.kind() == "cluster" }

// checkModes adds problems of modes that the backends and limits do not allow.
func (c *config) checkModes(policies, dryRuns value) {
	if policies.r.failed() {
		return
	}
	dry := make(map[string]value)
	for _, e := range dryRuns.entries(policiesMustBe) {
		dry[e.key] = e.value
	}
	for _, e := range policies.entries(policiesMustBe) {
		m, ok := c.modes.policies[e.key]
		if !ok {
			continue
		}
		at := e.value.field("mode")
		uses := func(mode modes.Mode) bool { return m.mode == mode || m.was == mode }
		switch {
		case uses(modes.Leased) && !c.backends.remote():
			at.problem("%s is leased, but counts live in memory, where a lease saves no round trip; write exact, or choose another backend", at.name())
		case uses(modes.Synced) && len(c.roots()) == 0:
			at.problem("%s is synced, but there are no shards to agree at that are single servers of Redis, at most %d; set roots, such as roots: [127.0.0.1:6379]", at.name(), synced.MaxRoots)
		}
		if !uses(modes.Synced) {
			continue
		}
		if err := synced.Supports(c.policies[e.key]); err != nil {
			at.problem("%s", withoutPackage(err))
		}
		if p := c.dryRuns[e.key]; p != nil && synced.Supports(p) != nil {
			dry[e.key].problem("%s", withoutPackage(synced.Supports(p)))
		}
	}
}

// modeWarnings names policies that are leased but charged together with exact ones.
func (c *config) modeWarnings() (all []string) {
	for _, take := range routeTakes {
		for i, name := range take {
			other := take[1-i]
			if c.modes.policies[name].mode == modes.Leased && c.modes.policies[other].mode == modes.Exact {
				all = append(all, fmt.Sprintf("policy %q is leased and %q is exact, but a decision charges both: it asks the backend each time, and leases cost calls on top; write mode: leased in both, or in neither", name, other))
			}
		}
	}
	return all
}

// withoutPackage returns the text of an error of synced, as a configuration shows it.
func withoutPackage(err error) string { return strings.TrimPrefix(err.Error(), "synced: ") }

// field returns the value of one key of a mapping that has been read.
func (v value) field(name string) value {
	for _, e := range v.entries("") {
		if e.key == name {
			return e.value
		}
	}
	return value{r: v.r, path: v.child(name), line: v.line}
}

// dryRunOf returns what a charge under the policy of that name is tried under in a dry
// run.
func (c *config) dryRunOf(name string) *throttler.Policy {
	if p := c.dryRuns[name]; p != nil {
		return p
	}
	return &throttler.Policy{Name: name + dryRunSuffix, Limits: c.policies[name].Limits}
}
