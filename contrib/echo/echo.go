// Package weirecho limits the requests to applications of Echo 4.
//
//	e.Use(weirecho.WrapMiddleware(weir.Limit(t, core, weir.ClientIP())))
//
// Loggers, the recovery from panics, and authentication belong in front of the limit;
// compressors behind it.
package weirecho

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/weir-go/weir/middleware"
)

// WrapMiddleware returns limit as middleware of Echo. It is [echo.WrapMiddleware] for which
// middleware.RoutePattern and [Subject] work.
func WrapMiddleware(limit func(http.Handler) http.Handler) echo.MiddlewareFunc {
	wrap := echo.WrapMiddleware(limit)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		limited := wrap(next)
		return func(c echo.Context) error {
			r := c.Request()
			r = r.WithContext(context.WithValue(r.Context(), contextKey{}, c))
			r.Pattern = c.Path()
			c.SetRequest(r)
			return limited(c)
		}
	}
}

// Subject is [middleware.Subject] for a user that middleware of Echo has put into the context.
// It has no key outside of WrapMiddleware. Subject panics if subject is nil.
func Subject(subject func(c echo.Context) (subject string, ok bool)) middleware.Key {
	if subject == nil {
		panic("weirecho: Subject: the function is nil")
	}
	return middleware.Subject(func(r *http.Request) (string, bool) {
		c, ok := r.Context().Value(contextKey{}).(echo.Context)
		if !ok {
			return "", false
		}
		return subject(c)
	})
}

// contextKey is the key of the echo.Context in a request's context.
type contextKey struct{}
