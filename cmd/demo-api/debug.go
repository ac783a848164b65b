package main

import (
	"net/http"

	"github.com/weir-go/weir/backend/rollout"
	"github.com/weir-go/weir/backend/shadow"
)

// debugBackend is what /debug/backend answers: numbers, no keys.
type debugBackend struct {
	Backend string                 `json:"backend"`
	Rollout *rollout.Stats         `json:"rollout,omitempty"`
	Shadow  *shadow.Stats          `json:"shadow,omitempty"`
	DryRuns map[string]debugDryRun `json:"dry_runs,omitempty"`
}

type debugDryRun struct {
	Allowed     int64 `json:"allowed"`
	WouldRefuse int64 `json:"would_refuse"`
}

// getBackend answers what the backends have done since the start.
func getBackend(b *backends, dry *dryRuns) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		answer := debugBackend{Backend: b.config.backends.serving, DryRuns: make(map[string]debugDryRun)}
		if b.rollout != nil {
			s := b.rollout.Stats()
			answer.Rollout = &s
		}
		if b.shadow != nil {
			s := b.shadow.Stats()
			answer.Shadow = &s
		}
		for name, counts := range dry.counts {
			answer.DryRuns[name] = debugDryRun{Allowed: counts.allowed.Load(), WouldRefuse: counts.refused.Load()}
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(encode(answer)) // the client may have left
	}
}
