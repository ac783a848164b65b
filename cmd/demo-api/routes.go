package main

import (
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// routes returns the API: which route is limited by which policy.
func routes(c *config, b *backends, log *slog.Logger) http.Handler {
	t := throttler.New(b.serving, nil)
	options := &middleware.Options{
		Deadline:         c.deadline,
		DocumentationURL: "https://github.com/weir-go/weir/blob/main/docs/headers.md",
		RateLimitFields:  true,
		ExposeHeaders:    true,
		OnError: func(r *http.Request, err error) {
			log.Warn("no decision", "route", chi.RouteContext(r.Context()).RoutePattern(), "error", err)
		},
	}
	if c.failClosed {
		options.OnFailure = middleware.Closed
	}
	dry := newDryRuns(c, t, *options)
	limit := func(policy string) func(http.Handler) http.Handler {
		// What the configuration says was checked when it was read.
		enforce := must(middleware.New(t, middleware.Limit(c.policies[policy], caller).CostReported(), options))
		try := dry.beside(charged{policy, caller})
		return func(next http.Handler) http.Handler { return try(enforce(next)) }
	}

	r := chi.NewRouter()
	r.Use(chimiddleware.Recoverer, chimiddleware.GetHead)
	// Who speaks to us is the client, unless that is a proxy that we trust to
	// say who does. What a proxy leaves unsaid counts for the proxy.
	r.Use(chimiddleware.ClientIPFromRemoteAddr)
	if len(c.trustedProxies) > 0 {
		r.Use(chimiddleware.ClientIPFromXFF(c.trustedProxies...))
	}
	r.NotFound(notFound)
	r.MethodNotAllowed(methodNotAllowed)

	r.Group(func(r chi.Router) {
		r.Use(limit(corePolicy))
		r.Get("/repos/{owner}/{name}", getRepo)
		r.Get("/slow", getSlow)
		r.Get("/export", getExport)
	})
	// A member within an organisation: one decision about both, all or nothing.
	chain := middleware.All(middleware.Limit(c.policies[orgPolicy], middleware.KeyFunc(organisation)), middleware.Limit(c.policies[memberPolicy], caller))
	r.With(dry.beside(charged{orgPolicy, middleware.KeyFunc(organisation)}, charged{memberPolicy, caller}), must(middleware.New(t, chain, options))).Get("/orgs/{org}/feed", getFeed)
	r.With(limit(searchPolicy)).Get("/search", getSearch)
	r.With(limit(createTokenPolicy)).Post("/auth/token", postToken)

	status := &middleware.StatusOptions{Deadline: c.deadline, OnError: options.OnError}
	var all []middleware.Classifier
	for _, name := range c.policyNames() {
		if name != orgPolicy && name != memberPolicy { // which say nothing without an organisation
			all = append(all, middleware.Limit(c.policies[name], caller))
		}
	}
	r.Method(http.MethodGet, "/rate_limit", must(middleware.Status(t, middleware.All(all...), status)))
	r.Method(http.MethodGet, "/orgs/{org}/rate_limit", must(middleware.Status(t, chain, status)))
	r.Get("/healthz", getHealth)
	r.Get("/debug/backend", getBackend(b, dry))
	return r
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
