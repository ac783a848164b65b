package middleware_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// A Refuse that writes nothing leaves the refusal to Refusal.Write, and is warned of once.
func TestARefuseThatWritesNothing(t *testing.T) {
	const warning = ": Options.Refuse writes nothing, so that Refusal.Write does in its place (Refuse must write a response to w, or be left out)"
	for _, test := range []struct {
		name   string
		refuse func(w http.ResponseWriter, r *http.Request, x middleware.Refusal)
		status int
		body   string // its beginning
		warns  bool
	}{
		{"nothing", func(http.ResponseWriter, *http.Request, middleware.Refusal) {}, 429, `{"message":"API rate limit exceeded: core allows`, true},
		{"a header", func(w http.ResponseWriter, _ *http.Request, _ middleware.Refusal) { w.Header().Set("X-A", "b") }, 429, `{"message":"API rate limit exceeded: core allows`, true},
		{"early hints", func(w http.ResponseWriter, _ *http.Request, _ middleware.Refusal) { w.WriteHeader(103) }, 429, `{"message":"API rate limit exceeded: core allows`, true},
		{"a status", func(w http.ResponseWriter, _ *http.Request, _ middleware.Refusal) { w.WriteHeader(403) }, 403, "", false},
		{"a body", func(w http.ResponseWriter, _ *http.Request, _ middleware.Refusal) { _, _ = io.WriteString(w, "no") }, 200, "no", false},
		{"a flush", func(w http.ResponseWriter, _ *http.Request, _ middleware.Refusal) { w.(http.Flusher).Flush() }, 200, "", false},
	} {
		for _, behind := range []bool{false, true} {
			th, _ := newThrottler()
			seen := new(warnings)
			h := limit(th, policy("core", per(1, time.Minute)), &middleware.Options{Refuse: test.refuse, Observer: seen})(status(200))
			if behind {
				h = limit(th, policy("outer", per(100, time.Hour)), nil)(h)
			}
			s := start(t, false, h, nil)
			s.get(t, "/")
			for range 2 {
				res, body := s.get(t, "/")
				if res.StatusCode != test.status || !strings.HasPrefix(body, test.body) || test.body == "" && body != "" || strings.Count(body, "message") > 1 {
					t.Errorf("%s, behind another limit %t: status %d, body %q", test.name, behind, res.StatusCode, body)
				}
			}
			if got := seen.take(); test.warns != (len(got) == 1 && got[0] == warning) || !test.warns && len(got) > 0 {
				t.Errorf("%s, behind another limit %t: the warnings are %q", test.name, behind, got)
			}
			if text := s.log.String(); text != "" {
				t.Errorf("%s: %s", test.name, text)
			}
		}
	}
}

// logged is a writer in between that hides what the server's can do.
type logged struct{ http.ResponseWriter }

// holding holds back bodies until it is closed, as a compressor does.
type holding struct {
	http.ResponseWriter
	held bytes.Buffer
}

func (w *holding) Write(p []byte) (int, error) { return w.held.Write(p) }

// What a handler writes after Take has written a refusal is dropped, and warned of once.
func TestTheResultOfTakeIsIgnored(t *testing.T) {
	const (
		warning = ": a handler goes on after Take has written a refusal, so that what it writes is dropped (handlers return when Take reports false)"
		refusal = "{\"message\":\"API rate limit exceeded: points allows 1 per 1m. Try again in 60 s.\"}\n"
	)
	points := policy("points", per(1, time.Minute))
	ignores := func(after http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			middleware.Take(w, r, points.Charge("everyone"))
			after(w, r)
		}
	}
	text := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }
	own := func(w http.ResponseWriter, _ *http.Request, _ middleware.Refusal) {
		w.WriteHeader(429)
		_, _ = io.WriteString(w, refusal)
	}
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		options middleware.Options
		body    string
		warns   bool
	}{
		{"a body", ignores(text), middleware.Options{}, refusal, true},
		{"a text", ignores(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }), middleware.Options{}, refusal, true},
		{"a copy", ignores(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, strings.NewReader("hello")) }), middleware.Options{}, refusal, true},
		{"a status", ignores(status(201)), middleware.Options{}, refusal, true},
		{"another Take", ignores(ignores(text)), middleware.Options{}, refusal, true},
		{"a Refuse", ignores(text), middleware.Options{Refuse: own}, refusal, true},
		{"a writer between", func(w http.ResponseWriter, r *http.Request) { ignores(text)(logged{w}, r) }, middleware.Options{}, refusal, true},
		{"nothing", ignores(nothing), middleware.Options{}, refusal, false},
		{"a writer that holds it back", func(w http.ResponseWriter, r *http.Request) {
			held := &holding{ResponseWriter: w}
			ignores(text)(held, r)
			_, _ = held.held.WriteTo(w)
		}, middleware.Options{}, refusal + "hello", false},
		{"a writer that holds all back", http.TimeoutHandler(ignores(text), time.Minute, "").ServeHTTP, middleware.Options{}, refusal + "hello", false},
	} {
		bothProtocols(t, func(t *testing.T, http2 bool) {
			th, _ := newThrottler()
			seen := new(warnings)
			o := test.options
			o.Observer = seen
			s := start(t, http2, limit(th, policy("core", per(100, time.Hour)), &o)(test.handler), nil)
			_, _ = th.Take(t.Context(), throttler.Charge{Policy: points, Key: "everyone", Cost: 1})
			for range 2 {
				if res, body := s.get(t, "/"); res.StatusCode != 429 || body != test.body {
					t.Errorf("%s: status %d, body %q; want 429 %q", test.name, res.StatusCode, body, test.body)
				}
			}
			if got := seen.take(); test.warns != (len(got) == 1 && got[0] == warning) || !test.warns && len(got) > 0 {
				t.Errorf("%s: the warnings are %q", test.name, got)
			}
			if text := s.log.String(); text != "" {
				t.Errorf("%s: %s", test.name, text)
			}
		})
	}
}
