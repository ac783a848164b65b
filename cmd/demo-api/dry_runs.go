package main

import (
	"net/http"
	"sync/atomic"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// dryRuns tries policies out beside those that are enforced, and counts what
// they would do.
type dryRuns struct {
	config    *config
	throttler *throttler.Throttler
	options   middleware.Options
	counts    map[string]*dryRunCounts // by the policy beside which one is tried
}

type dryRunCounts struct{ allowed, refused atomic.Int64 }

func newDryRuns(c *config, t *throttler.Throttler, options middleware.Options) *dryRuns {
	d := &dryRuns{config: c, throttler: t, options: options, counts: make(map[string]*dryRunCounts)}
	for name := range c.dryRuns {
		d.counts[name] = new(dryRunCounts)
	}
	d.options.DryRun = d.count
	return d
}

// charged is a policy and whom it charges.
type charged struct {
	policy string
	key    middleware.Key
}

// beside returns middleware that tries out what stands beside these policies,
// if there is something. In a chain, the policies that have nothing beside them
// are tried as they are: the charges of a chain are decided together.
func (d *dryRuns) beside(all ...charged) func(http.Handler) http.Handler {
	var classifiers []middleware.Classifier
	found := false
	for _, c := range all {
		policy := d.config.dryRuns[c.policy]
		found = found || policy != nil
		if policy == nil {
			policy = &throttler.Policy{Name: c.policy + dryRunSuffix, Limits: d.config.policies[c.policy].Limits}
		}
		classifiers = append(classifiers, middleware.Limit(policy, c.key))
	}
	if !found {
		return func(next http.Handler) http.Handler { return next }
	}
	return must(middleware.New(d.throttler, middleware.All(classifiers...).CostReported(), &d.options))
}

// count counts a decision for each policy that is tried in it.
func (d *dryRuns) count(_ *http.Request, decision throttler.Decision) {
	refused := make(map[string]bool)
	for i := range decision.Limits {
		s := &decision.Limits[i]
		refused[s.Policy.Name] = refused[s.Policy.Name] || s.Refused
	}
	for name, counts := range d.counts {
		wouldRefuse, ok := refused[name+dryRunSuffix]
		switch {
		case ok && wouldRefuse:
			counts.refused.Add(1)
		case ok:
			counts.allowed.Add(1)
		}
	}
}
