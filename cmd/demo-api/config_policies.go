package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/weir/throttler"
)

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

// dryRunSuffix ends the names of policies that are run dry: their counts are
// their own.
const dryRunSuffix = ".dry-run"

func (c *config) readDryRuns(r *reader, files map[string]policyFile) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !slices.Contains(routePolicies, name) {
			r.problem("dry_runs."+name+" is beside no route; the routes use "+strings.Join(routePolicies, ", "), "dry_runs", name)
			continue
		}
		if p := r.policy(name+dryRunSuffix, files[name], "dry_runs", name); p != nil {
			c.dryRuns[name] = p
		}
	}
}

// policy returns nil if the policy is wrong.
func (r *reader) policy(name string, file policyFile, at ...any) *throttler.Policy {
	before := len(r.problems)
	p := &throttler.Policy{Name: name}
	for i, l := range file.Limits {
		p.Limits = append(p.Limits, r.limit(l, slices.Concat(at, []any{"limits", i})...))
	}
	if len(r.problems) > before {
		return nil
	}
	err := p.Validate()
	if err == nil {
		return p
	}
	for i := range p.Limits { // which one is it?
		alone := throttler.Policy{Name: name, Limits: p.Limits[i : i+1]}
		if alone.Validate() != nil {
			at = slices.Concat(at, []any{"limits", i})
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
