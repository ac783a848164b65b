package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/shares"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// policy is a policy of the file. Its short form is a limit, or a list of limits.
type policy struct {
	Limits    limits
	Unit      quota.Unit
	Hidden    bool
	Parent    string
	ParentKey string             `yaml:"parent_key"`
	OnFailure *fallback.Choice   `yaml:"on_failure"`
	Level     *consistency.Level `yaml:"consistency"`
	Was       *consistency.Level // the level that it begins at; Level if nil
	Sync      duration
	Low       part
}

func (p *policy) UnmarshalYAML(node *yaml.Node) error {
	type long policy
	return shortForm(node, &p.Limits, (*long)(p))
}

// dryRun is the part of a policy that a dry run has, too.
type dryRun struct{ Limits limits }

func (r *dryRun) UnmarshalYAML(node *yaml.Node) error {
	type long dryRun
	return shortForm(node, &r.Limits, (*long)(r))
}

// shortForm decodes a node as limits, if it has their form, or as a mapping with limits.
func shortForm(node *yaml.Node, limits *limits, long any) error {
	var first struct{ Quota yaml.Node }
	if node.Kind == yaml.MappingNode && (node.Decode(&first) != nil || first.Quota.Kind == 0) {
		return load(node, long)
	}
	return load(node, limits)
}

// limits are a list of limits. A single limit may be written without the list.
type limits []limit

func (l *limits) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.SequenceNode {
		return load(node, (*[]limit)(l))
	}
	*l = make(limits, 1)
	return load(node, &(*l)[0])
}

// limit is a quota.Limit in words, or a mapping.
type limit quota.Limit

func (l *limit) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return (*quota.Limit)(l).UnmarshalText([]byte(node.Value))
	}
	var k struct {
		Quota     integer
		Window    duration
		Algorithm quota.Algorithm
		Aligned   bool
		Burst     integer
		MaxWait   duration `yaml:"max_wait"`
	}
	err := load(node, &k)
	*l = limit{Quota: int64(k.Quota), Window: time.Duration(k.Window), Algorithm: k.Algorithm, Aligned: k.Aligned, Burst: int64(k.Burst), MaxWait: time.Duration(k.MaxWait)}
	return err
}

// dryRunSuffix ends the names of dry runs, which have separate counts.
const dryRunSuffix = ".dry-run"

// policies checks the policies and dry runs of the file, and sets c.Policies and c.DryRuns.
func (c *Config) policies(d *document) {
	var used []string
	for _, p := range c.options.Policies {
		used = append(used, p.Name)
		if !d.contains(path{"policies", p.Name}) || d.wrong[path{"policies", p.Name}.String()] {
			c.Policies[p.Name] = c.preset(d, p)
		}
	}
	for _, name := range sorted(c.keys.Policies) {
		p, place := c.keys.Policies[name], path{"policies", name}
		c.Policies[name] = d.policy(name, place, p.Limits)
		c.Policies[name].Unit, c.Policies[name].Hidden = p.Unit, p.Hidden
		c.Policies[name].Parent, c.Policies[name].ParentKey = p.Parent, p.ParentKey
		// A policy that the program does not use is worth a warning. If its name is
		// misspelled, a limit other than the one meant stays in force.
		if similar := Nearest(name, used); similar != "" && !slices.Contains(used, name) {
			d.problem(place, "%s is no policy of the program; did you mean %s? It uses %s", place, similar, strings.Join(used, ", "))
		}
		if strings.HasSuffix(name, dryRunSuffix) {
			d.problem(place, "%s is a name that ends in %s, as dry runs do; choose another", place, dryRunSuffix)
		}
	}
	for _, name := range sorted(c.keys.DryRuns) {
		place := path{"dry_runs", name}
		p := d.policy(name+dryRunSuffix, place, c.keys.DryRuns[name].Limits)
		if c.DryRuns[name] = p; c.Policies[name] == nil && !d.contains(path{"policies", name}) {
			d.problem(place, "%s is next to no policy; %s", place, c.whichPolicy(name))
		}
	}
}

// whichPolicy lists the policies, after a suggestion if name misspells one.
func (c *Config) whichPolicy(name string) string {
	names := sorted(c.Policies)
	return didYouMean(name, names, "the policies are "+strings.Join(names[:min(len(names), 20)], ", "))
}

// parents checks the parents of the file's policies.
func (c *Config) parents(d *document) {
	found := false
	for _, name := range sorted(c.keys.Policies) {
		p, place := c.keys.Policies[name], path{"policies", name}
		if p.Parent == "" && p.ParentKey == "" {
			continue
		}
		if found = true; c.options.Table == nil {
			d.problem(place, "%s has a parent, but the program has no table of policies, which parents need; remove it", place)
		}
		if p.Parent != "" && c.Policies[p.Parent] == nil {
			d.problem(place.child("parent"), "%s is %q, which is no policy; %s", place.child("parent"), p.Parent, c.whichPolicy(p.Parent))
		}
	}
	if !found || len(d.problems) > 0 {
		return // a policy has a problem already
	}
	var scratch policies.Table // it validates the tree
	content := policies.Content{Policies: slices.Collect(maps.Values(c.Policies))}
	if err := scratch.Source("file").Edit(func(e *policies.Edit) { e.Replace(content) }); err != nil {
		d.problem(path{"policies"}, "%s", withoutPackage(err))
	}
}

// preset returns a policy of the program that the file leaves out.
func (c *Config) preset(d *document, p *quota.Policy) *quota.Policy {
	if len(p.Limits) == 0 {
		place := path{"policies", p.Name}
		d.problem(place, "%s is missing, and the program uses it; write its limits, such as %s: 60 per 1h", place, p.Name)
		return p
	}
	p = &quota.Policy{Name: p.Name, Limits: slices.Clone(p.Limits), Unit: p.Unit, Hidden: p.Hidden, Parent: p.Parent, ParentKey: p.ParentKey}
	if c.Backend == sharesName {
		for i := range p.Limits {
			p.Limits[i].Algorithm = quota.TokenBucket
		}
	}
	return p
}

// policy returns the policy at a place, and adds a problem if it is not valid.
func (d *document) policy(name string, place path, limits limits) *quota.Policy {
	p, before := &quota.Policy{Name: name}, len(d.problems)
	for i, l := range limits {
		p.Limits = append(p.Limits, quota.Limit(l))
		if l.Quota == 0 {
			d.mustBe(d.limitAt(place, i).child("quota"), wholeMustBe)
		}
		if l.Window == 0 && l.Calendar.IsZero() {
			d.mustBe(d.limitAt(place, i).child("window"), durationMustBe)
		}
	}
	if len(d.problems) > before {
		return p
	}
	if err := p.Validate(); err != nil {
		for i := range p.Limits { // which one is it?
			alone := quota.Policy{Name: name, Limits: p.Limits[i : i+1]}
			if alone.Validate() != nil && len(p.Limits) <= quota.MaxLimits {
				place = d.limitAt(place, i)
				break
			}
		}
		d.problem(place, "%s", withoutPackage(err))
	}
	return p
}

// limitAt returns the path of a limit of the policy at a place.
func (d *document) limitAt(place path, i int) path {
	if d.contains(place.child("limits")) {
		place = place.child("limits")
	}
	if node := resolved(d.get(place)); node != nil && node.Kind == yaml.SequenceNode {
		place = place.item(i)
	}
	return place
}

// checkRange adds a problem if a time is out of bounds. Zero is no time.
func (d *document) checkRange(p path, value, least, greatest time.Duration) {
	if value != 0 && (value < least || value > greatest) {
		d.mustBe(p, fmt.Sprintf("from %v to %v", least, greatest))
	}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// divisible adds a problem for each limit that the shares backend can't divide.
func (c *Config) divisible(d *document) {
	if c.Backend != sharesName || len(d.problems) > 0 {
		return
	}
	check := func(p *quota.Policy, place path) {
		if !d.contains(place) {
			place = path{"shares"} // the policy is the program's
		}
		for i, l := range p.Limits {
			if reason := shares.Unsupported(&l, len(c.keys.Shares.Members)); reason != "" {
				d.problem(place, "policy %q: limit %d is %v, and the backend is shares; %s", p.Name, i, l, reason)
			}
		}
	}
	for _, name := range sorted(c.Policies) {
		check(c.Policies[name], path{"policies", name})
	}
	for _, name := range sorted(c.DryRuns) {
		check(c.DryRuns[name], path{"dry_runs", name})
	}
}

// failures checks the choices for outages, and completes processes.
func (c *Config) failures(d *document) {
	if c.Backend == sharesName && c.keys.Processes == 0 {
		c.keys.Processes = integer(kindOf(sharesName).servers(&c.keys))
	}
	local := func(place path, choice *fallback.Choice) {
		if choice != nil && *choice == fallback.Local && c.keys.Processes == 0 && !d.contains(path{"processes"}) {
			d.problem(place, "%s is local, which needs processes: how many processes share the backend, such as processes: 3", place)
		}
	}
	local(path{"on_failure"}, c.keys.OnFailure)
	for _, name := range sorted(c.keys.Policies) {
		local(path{"policies", name, "on_failure"}, c.keys.Policies[name].OnFailure)
	}
	if c.keys.Processes > fallback.MaxProcesses {
		d.mustBe(path{"processes"}, fmt.Sprintf("at most %d", fallback.MaxProcesses))
	}
}

// levels checks the levels of policies, and sets c.Levels.
func (c *Config) levels(d *document) {
	for _, name := range sorted(c.keys.Policies) {
		p, place := c.keys.Policies[name], path{"policies", name}
		if p.Level == nil {
			for _, key := range []string{"was", "sync", "low"} {
				if d.contains(place.child(key)) {
					d.problem(place.child(key), "%s is set, but there is no consistency; it is exact, leased or synced", place.child(key))
				}
			}
			continue
		}
		c.Levels[name] = *p.Level
		sync := time.Duration(p.Sync)
		d.checkRange(place.child("sync"), sync, 10*time.Millisecond, time.Minute)
		if c.sync != 0 && sync != 0 && c.sync != sync {
			d.problem(place.child("sync"), "%s is %v, but another policy's is %v; all are synced at once, so there is one for all", place.child("sync"), sync, c.sync)
		}
		c.sync = cmp.Or(c.sync, sync)
	}
	if len(d.problems) > 0 {
		return // a level may need a key that has a problem
	}
	if d.contains(path{"roots"}) && len(c.Levels) == 0 && !c.options.Levels {
		d.problem(path{"roots"}, "roots is set, but no policy has a consistency; write consistency: synced in one")
	}
	for _, name := range sorted(c.Levels) {
		c.level(d, name)
	}
}

// initialLevel returns the level that the policy of that name begins in. It must have a level.
func (c *Config) initialLevel(name string) consistency.Level {
	if p := c.keys.Policies[name]; p.Was != nil {
		return *p.Was
	}
	return c.Levels[name]
}

// level checks that the policy of that name can be at its levels.
func (c *Config) level(d *document, name string) {
	policy := path{"policies", name}
	lacks := func(key string, m consistency.Level) {
		if reason := c.lacks(m); reason != "" {
			d.problem(policy.child(key), "%s is %v, but %s", policy.child(key), m, reason)
		}
	}
	level, was := c.Levels[name], c.initialLevel(name)
	lacks("consistency", level)
	if was != level {
		lacks("was", was)
	}
	if level != consistency.Synced && was != consistency.Synced {
		return
	}
	if err := synced.Supports(c.Policies[name]); err != nil && level == consistency.Synced {
		d.problem(policy.child("consistency"), "%s", withoutPackage(err))
	} else if err != nil {
		d.problem(policy.child("was"), "%s is synced: %s", policy.child("was"), withoutPackage(err))
	}
	if err := synced.Supports(c.DryRun(name)); err != nil && c.DryRuns[name] != nil {
		d.problem(path{"dry_runs", name}, "%s", withoutPackage(err))
	}
}
