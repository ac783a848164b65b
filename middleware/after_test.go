package middleware_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
)

// Responses that a framework sends after the outermost handler has returned.

// framework passes requests through limit to handler. When limit has returned, after
// responds through the writer that handler got, as Echo responds to a handler's error.
func framework(limit func(http.Handler) http.Handler, handler, after http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside := http.ResponseWriter(unwrapping{w})
		limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inside = w
			handler(w, r)
		})).ServeHTTP(inside, r)
		after(inside, r)
	})
}

func nothing(http.ResponseWriter, *http.Request) {}

func TestWhatIsSentAfterTheHandlerIsTheResponse(t *testing.T) {
	successIsFree := func(_ *http.Request, status int, _ http.Header) bool { return status < 400 }
	for _, test := range []struct {
		name     string
		refundIf func(*http.Request, int, http.Header) bool
		handler  http.HandlerFunc
		after    http.HandlerFunc
		status   int
		used     string
	}{
		{"an error", nil, nothing, status(403), 403, "1"},
		{"an error that is charged", successIsFree, nothing, status(401), 401, "1"},
		{"an error that is free", errorsAreFree, nothing, status(500), 500, "0"},
		{"a redirect that is free", successIsFree, nothing, status(302), 302, "0"},
		{"304", nil, nothing, status(304), 304, "0"},
		{"a body", successIsFree, nothing, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) }, 200, "0"},
		{"a flush", successIsFree, nothing, func(w http.ResponseWriter, _ *http.Request) { _ = http.NewResponseController(w).Flush() }, 200, "0"},
		{"an early hint, then an error", successIsFree, nothing, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(404)
		}, 404, "1"},
		{"nothing", nil, nothing, nothing, 200, "1"},
		{"nothing, where it may be an error yet", successIsFree, nothing, nothing, 200, "1"},
		{"an error past the middleware", successIsFree, nothing, func(w http.ResponseWriter, r *http.Request) {
			w.(interface{ Unwrap() http.ResponseWriter }).Unwrap().(interface{ Unwrap() http.ResponseWriter }).Unwrap().WriteHeader(403)
		}, 403, "1"},
		{"the handler's response", nil, status(304), status(500), 304, "0"},
		{"a cost that the handler reported", nil, func(_ http.ResponseWriter, r *http.Request) { _ = middleware.SetCost(r, 7) }, status(404), 404, "7"},
		{"a cost in the header", nil, nothing, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Cost", "8")
			w.WriteHeader(404)
		}, 404, "8"},
		{"a cost that comes too late", nil, func(_ http.ResponseWriter, r *http.Request) {
			t.Cleanup(func() {
				if middleware.SetCost(r, 9) == nil {
					t.Error("a late report is no error")
				}
			})
		}, nothing, 200, "1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothProtocols(t, func(t *testing.T, http2 bool) {
				th, _ := newThrottler()
				p := policy("core", per(100, time.Minute))
				h := framework(must(newMiddleware(th, everyone(p).CostReported(), &middleware.Options{RefundIf: test.refundIf, CostHeader: "X-Cost"})), test.handler, test.after)
				s := start(t, http2, h, nil)
				res, _ := s.get(t, "/")
				if res.StatusCode != test.status {
					t.Errorf("status %d, want %d", res.StatusCode, test.status)
				}
				expectHeaders(t, res.Header, "X-RateLimit-Used", test.used, "X-RateLimit-Limit", "100", "X-Cost", "")
				if got := s.log.String(); strings.Contains(got, "superfluous") && test.name != "the handler's response" {
					t.Error(got)
				}
				if d, _ := th.Peek(t.Context(), p.Charge("everyone")); d.Limit(0).Used != int64(test.used[0]-'0') {
					t.Errorf("used %d, want %s", d.Limit(0).Used, test.used)
				}
			})
		})
	}
}

// Refuse may respond by the context of the framework, whose writer tells that there is a response.
func TestARefusalThatTheFrameworkSends(t *testing.T) {
	th, _ := newThrottler()
	outer, inner := policy("outer", per(100, time.Minute)), policy("inner", per(1, time.Minute))
	refuse := func(w http.ResponseWriter, _ *http.Request, _ middleware.Refusal) {
		w.(interface{ Unwrap() http.ResponseWriter }).Unwrap().WriteHeader(403)
	}
	both := func(h http.Handler) http.Handler {
		return limit(th, outer, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			limit(th, inner, &middleware.Options{Refuse: refuse})(h).ServeHTTP(w, r)
		}))
	}
	tells := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(&written{w, false}, r) })
	}
	s := start(t, false, tells(framework(both, nothing, nothing)), nil)
	s.get(t, "/")
	_, _ = th.Take(t.Context(), inner.Charge("everyone"))
	res, body := s.get(t, "/")
	if res.StatusCode != 403 || body != "" || s.log.String() != "" {
		t.Errorf("status %d, body %q, log %q", res.StatusCode, body, s.log)
	}
	expectHeaders(t, res.Header, "X-RateLimit-Resource", "inner", "X-RateLimit-Remaining", "0", "Cache-Control", "no-store")
}

// written is a framework's writer.
type written struct {
	http.ResponseWriter
	begun bool
}

func (w *written) Written() bool { return w.begun }

func (w *written) WriteHeader(status int) {
	w.begun = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *written) Unwrap() http.ResponseWriter { return w.ResponseWriter }
