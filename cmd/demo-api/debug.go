package main

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"

	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/fleet/leased"
	"github.com/weir-go/weir/fleet/shares"
	"github.com/weir-go/weir/fleet/synced"
	"github.com/weir-go/weir/wrap/fallback"
	"github.com/weir-go/weir/wrap/refusals"
	"github.com/weir-go/weir/wrap/rollout"
	"github.com/weir-go/weir/wrap/shadow"
)

// debugRoutes returns what is served to the operator, on a listener of its own.
func debugRoutes(s *config.Stack, observed *observation, dry *dryRuns) http.Handler {
	if s.Shares != nil {
		observed.page.Stats("shares", func() any { return s.Shares.Status() })
	}
	if s.Modes != nil {
		observed.page.Stats("modes", func() any { return newDebugModes(s).Policies })
	}
	observed.page.Stats("dry_runs", func() any { return dry.debug() })
	r := chi.NewRouter()
	r.Use(uncached)
	r.NotFound(func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, "no such page; /debug lists them")
	})
	pages := map[string]string{
		"/debug/weir":    "a page: decisions, servers and refused keys, now and in the last minute",
		"/debug/backend": "what the backends have done since the start, and dry runs",
		"/metrics":       "decisions, servers and moves, for Prometheus",
	}
	list := func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, pages) }
	r.Get("/", list)
	r.Get("/debug", list)
	r.Get("/debug/", list)
	r.Method(http.MethodGet, "/debug/weir", observed.page.Handler())
	r.Get("/debug/backend", getBackend(s, dry))
	r.Method(http.MethodGet, "/metrics", observed.metrics)
	return r
}

// debugBackend is what /debug/backend answers: numbers, no keys.
type debugBackend struct {
	Backend      string                 `json:"backend"`
	Memory       *memorybackend.Stats   `json:"memory,omitempty"`
	Shares       *shares.Status         `json:"shares,omitempty"`
	Rollout      *rollout.Stats         `json:"rollout,omitempty"`
	Shadow       *shadow.Stats          `json:"shadow,omitempty"`
	Fallback     *fallback.Stats        `json:"fallback,omitempty"`
	RefusalCache *refusals.Stats        `json:"refusal_cache,omitempty"`
	Modes        *debugModes            `json:"modes,omitempty"`
	Servers      []debugServer          `json:"servers,omitempty"` // of Redis, as of their last checks
	DryRuns      map[string]debugDryRun `json:"dry_runs,omitempty"`
}

// debugServer is what is known of a Redis server.
type debugServer struct {
	Shard   string  `json:"shard"`
	Server  string  `json:"server"`
	Checked string  `json:"checked"`          // when
	Error   string  `json:"error,omitempty"`  // why it does not answer
	Open    bool    `json:"breaker_open"`     // it is sent no decisions
	Role    string  `json:"role,omitempty"`   // "master" or "slave", if it reports it
	Cut     string  `json:"cut,omitempty"`    // why a replica is not asked
	Lag     float64 `json:"lag_seconds"`      // of a replica, at most
	Offset  int64   `json:"offset,omitempty"` // in the sequence of writes

	// How far this process' clock is ahead, and what that is good to.
	Skew       *float64 `json:"skew_seconds,omitempty"`
	SkewWithin *float64 `json:"skew_within_seconds,omitempty"`
}

func debugServers(all []redisbackend.ServerState) []debugServer {
	servers := make([]debugServer, len(all))
	for i, s := range all {
		servers[i] = debugServer{
			Shard: s.Shard, Server: s.Server, Checked: s.At.UTC().Format(time.RFC3339Nano),
			Open: s.Open, Role: s.Role, Lag: s.Lag.Seconds(), Offset: s.Offset,
		}
		if s.Err != nil {
			servers[i].Error = s.Err.Error()
		}
		if s.CutReason != nil {
			servers[i].Cut = s.CutReason.Error()
		}
		if s.SkewKnown {
			skew, within := s.Skew.Seconds(), s.SkewWithin.Seconds()
			servers[i].Skew, servers[i].SkewWithin = &skew, &within
		}
	}
	return servers
}

type debugDryRun struct {
	Allowed     int64 `json:"allowed"`
	WouldRefuse int64 `json:"would_refuse"`
}

func (d *dryRuns) debug() map[string]debugDryRun {
	all := make(map[string]debugDryRun)
	for name, counts := range d.counts {
		all[name] = debugDryRun{Allowed: counts.allowed.Load(), WouldRefuse: counts.refused.Load()}
	}
	return all
}

func getBackend(s *config.Stack, dry *dryRuns) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		answer := debugBackend{Backend: s.Config.Backend, Modes: newDebugModes(s), DryRuns: dry.debug()}
		if s.Memory != nil {
			answer.Memory = of(s.Memory.Stats())
		}
		if s.Shares != nil {
			answer.Shares = of(s.Shares.Status())
		}
		if s.Rollout != nil {
			answer.Rollout = of(s.Rollout.Stats())
		}
		if s.Shadow != nil {
			answer.Shadow = of(s.Shadow.Stats())
		}
		if s.Fallback != nil {
			answer.Fallback = of(s.Fallback.Stats())
		}
		if s.Refusals != nil {
			answer.RefusalCache = of(s.Refusals.Stats())
		}
		for _, name := range slices.Sorted(maps.Keys(s.Redis)) {
			answer.Servers = append(answer.Servers, debugServers(s.Redis[name].Servers())...)
		}
		writeJSON(w, http.StatusOK, answer)
	}
}

func of[T any](v T) *T { return &v }

// debugModes is what /debug/backend says of modes.
type debugModes struct {
	Policies map[string]debugMode `json:"policies"`
	Leased   *leased.Stats        `json:"leased,omitempty"`
	Synced   *synced.Stats        `json:"synced,omitempty"`
}

type debugMode struct {
	Mode      string     `json:"mode"`
	BothUntil *time.Time `json:"both_until,omitempty"` // of a change
}

func newDebugModes(s *config.Stack) *debugModes {
	if s.Modes == nil {
		return nil
	}
	d := &debugModes{Policies: make(map[string]debugMode)}
	now := s.Clock().Now()
	for name := range s.Config.Modes {
		state := s.Modes.Of(name)
		m := debugMode{Mode: state.Mode.String()}
		if state.BothUntil.After(now) {
			m.BothUntil = &state.BothUntil
		}
		d.Policies[name] = m
	}
	if s.Leased != nil {
		d.Leased = of(s.Leased.Stats())
	}
	if s.Synced != nil {
		d.Synced = of(s.Synced.Stats())
	}
	return d
}
