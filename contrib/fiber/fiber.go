// Package weirfiber limits the requests to applications of Fiber 3.
//
//	app.Use(recover.New(), weirfiber.WrapMiddleware(weir.Limit(t, core, weir.ClientIP())))
//
// Fiber's own adaptor for net/http calls the handlers after the limit has returned, so that a 304
// is not refunded, and units in flight are given back too early.
//
// Fiber sends a response after all handlers have returned, and does not notice before if the
// client has left. A unit in flight is given back before a streamed body has been sent.
package weirfiber

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"

	"github.com/weir-go/weir/middleware"
)

// WrapMiddleware returns limit as middleware of Fiber. It does not call the next handler if limit
// refuses the request. The limit sees the status of an error, too, because the application's
// ErrorHandler is called before WrapMiddleware returns nil. middleware.RoutePattern keys by the
// route if limit is one of its handlers, and not by app.Use, which comes before the route.
func WrapMiddleware(limit func(http.Handler) http.Handler) fiber.Handler {
	return func(c fiber.Ctx) error {
		r, err := newRequest(c.RequestCtx())
		if err != nil {
			return fiber.NewError(http.StatusBadRequest)
		}
		outer := c.Context()
		r = r.WithContext(context.WithValue(outer, contextKey{}, c))
		if path := c.Route().Path; fiber.RoutePatternMatch(c.Path(), path) {
			r.Pattern = path
		}
		res := &response{c: c, header: make(http.Header)}
		defer res.begin() // after a panic, too
		var failed error
		limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.SetContext(r.Context())
			defer c.SetContext(outer)
			c.Locals(contextKey{}, r)
			if err := c.Next(); err != nil {
				if failed = c.App().ErrorHandler(c, err); failed != nil {
					c.Status(http.StatusInternalServerError) // as Fiber's
				}
			}
			res.handler = fieldsOf(c)
			maps.Copy(w.Header(), res.handler)
			w.WriteHeader(c.Response().StatusCode())
		})).ServeHTTP(res, r)
		return failed
	}
}

// Request returns the request of the innermost limit in front, for middleware.SetCost and
// FromContext, or nil if there is none.
func Request(c fiber.Ctx) *http.Request {
	r, _ := c.Locals(contextKey{}).(*http.Request)
	return r
}

// Subject is [middleware.Subject] for a user that middleware of Fiber has put into the context.
// It has no key outside of WrapMiddleware. Subject panics if subject is nil.
func Subject(subject func(c fiber.Ctx) (subject string, ok bool)) middleware.Key {
	if subject == nil {
		panic("weirfiber: Subject: the function is nil")
	}
	return middleware.Subject(func(r *http.Request) (string, bool) {
		c, ok := r.Context().Value(contextKey{}).(fiber.Ctx)
		if !ok {
			return "", false
		}
		return subject(c)
	})
}

// newRequest returns the request of ctx. Its strings are copies: Fiber uses their memory again.
func newRequest(ctx *fasthttp.RequestCtx) (*http.Request, error) {
	uri := string(ctx.RequestURI())
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, err
	}
	r := &http.Request{
		Method: string(ctx.Method()), URL: u, RequestURI: uri, Host: string(ctx.Host()),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header),
		Body: io.NopCloser(&body{ctx: ctx}), ContentLength: int64(max(ctx.Request.Header.ContentLength(), -1)),
		RemoteAddr: ctx.RemoteAddr().String(), TLS: ctx.TLSConnectionState(),
	}
	for name, value := range ctx.Request.Header.All() {
		if name := http.CanonicalHeaderKey(string(name)); name != "Host" {
			r.Header.Add(name, string(value))
		}
	}
	return r, nil
}

// body is the body of ctx. It is not read unless a key needs it.
type body struct {
	ctx    *fasthttp.RequestCtx
	reader *bytes.Reader
}

func (b *body) Read(p []byte) (int, error) {
	if b.reader == nil {
		b.reader = bytes.NewReader(b.ctx.PostBody())
	}
	return b.reader.Read(p)
}

// contextKey is the key of the fiber.Ctx in a request's context, and of the request in Fiber's.
type contextKey struct{}

// response is the response of c.
type response struct {
	c       fiber.Ctx
	header  http.Header // of the limit
	handler http.Header // of the handler, which header began with
	begun   bool
}

func (w *response) Header() http.Header { return w.header }

// begin gives the response of c the fields that the limit has set or removed.
func (w *response) begin() {
	if w.begun {
		return
	}
	w.begun = true
	h := &w.c.Response().Header
	for name := range w.handler {
		if _, kept := w.header[name]; !kept {
			h.Del(name)
		}
	}
	for name, values := range w.header {
		if slices.Equal(values, w.handler[name]) {
			continue
		}
		h.Del(name)
		for _, value := range values {
			h.Add(name, value)
		}
	}
}

// fieldsOf returns a copy of the fields of c's response.
func fieldsOf(c fiber.Ctx) http.Header {
	fields := make(http.Header)
	for name, value := range c.Response().Header.All() {
		fields.Add(string(name), string(value))
	}
	return fields
}

func (w *response) WriteHeader(status int) {
	if w.begun || status < http.StatusOK {
		return
	}
	w.begin()
	w.c.Status(status)
}

func (w *response) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.c.Response().AppendBody(p)
	return len(p), nil
}
