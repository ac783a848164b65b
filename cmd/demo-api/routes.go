package main

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/weir-go/weir/config"
)

// routes returns the API's handler and the operator's.
func routes(program *settings, s *config.Stack, observed *observation, client http.Handler) (api, debug http.Handler, err error) {
	l := newLimits(s, observed)
	caller := program.caller()
	core := charge{policy: corePolicy, key: caller}
	export := charge{policy: corePolicy, key: caller, reported: true}
	search := charge{policy: searchPolicy, key: caller}
	createToken := charge{policy: createTokenPolicy, key: caller}
	organisation := organisation()
	org := charge{policy: orgPolicy, key: organisation}
	member := charge{policy: memberPolicy, key: caller, partition: &organisation}
	// GitHub's secondary limit also counts requests that are free under the other limits:
	// otherwise 304s would be unlimited.
	secondary := charge{policy: secondaryPolicy, key: caller, always: true}
	streams := charge{policy: streamsPolicy, key: caller}

	r := chi.NewRouter()
	r.Use(chimiddleware.Recoverer, uncached, chimiddleware.GetHead)
	r.NotFound(notFound)
	r.MethodNotAllowed(methodNotAllowed)

	r.With(l.take(core, secondary)).Get("/repos/{owner}/{name}", getRepo)
	r.With(l.take(core, secondary)).Get("/slow", getSlow)
	r.With(l.take(export, secondary)).Get("/export", getExport)
	r.With(l.take(search, secondary)).Get("/search", getSearch)
	r.With(l.take(createToken, secondary)).Post("/auth/token", postToken)
	r.With(l.take(secondary, streams)).Get("/stream", getStream)
	r.With(l.take(secondary)).Get("/upstream", waitsFor(s.Throttler, s.Config.Policies[upstreamPolicy]))
	// A caller's secondary count is one for all organisations: it is not within one.
	r.With(l.take(secondary, org, member)).Get("/orgs/{org}/feed", getFeed)

	r.Method(http.MethodGet, "/rate_limit", l.status(core, search, createToken, secondary))
	r.Method(http.MethodGet, "/orgs/{org}/rate_limit", l.status(org, member))
	r.Get("/healthz", getHealth)
	page := newPage(program, s, caller)
	r.Method(http.MethodGet, "/", page)
	r.Mount("/page", page)
	return r, debugRoutes(s, observed, l.dry, client), l.err
}
