package main

import (
	"net/http"
	"sync/atomic"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// dryRuns evaluates policies next to the enforced ones, and counts their decisions.
type dryRuns struct {
	config *config.Config
	counts map[string]*dryRunCounts // by the enforced policy
}

type dryRunCounts struct{ allowed, refused atomic.Int64 }

func newDryRuns(c *config.Config) *dryRuns {
	d := &dryRuns{config: c, counts: make(map[string]*dryRunCounts)}
	for name := range c.DryRuns {
		d.counts[name] = new(dryRunCounts)
	}
	return d
}

// classifiers returns the classifiers that are tried next to these charges, or nil. They are
// decided together, so a charge without a dry run is tried under its own policy.
func (d *dryRuns) classifiers(charges []charge) []middleware.Classifier {
	var classifiers []middleware.Classifier
	found := false
	for _, c := range charges {
		found = found || d.config.DryRuns[c.policy] != nil
		classifiers = append(classifiers, c.classifier(d.config.DryRun(c.policy)))
	}
	if !found {
		return nil
	}
	return classifiers
}

// count counts a decision for each policy that was tried in it.
func (d *dryRuns) count(_ *http.Request, decision throttler.Decision) {
	refused := make(map[string]bool)
	for _, s := range decision.Limits() {
		refused[s.Policy.Name] = refused[s.Policy.Name] || s.Refused
	}
	for name, counts := range d.counts {
		wouldRefuse, ok := refused[d.config.DryRuns[name].Name]
		switch {
		case ok && wouldRefuse:
			counts.refused.Add(1)
		case ok:
			counts.allowed.Add(1)
		}
	}
}
