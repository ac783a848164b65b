package main

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/weir-go/weir/middleware"
)

// caller keys requests by the subject of a token that the demo knows, and other requests by
// the client's address.
func (s *settings) caller() middleware.Key {
	return middleware.FirstOf(s.user(), s.address())
}

func (s *settings) user() middleware.Key {
	return middleware.BearerToken(func(_ *http.Request, token string) (string, bool) { return s.Tokens.subject(token) })
}

func (s *settings) address() middleware.Key {
	return middleware.ClientIP(&middleware.IPOptions{TrustedProxies: s.trustedProxies()})
}

// organisation keys requests by the organisation that the route names.
func organisation() middleware.Key {
	return middleware.KeyFunc(func(r *http.Request) (string, bool) { return organisationKey(chi.URLParam(r, "org")), true })
}

func organisationKey(name string) string { return "org:" + name }
