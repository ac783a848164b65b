package main

import (
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/weir-go/weir/config"
)

// debugRoutes returns the operator's routes, which a separate listener serves.
func debugRoutes(s *config.Stack, observed *observation, dry *dryRuns, client http.Handler) http.Handler {
	observed.page.Stats("backend", func() any { return s.Config.Backend })
	if s.Shares != nil {
		observed.page.Stats("shares", func() any { return s.Shares.Status() })
	}
	if s.Levels != nil {
		observed.page.Stats("consistency", func() any { return debugLevels(s) })
	}
	observed.page.Stats("dry_runs", func() any { return dry.debug() })
	r := chi.NewRouter()
	r.Use(uncached)
	r.NotFound(func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, "no such page; /debug lists them")
	})
	pages := map[string]string{
		"/debug/weir":             "a page: decisions, servers and refused keys, now and in the last minute",
		"/debug/weir?format=json": "counters of the backends since the start, and dry runs",
		"/debug/weir/client":      "a page about one client: what it has used, what refuses it, and, for operators who sign in, buttons that change that",
		"/metrics":                "decisions, servers and moves, for Prometheus",
	}
	list := func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, pages) }
	r.Get("/", list)
	r.Get("/debug", list)
	r.Get("/debug/", list)
	r.Method(http.MethodGet, "/debug/weir", observed.page.Handler())
	r.Handle("/debug/weir/client", client)
	r.Method(http.MethodGet, "/metrics", observed.metrics)
	return r
}

type debugDryRun struct {
	Allowed     int64 `json:"allowed"`
	WouldRefuse int64 `json:"would_refuse"`
}

func (d *dryRuns) debug() map[string]debugDryRun {
	runs := make(map[string]debugDryRun)
	for name, counts := range d.counts {
		runs[name] = debugDryRun{Allowed: counts.allowed.Load(), WouldRefuse: counts.refused.Load()}
	}
	return runs
}

type debugLevel struct {
	Level     string     `json:"consistency"`
	BothUntil *time.Time `json:"both_until,omitempty"` // of a change
}

// debugLevels returns the level of each policy in the configuration's levels.
func debugLevels(s *config.Stack) map[string]debugLevel {
	levels, now := make(map[string]debugLevel), s.Clock().Now()
	for name := range s.Config.Levels {
		state := s.Levels.State(name)
		m := debugLevel{Level: state.Level.String()}
		if state.BothUntil.After(now) {
			m.BothUntil = &state.BothUntil
		}
		levels[name] = m
	}
	return levels
}
