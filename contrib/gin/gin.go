// Package weirgin limits the requests to applications of Gin.
//
//	engine.Use(gin.Recovery(), weirgin.WrapMiddleware(weir.Limit(t, core, weir.ClientIP())))
//
// Loggers, the recovery from panics, and authentication belong in front of the limit;
// compressors, and code that responds in place of a handler, behind it.
package weirgin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/weir-go/weir/middleware"
)

// WrapMiddleware returns limit as middleware of Gin. It aborts the chain of handlers if limit
// refuses the request. limit sees each status before it is sent, also one that a handler has only
// set, so that refunds by the status work. middleware.RoutePattern keys by Gin's route.
func WrapMiddleware(limit func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		served := false
		r := c.Request.WithContext(context.WithValue(c.Request.Context(), contextKey{}, c))
		r.Pattern = c.FullPath()
		limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			served = true
			c.Request, c.Writer = r, &writer{c.Writer, w}
			c.Next()
			// Gin sends a status that a handler has only set past c.Writer.
			if c.FullPath() != "" && len(c.Errors) == 0 && c.Writer.Status() != http.StatusOK {
				c.Writer.WriteHeaderNow()
			}
		})).ServeHTTP(c.Writer, r)
		if !served {
			c.Abort()
		}
	}
}

// Subject is [middleware.Subject] for a user that middleware of Gin has put into the context.
// It has no key outside of WrapMiddleware. Subject panics if subject is nil.
func Subject(subject func(c *gin.Context) (subject string, ok bool)) middleware.Key {
	if subject == nil {
		panic("weirgin: Subject: the function is nil")
	}
	return middleware.Subject(func(r *http.Request) (string, bool) {
		c, ok := r.Context().Value(contextKey{}).(*gin.Context)
		if !ok {
			return "", false
		}
		return subject(c)
	})
}

// contextKey is the key of the *gin.Context in a request's context.
type contextKey struct{}

// writer is Gin's writer. What it sends goes through the limit's.
type writer struct {
	gin.ResponseWriter
	target http.ResponseWriter
}

func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.target.WriteHeader(w.Status())
		w.ResponseWriter.WriteHeaderNow()
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	return w.target.Write(p)
}

func (w *writer) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	return io.WriteString(w.target, s)
}

func (w *writer) Flush() {
	w.WriteHeaderNow()
	_ = http.NewResponseController(w.target).Flush()
}

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.target).Hijack()
}

func (w *writer) Unwrap() http.ResponseWriter { return w.target }
