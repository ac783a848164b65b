package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler"
)

// Names of the policies that the routes use.
const (
	corePolicy        = "core"
	searchPolicy      = "search"
	createTokenPolicy = "auth.createToken"
	orgPolicy         = "org"        // what an organisation's members may do together
	memberPolicy      = "org.member" // and each of them
	secondaryPolicy   = "secondary"  // all requests of a caller, whatever they cost elsewhere
)

// routePolicies has these names.
var routePolicies = []string{corePolicy, searchPolicy, createTokenPolicy, orgPolicy, memberPolicy, secondaryPolicy}

// routeTakes are the policies that one decision charges together.
var routeTakes = [][2]string{{corePolicy, secondaryPolicy}, {searchPolicy, secondaryPolicy}, {createTokenPolicy, secondaryPolicy}, {orgPolicy, memberPolicy}}

// dryRunSuffix ends the names of policies that are run dry: their counts are
// their own.
const dryRunSuffix = ".dry-run"

func defaultPolicies() map[string]*throttler.Policy {
	policies := map[string]*throttler.Policy{}
	for _, p := range []*throttler.Policy{
		{Name: corePolicy, Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}},
		{Name: searchPolicy, Limits: []throttler.Limit{{Quota: 30, Window: time.Minute}}},
		{Name: createTokenPolicy, Limits: []throttler.Limit{
			{Quota: 20, Window: time.Minute},
			{Quota: 5, Window: 3 * time.Second},
		}},
		{Name: orgPolicy, Limits: []throttler.Limit{{Quota: 100, Window: time.Minute}}},
		{Name: memberPolicy, Limits: []throttler.Limit{{Quota: 20, Window: time.Minute}}},
		{Name: secondaryPolicy, Limits: []throttler.Limit{{Quota: 900, Window: time.Minute}}},
	} {
		policies[p.Name] = p
	}
	return policies
}

const policiesMustBe = "a mapping of policies by their names"

func (c *config) readPolicies(v, processes value) {
	for _, e := range v.entries(policiesMustBe) {
		p, f := readPolicy(e.key, e.value, append([]string{"limits", "on_failure"}, modeFields...)...)
		if p != nil {
			c.policies[e.key] = p
		}
		if v := f["on_failure"]; !v.missing() {
			c.failures.policies[e.key] = c.readChoice(v, processes)
		}
		c.readMode(e.key, f)
		// A policy that no route uses is worth a warning. A misspelled one leaves the
		// default in force, which is another limit than the one that was meant.
		if meant := nearest(e.key, routePolicies); meant != "" && !slices.Contains(routePolicies, e.key) {
			e.value.problem("%s limits no route; did you mean %s? The routes use %s", e.value.name(), meant, strings.Join(routePolicies, ", "))
		}
		if strings.HasSuffix(e.key, dryRunSuffix) {
			e.value.problem("%s is a name that ends in %s, as those of dry runs do; choose another", e.value.name(), dryRunSuffix)
		}
	}
}

func (c *config) readDryRuns(v value) {
	for _, e := range v.entries(policiesMustBe) {
		if !slices.Contains(routePolicies, e.key) {
			e.value.problem("%s limits no route; %s", e.value.name(), didYouMean(e.key, routePolicies, "the routes use "+strings.Join(routePolicies, ", ")))
			continue
		}
		if p, _ := readPolicy(e.key+dryRunSuffix, e.value, "limits"); p != nil {
			c.dryRuns[e.key] = p
		}
	}
}

// readPolicy returns the policy v, or nil if it is wrong, and what v has under keys.
func readPolicy(name string, v value, keys ...string) (*throttler.Policy, map[string]value) {
	before := len(v.r.problems)
	f := v.fields(keys...)
	p := &throttler.Policy{Name: name}
	limits := f["limits"].items("a list of limits")
	for _, item := range limits {
		p.Limits = append(p.Limits, readLimit(item))
	}
	if len(v.r.problems) > before {
		return nil, f
	}
	err := p.Validate()
	if err == nil {
		return p, f
	}
	at := v
	for i := range p.Limits { // which one is it?
		alone := throttler.Policy{Name: name, Limits: p.Limits[i : i+1]}
		if alone.Validate() != nil && len(p.Limits) <= quota.MaxLimits {
			at = limits[i]
			break
		}
	}
	at.problem("%s", strings.TrimPrefix(err.Error(), "quota: "))
	return nil, f
}

// readLimit reads a limit as quota.ParseLimit does, or as a mapping.
func readLimit(v value) throttler.Limit {
	if text, ok := v.peek(); ok {
		l, err := quota.ParseLimit(text)
		if err != nil {
			v.problem("%s: %s", v.name(), strings.TrimPrefix(err.Error(), "quota: "))
		}
		return l
	}
	f := v.fields("quota", "window", "algorithm", "aligned", "burst", "max_wait")
	l := throttler.Limit{Quota: f["quota"].whole(), Window: f["window"].window()}
	if a := f["algorithm"]; !a.missing() {
		if text, ok := a.scalar("the name of an algorithm"); ok {
			var err error
			if l.Algorithm, err = quota.ParseAlgorithm(text); err != nil {
				a.problem("%s", strings.TrimPrefix(err.Error(), "quota: "))
			}
		}
	}
	if a := f["aligned"]; !a.missing() {
		l.Aligned = a.oneOf("true", "false") == "true"
	}
	if b := f["burst"]; !b.missing() {
		l.Burst = b.whole()
	}
	if w := f["max_wait"]; !w.missing() {
		l.MaxWait = w.duration()
	}
	return l
}

// longestWait returns how long a request may wait for its start under l.
func longestWait(l throttler.Limit) time.Duration {
	if !l.Algorithm.Queues() {
		return 0
	}
	return time.Duration(float64(l.Capacity()-1) / float64(l.Quota) * float64(l.Window))
}

// waitWarnings names the limits under which a request may wait for longer than
// the server gives others: its client, or a proxy, will hardly wait that long.
func waitWarnings(p *throttler.Policy) []string {
	var all []string
	for i, l := range p.Limits {
		wait := longestWait(l).Round(time.Millisecond)
		for _, bound := range []struct {
			time time.Duration
			what string
		}{
			{writeTimeout, "the server's write timeout of %v"},
			{drainTimeout, "the %v that requests in flight have when the demo ends"},
		} {
			if wait > bound.time {
				all = append(all, fmt.Sprintf("policy %q: limit %d, %v, lets a request wait up to %v for its start, longer than "+bound.what+"; set max_wait", p.Name, i, l, wait, bound.time))
				break
			}
		}
	}
	return all
}
