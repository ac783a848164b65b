package middleware_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// The headers of the final response are the middleware's, complete and once.

func TestHeadersSurviveRelayedEarlyHints(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		upstream := start(t, false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusProcessing)
			_, _ = io.WriteString(w, "body")
		}), nil)
		th, _ := newThrottler()
		s := start(t, http2, limit(th, policy("core", per(5, time.Minute)), &middleware.Options{ExposeHeaders: true, Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}})(proxyTo(t, upstream)), nil)
		var relayed []int
		r := must(http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				relayed = append(relayed, code)
				expectHeaders(t, http.Header(h), "X-RateLimit-Used", "")
				return nil
			},
		}), "GET", s.URL, nil))
		res, body := s.do(t, r)
		if len(relayed) != 2 || body != "body" {
			t.Errorf("relayed %v, body %q", relayed, body)
		}
		expectHeaders(t, res.Header, "X-RateLimit-Limit", "5", "X-RateLimit-Remaining", "4", "X-RateLimit-Used", "1", "X-RateLimit-Resource", "core",
			"RateLimit", `"core";r=4;t=60`, "RateLimit-Policy", `"core";q=5;w=60`)
		if !strings.Contains(res.Header.Get("Access-Control-Expose-Headers"), "X-RateLimit-Used") {
			t.Error("the headers are not exposed")
		}
	})
}

func TestEarlyHintsHaveNoRateHeadersOfOthers(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		hint := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>")
			w.Header()["x-ratelimit-remaining"] = []string{"9999"}
			w.Header().Set("RateLimit", "other")
			w.WriteHeader(http.StatusEarlyHints)
		})
		upstream := start(t, false, hint, nil)
		for name, handler := range map[string]http.Handler{"a handler": hint, "an upstream": proxyTo(t, upstream)} {
			for _, dry := range []bool{false, true} { // a dry run doesn't change others' headers
				options, want := new(middleware.Options), ""
				if dry {
					options.DryRun, want = func(*http.Request, throttler.Decision) {}, "9999"
				}
				th, _ := newThrottler()
				s := start(t, http2, limit(th, policy("core", per(5, time.Minute)), options)(handler), nil)
				var hints http.Header
				s.do(t, must(http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { hints = http.Header(h); return nil },
				}), "GET", s.URL, nil)))
				t.Log(name, "dry", dry)
				expectHeaders(t, hints, "Link", "</style.css>", "X-RateLimit-Remaining", want)
			}
		}
	})
}

// upstreamWithLimits returns a server with its own rate limits, and names in several spellings.
func upstreamWithLimits(t testing.TB, code int) *server {
	return start(t, false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		for _, name := range []string{"X-RateLimit-Limit", "X-Ratelimit-Limit", "x-ratelimit-used", "X-RATELIMIT-REMAINING", "X-Ratelimit-Reset", "X-Ratelimit-Resource", "RateLimit", "Ratelimit-Policy"} {
			h[name] = []string{"7", "8"}
		}
		h.Set("X-RateLimit-Plan", "gold")
		h.Set("X-Other", "kept")
		w.WriteHeader(code)
	}), nil)
}

func TestAnUpstreamsOwnHeadersAreReplaced(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		for _, code := range []int{200, 304, 404} {
			upstream := upstreamWithLimits(t, code)
			th, _ := newThrottler()
			s := start(t, http2, limit(th, policy("core", per(5, time.Minute)), nil)(proxyTo(t, upstream)), nil)
			res, _ := s.get(t, "/")
			want := "1"
			if code == 304 {
				want = "0"
			}
			expectHeaders(t, res.Header, "X-RateLimit-Limit", "5", "X-RateLimit-Used", want, "X-RateLimit-Resource", "core",
				"RateLimit", "", "RateLimit-Policy", "", "X-RateLimit-Plan", "gold", "X-Other", "kept")
		}
	})
}

func TestHandlersOwnSpellingsAreReplaced(t *testing.T) {
	th, _ := newThrottler()
	s := start(t, false, limit(th, policy("core", per(5, time.Minute)), nil)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-RateLimit-Limit"] = []string{"7"}
		w.Header()["ratelimit"] = []string{"7"}
	})), nil)
	res, _ := s.get(t, "/")
	expectHeaders(t, res.Header, "X-RateLimit-Limit", "5", "RateLimit", "")
}

func TestA500AfterAPanicShowsTheRefund(t *testing.T) {
	// A 500 is free only if it is sent further out, where the middleware does not see it.
	outside := func(_ *http.Request, _ int, h http.Header) bool { return h.Get("Recovered") == "" }
	for _, test := range []struct {
		name string
		wrap func(limit func(http.Handler) http.Handler, h http.Handler) http.Handler
		used string
	}{
		{"recovered outside", func(limit func(http.Handler) http.Handler, h http.Handler) http.Handler {
			return recoverer(limit(h))
		}, "0"},
		{"recovered inside", func(limit func(http.Handler) http.Handler, h http.Handler) http.Handler {
			return limit(recoverer(h))
		}, "1"},
		{"recovered between two", func(limit func(http.Handler) http.Handler, h http.Handler) http.Handler {
			th, _ := newThrottler()
			inner := must(newMiddleware(th, everyone(policy("core", per(2, time.Minute))), &middleware.Options{RefundIf: outside}))
			return limit(recoverer(inner(h)))
		}, "0"}, // the inner charge is refunded, and the inner limit binds
	} {
		th, _ := newThrottler()
		s := start(t, false, test.wrap(limit(th, policy("core", per(5, time.Minute)), &middleware.Options{RefundIf: outside}), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-RateLimit-Used", "9")
			panic("x")
		})), nil)
		res, _ := s.get(t, "/")
		if res.StatusCode != 500 {
			t.Errorf("%s: status %d", test.name, res.StatusCode)
		}
		expectHeaders(t, res.Header, "X-RateLimit-Used", test.used)
	}
}

func TestA101HasTheHeaders(t *testing.T) {
	upgrade := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\nX-RateLimit-Used: 77\r\nX-Cost: 3\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString(line)
		_ = rw.Flush()
	})
	for name, handler := range map[string]http.Handler{
		"by a proxy": proxyTo(t, start(t, false, upgrade, nil)),
		"by WriteHeader, then Hijack": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Upgrade", "echo")
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("X-Cost", "3")
			w.WriteHeader(101)
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			line, _ := rw.ReadString('\n')
			_, _ = rw.WriteString(line)
			_ = rw.Flush()
		}),
	} {
		t.Run(name, func(t *testing.T) {
			th, _ := newThrottler()
			p := policy("core", per(5, time.Minute))
			s := start(t, false, must(newMiddleware(th, everyone(p).CostReported(), &middleware.Options{CostHeader: "X-Cost"}))(handler), nil)
			conn := s.dial(t, "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
			r := bufio.NewReader(conn)
			res, err := http.ReadResponse(r, nil)
			if err != nil || res.StatusCode != 101 {
				t.Fatalf("%v, error %v", res, err)
			}
			if n := len(res.Header.Values("X-RateLimit-Used")); n != 1 || res.Header.Get("X-RateLimit-Limit") != "5" {
				t.Errorf("X-RateLimit-Used is there %d times; X-RateLimit-Limit is %q", n, res.Header.Get("X-RateLimit-Limit"))
			}
			expectHeaders(t, res.Header, "X-RateLimit-Resource", "core", "X-Cost", "", "Upgrade", "echo")
			_, _ = io.WriteString(conn, "hello\n")
			if line, err := r.ReadString('\n'); err != nil || line != "hello\n" {
				t.Errorf("echo %q, error %v", line, err)
			}
			conn.Close()
			soon(t, s.done, "the handler")
			expectUsed(t, th, p, 3)
		})
	}
}

// recoverer answers 500 for a panic, as chi's does.
func recoverer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.Header().Set("Recovered", "yes")
				w.WriteHeader(500)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func TestRateTrailersOfOthersAreRemoved(t *testing.T) {
	for name, upstream := range map[string]http.HandlerFunc{
		"announced": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-RateLimit-Remaining, X-Sum, RateLimit")
			w.(http.Flusher).Flush()
			w.Header().Set("X-RateLimit-Remaining", "77")
			w.Header().Set("RateLimit", "77")
			w.Header().Set("X-Sum", "1")
		},
		"unannounced": func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			w.Header().Set(http.TrailerPrefix+"X-RateLimit-Remaining", "77")
			w.Header().Set(http.TrailerPrefix+"ratelimit", "77")
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		},
	} {
		bothProtocols(t, func(t *testing.T, http2 bool) {
			th, _ := newThrottler()
			up := start(t, false, upstream, nil)
			for _, h := range []http.Handler{upstream, proxyTo(t, up)} {
				s := start(t, http2, limit(th, policy("core", per(100, time.Minute)), nil)(h), nil)
				res, _ := s.get(t, "/")
				if len(res.Trailer) != 1 || res.Trailer.Get("X-Sum") != "1" {
					t.Errorf("%s: trailers %v, want X-Sum alone", name, res.Trailer)
				}
				if got := res.Header.Values("X-RateLimit-Remaining"); len(got) != 1 || got[0] == "77" {
					t.Errorf("%s: X-RateLimit-Remaining %q", name, got)
				}
			}
		})
	}
}
