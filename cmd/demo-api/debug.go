package main

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/weir-go/weir/backend/fallback"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/backend/refusals"
	"github.com/weir-go/weir/backend/rollout"
	"github.com/weir-go/weir/backend/shadow"
)

// debugRoutes returns what is served to the operator, on a listener of its own.
func debugRoutes(b *backends, dry *dryRuns) http.Handler {
	r := chi.NewRouter()
	r.Use(uncached)
	r.NotFound(func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, "no such page; /debug lists them")
	})
	pages := map[string]string{"/debug/backend": "what the backends have done since the start, and dry runs"}
	list := func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, pages) }
	r.Get("/", list)
	r.Get("/debug", list)
	r.Get("/debug/", list)
	r.Get("/debug/backend", getBackend(b, dry))
	return r
}

// debugBackend is what /debug/backend answers: numbers, no keys.
type debugBackend struct {
	Backend      string                 `json:"backend"`
	Memory       *memorybackend.Stats   `json:"memory,omitempty"`
	Rollout      *rollout.Stats         `json:"rollout,omitempty"`
	Shadow       *shadow.Stats          `json:"shadow,omitempty"`
	Fallback     *fallback.Stats        `json:"fallback,omitempty"`
	RefusalCache *refusals.Stats        `json:"refusal_cache,omitempty"`
	DryRuns      map[string]debugDryRun `json:"dry_runs,omitempty"`
}

type debugDryRun struct {
	Allowed     int64 `json:"allowed"`
	WouldRefuse int64 `json:"would_refuse"`
}

func getBackend(b *backends, dry *dryRuns) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		answer := debugBackend{Backend: b.config.backends.serving, DryRuns: make(map[string]debugDryRun)}
		if b.memory != nil {
			s := b.memory.Stats()
			answer.Memory = &s
		}
		if b.rollout != nil {
			s := b.rollout.Stats()
			answer.Rollout = &s
		}
		if b.shadow != nil {
			s := b.shadow.Stats()
			answer.Shadow = &s
		}
		if b.fallback != nil {
			s := b.fallback.Stats()
			answer.Fallback = &s
		}
		if b.refusals != nil {
			s := b.refusals.Stats()
			answer.RefusalCache = &s
		}
		for name, counts := range dry.counts {
			answer.DryRuns[name] = debugDryRun{Allowed: counts.allowed.Load(), WouldRefuse: counts.refused.Load()}
		}
		writeJSON(w, http.StatusOK, answer)
	}
}
