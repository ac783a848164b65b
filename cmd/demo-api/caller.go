package main

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/weir-go/weir/middleware"
)

// caller is who is charged: the bearer of a token, else the client's address.
//
// The demo believes any token, and so anybody can have fresh quotas by making
// tokens up. An API that checks its callers puts that check before the limits,
// and charges the user whom it has found.
var caller = middleware.FirstOf(middleware.BearerToken(anyToken), middleware.ClientIP(nil))

func anyToken(_ *http.Request, token string) (string, bool) { return token, true }

// organisation is the one that the route names, whoever asks.
func organisation(r *http.Request) (key string, ok bool) {
	return "org:" + chi.URLParam(r, "org"), true
}
