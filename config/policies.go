package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/local/modes"
	"github.com/weir-go/weir/local/shares"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// policy is a policy of the file. Its short form is a limit, or a list of limits.
type policy struct {
	dryRun
	Unit      quota.Unit       `is:"requests, tokens, input-tokens or output-tokens"`
	Parent    string           `is:"the name of a policy that is charged, too"`
	ParentKey string           `is:"the key that the parent is charged for"`
	OnFailure *fallback.Choice `is:"open, local or closed"`
	Mode      *modes.Mode      `is:"exact, leased or synced"`
	Was       *modes.Mode      `is:"exact, leased or synced"` // the mode that it begins in; Mode if nil
	Sync      time.Duration
	Low       part
}

// dryRun is the part of a policy that a dry run has, too.
type dryRun struct {
	Limits limits `is:"a list of limits"`
}

func (*dryRun) long(node *yaml.Node) *yaml.Node {
	if isLimit(node) || node.Kind == yaml.SequenceNode {
		return under("limits", node)
	}
	return node
}

// limits are a list of limits. A single limit may be written without the list.
type limits []limit

func (*limits) long(node *yaml.Node) *yaml.Node {
	if isLimit(node) {
		return &yaml.Node{Kind: yaml.SequenceNode, Line: node.Line, Content: []*yaml.Node{node}}
	}
	return node
}

// isLimit reports whether a node is a limit in words, or has the key quota.
func isLimit(node *yaml.Node) bool {
	if node.Kind == yaml.MappingNode {
		for i := 0; i < len(node.Content); i += 2 {
			if node.Content[i].Value == "quota" {
				return true
			}
		}
	}
	return node.Kind == yaml.ScalarNode
}

// under returns a mapping of key to node, its short form.
func under(key string, node *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Line: node.Line, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: key, Line: node.Line}, node}}
}

// limit is a quota.Limit that may be a mapping, with its fields as keys.
type limit struct {
	Quota     int64         `yaml:",required"`
	Window    time.Duration `yaml:",required"`
	Algorithm quota.Algorithm
	Aligned   bool
	Burst     int64
	MaxWait   time.Duration
	Calendar  quota.Calendar `yaml:"-"` // only in words
}

func (l *limit) UnmarshalText(text []byte) error { return (*quota.Limit)(l).UnmarshalText(text) }

// part is a number above 0 and at most 1.
type part float64

func (p *part) UnmarshalText(text []byte) error {
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(f > 0 && f <= 1) {
		return errors.New("it must be a part of a bucket's capacity, above 0 and at most 1, such as 0.5")
	}
	*p = part(f)
	return nil
}

// dryRunSuffix ends the names of dry runs, which have separate counts.
const dryRunSuffix = ".dry-run"

// policies checks the policies and dry runs of the file, and sets c.Policies and c.DryRuns.
func (c *Config) policies(r *reader) {
	var used []string
	for _, p := range c.options.Policies {
		used = append(used, p.Name)
		if _, ok := c.keys.Policies[p.Name]; !ok {
			c.Policies[p.Name] = c.preset(r, p)
		}
	}
	for _, name := range sorted(c.keys.Policies) {
		at := r.at("policies", name)
		c.Policies[name] = r.policy(name, at, c.keys.Policies[name].Limits)
		p := c.keys.Policies[name]
		c.Policies[name].Unit, c.Policies[name].Parent, c.Policies[name].ParentKey = p.Unit, p.Parent, p.ParentKey
		// A policy that the program does not use is worth a warning. If its name is
		// misspelled, a limit other than the one meant stays in force.
		if meant := nearest(name, used); meant != "" && !slices.Contains(used, name) {
			r.problem(at, "%s is no policy of the program; did you mean %s? It uses %s", at, meant, strings.Join(used, ", "))
		}
		if strings.HasSuffix(name, dryRunSuffix) {
			r.problem(at, "%s is a name that ends in %s, as dry runs do; choose another", at, dryRunSuffix)
		}
	}
	for _, name := range sorted(c.keys.DryRuns) {
		at := r.at("dry_runs", name)
		if p := r.policy(name+dryRunSuffix, at, c.keys.DryRuns[name].Limits); c.Policies[name] != nil {
			c.DryRuns[name] = p
			continue
		}
		r.problem(at, "%s is next to no policy; %s", at, c.whichPolicy(name))
	}
}

// whichPolicy lists the policies, after a suggestion if name misspells one.
func (c *Config) whichPolicy(name string) string {
	known := sorted(c.Policies)
	return didYouMean(name, known, "the policies are "+strings.Join(known[:min(len(known), 20)], ", "))
}

// parents checks the parents of the file's policies.
func (c *Config) parents(r *reader) {
	all, found := policies.Content{Policies: slices.Collect(maps.Values(c.Policies))}, false
	for _, name := range sorted(c.keys.Policies) {
		p, at := c.keys.Policies[name], r.at("policies", name)
		for _, key := range []string{"parent", "parent_key"} {
			if at.at(key).has() && c.options.Table == nil {
				r.problem(at.at(key), "%s is set, but the program has no table of policies, which parents need; remove it", at.at(key))
			}
		}
		if p.Parent != "" && c.Policies[p.Parent] == nil {
			r.problem(at.at("parent"), "%s is %q, which is no policy; %s", at.at("parent"), p.Parent, c.whichPolicy(p.Parent))
		}
		found = found || p.Parent+p.ParentKey != ""
	}
	if !found || len(r.problems) > 0 {
		return // a policy has a problem already
	}
	var scratch policies.Table // it validates the tree
	if err := scratch.Source("file").Edit(func(e *policies.Edit) { e.Replace(all) }); err != nil {
		r.problem(r.at("policies"), "%s", withoutPackage(err))
	}
}

// preset returns a policy of the program that the file leaves out.
func (c *Config) preset(r *reader, p *quota.Policy) *quota.Policy {
	if len(p.Limits) == 0 {
		at := r.at("policies", p.Name)
		r.problem(at, "%s is missing, and the program uses it; write its limits, such as %s: 60 per 1h", at, p.Name)
		return p
	}
	p = &quota.Policy{Name: p.Name, Limits: slices.Clone(p.Limits), Unit: p.Unit, Parent: p.Parent, ParentKey: p.ParentKey}
	if c.Backend == sharesName {
		for i := range p.Limits {
			p.Limits[i].Algorithm = quota.TokenBucket
		}
	}
	return p
}

// policy returns the policy at a place, and adds a problem if it is not valid.
func (r *reader) policy(name string, at *place, limits limits) *quota.Policy {
	p := &quota.Policy{Name: name}
	for _, l := range limits {
		p.Limits = append(p.Limits, quota.Limit(l))
	}
	if at.wrong {
		return p
	}
	if err := p.Validate(); err != nil {
		for i := range p.Limits { // which one is it?
			alone := quota.Policy{Name: name, Limits: p.Limits[i : i+1]}
			if alone.Validate() != nil && len(p.Limits) <= quota.MaxLimits {
				at = at.at("limits").item(i)
				break
			}
		}
		r.problem(at, "%s", withoutPackage(err))
	}
	return p
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// divisible adds a problem for each limit that the shares backend can't divide.
func (c *Config) divisible(r *reader) {
	if c.Backend != sharesName || len(r.problems) > 0 {
		return
	}
	check := func(p *quota.Policy, at *place) {
		if !at.has() {
			at = r.at("shares") // the policy is the program's
		}
		for i, l := range p.Limits {
			if why := shares.Unsupported(&l, len(c.keys.Shares.Members)); why != "" {
				r.problem(at, "policy %q: limit %d is %v, and the backend is shares; %s", p.Name, i, l, why)
			}
		}
	}
	for _, name := range sorted(c.Policies) {
		check(c.Policies[name], r.at("policies", name))
	}
	for _, name := range sorted(c.DryRuns) {
		check(c.DryRuns[name], r.at("dry_runs", name))
	}
}

// failures checks the choices for outages.
func (c *Config) failures(r *reader) {
	if c.Backend == sharesName && c.keys.Processes == 0 {
		c.keys.Processes = int64(kindOf(sharesName).servers(&c.keys))
	}
	local := func(at *place, choice *fallback.Choice) {
		if choice != nil && *choice == fallback.Local && c.keys.Processes == 0 && !r.at("processes").has() {
			r.problem(at, "%s is local, which needs processes: how many processes share the backend, such as processes: 3", at)
		}
	}
	local(r.at("on_failure"), c.keys.OnFailure)
	for _, name := range sorted(c.keys.Policies) {
		local(r.at("policies", name, "on_failure"), c.keys.Policies[name].OnFailure)
	}
	if c.keys.Processes > fallback.MaxProcesses {
		r.mustBe(r.at("processes"), fmt.Sprintf("at most %d", fallback.MaxProcesses))
	}
}

// modes checks the modes of policies, and sets c.Modes.
func (c *Config) modes(r *reader) {
	for _, name := range sorted(c.keys.Policies) {
		p, at := c.keys.Policies[name], r.at("policies", name)
		for _, key := range []string{"was", "sync", "low"} {
			if at.at(key).has() && p.Mode == nil {
				r.problem(at.at(key), "%s is set, but there is no mode; it is exact, leased or synced", at.at(key))
			}
		}
		if p.Mode == nil {
			continue
		}
		c.Modes[name] = *p.Mode
		r.within(at.at("sync"), p.Sync, 10*time.Millisecond, time.Minute)
		if c.sync != 0 && p.Sync != 0 && c.sync != p.Sync {
			r.problem(at.at("sync"), "%s is %v, but another policy's is %v; all are synced at once, so there is one for all", at.at("sync"), p.Sync, c.sync)
		}
		c.sync = cmp.Or(c.sync, p.Sync)
	}
	if len(r.problems) > 0 {
		return // a mode may need a key that has a problem
	}
	if r.at("roots").has() && len(c.Modes) == 0 && !c.options.Modes {
		r.problem(r.at("roots"), "roots is set, but no policy has a mode; write mode: synced in one")
	}
	for _, name := range sorted(c.Modes) {
		c.mode(r, name, r.at("policies", name, "mode"))
	}
}

// was returns the mode that the policy of that name begins in. It must have a mode.
func (c *Config) was(name string) modes.Mode {
	if p := c.keys.Policies[name]; p.Was != nil {
		return *p.Was
	}
	return c.Modes[name]
}

// mode checks that the policy of that name can be in its modes.
func (c *Config) mode(r *reader, name string, at *place) {
	uses := func(m modes.Mode) bool { return c.Modes[name] == m || c.was(name) == m }
	for _, m := range []modes.Mode{modes.Leased, modes.Synced} {
		if why := c.lacks(m); uses(m) && why != "" {
			r.problem(at, "%s is %v, but %s", at, m, why)
		}
	}
	if !uses(modes.Synced) {
		return
	}
	if err := synced.Supports(c.Policies[name]); err != nil {
		r.problem(at, "%s", withoutPackage(err))
	}
	if err := synced.Supports(c.DryRun(name)); err != nil && c.DryRuns[name] != nil {
		r.problem(r.at("dry_runs", name), "%s", withoutPackage(err))
	}
}
