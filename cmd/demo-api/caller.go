package main

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/weir-go/weir/middleware"
)

// caller is who is charged: the bearer of a token that the demo knows, else
// the client's address.
func (c *config) caller() middleware.KeyFunc {
	bearer := func(r *http.Request) (string, bool) {
		_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		s, ok := c.tokens.subject(strings.TrimSpace(token))
		return "subject:" + s, ok
	}
	return middleware.FirstOf(bearer, middleware.ClientIP(nil))
}

// organisation is the one that the route names, whoever asks.
func organisation(r *http.Request) (key string, ok bool) {
	return "org:" + chi.URLParam(r, "org"), true
}
