package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/weir-go/weir/middleware"
)

// Keys and headers that a client invents.

func TestPathsWithoutARouteCountByClient(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(5, time.Minute))
	limit := must(newMiddleware(th, middleware.Limit(p, middleware.Join(middleware.ClientIP(nil), middleware.RoutePattern())), nil))
	r := chi.NewRouter()
	r.Use(limit)
	r.Get("/page", status(200))
	r.Route("/v1", func(r chi.Router) { r.Get("/users/{id}", status(200)) })
	ask := func(client, method, path string) int {
		w, req := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
		req.RemoteAddr = client
		r.ServeHTTP(w, req)
		return w.Code
	}
	for range 5 {
		ask("203.0.113.1:1", "GET", "/none")
	}
	for _, test := range []struct {
		client, method, path string
		want                 int
	}{
		{"203.0.113.2:1", "GET", "/none", 404},
		{"203.0.113.2:1", "POST", "/page", 405},
		{"203.0.113.1:1", "GET", "/none", 429},
		{"203.0.113.1:1", "GET", "/another", 429}, // no new quota for each path
		{"203.0.113.1:1", "GET", "/v1/none", 429},
		{"203.0.113.1:1", "GET", "/page", 200},
		{"203.0.113.1:1", "GET", "/v1/users/7", 200},
	} {
		if got := ask(test.client, test.method, test.path); got != test.want {
			t.Errorf("%s %s from %s: %d, want %d", test.method, test.path, test.client, got, test.want)
		}
	}
}

func TestWhatARequestLacksOfAJoinedKey(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	route, user := middleware.RoutePattern(), middleware.APIKey("X-Key", anyToken)
	for _, test := range []struct {
		name string
		key  middleware.Key
		ok   bool
	}{
		{"the route", middleware.Join(middleware.ClientIP(nil), route), true},
		{"the route, within", middleware.Join(middleware.Method(), middleware.Join(middleware.ClientIP(nil), route)), true},
		{"the user", middleware.Join(user, middleware.ClientIP(nil)), false},
		{"user and route", middleware.Join(user, route), false},
		{"all", middleware.Join(route), false},
	} {
		if key, ok := test.key.Of(r); ok != test.ok {
			t.Errorf("without %s: %q, %v", test.name, key, ok)
		}
	}
}

// However a path is spelled, its key is the route that serves it.
func TestSpellingsOfARouteShareAKey(t *testing.T) {
	key := middleware.Join(middleware.ClientIP(nil), middleware.RoutePattern())
	for name, outside := range map[string][]func(http.Handler) http.Handler{
		"as it is":             nil,
		"StripSlashes":         {chimiddleware.StripSlashes},
		"CleanPath":            {chimiddleware.CleanPath},
		"both":                 {chimiddleware.CleanPath, chimiddleware.StripSlashes},
		"both, in other order": {chimiddleware.StripSlashes, chimiddleware.CleanPath},
	} {
		var keys []string
		note := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				k, ok := key.Of(r)
				if !ok {
					t.Errorf("%s: %s has no key", name, r.URL.Path)
				}
				keys = append(keys, k)
				next.ServeHTTP(w, r)
			})
		}
		r := chi.NewRouter()
		r.Use(outside...)
		r.Use(note)
		r.With(note).Get("/", status(200))
		r.Route("/api/{org:[a-z]{1,4}}", func(r chi.Router) {
			r.Use(note)
			r.With(note).Get("/", status(200))
			r.Route("/v{version}", func(r chi.Router) {
				r.Use(note)
				r.With(note).Get("/users/{id}", status(200))
				r.With(note).Get("/files/*", status(200))
			})
		})
		r.With(note).Get("/static/*", status(200))
		for _, spellings := range [][]string{
			{"/api/acme/v1/users/7", "/api/acme/v1/users/7/", "/api/acme//v1/users/7", "/api/acme/v1/./users/7/", "/api/x/v2/users/a%2Fb", "/api/x/v2/users/a%2Fb/"},
			{"/api/acme/v1/files/a", "/api/acme/v1/files/a/b/", "/api/acme/v1/files/a//b", "/api/api/v1/files/static"},
			{"/static/a", "/static/a/b/", "/static/static//a"},
			{"/api/acme", "/api/acme/", "/api/x/"},
			{"/", "http://example.org/", "http://example.org", "http://example.org?q"},
		} {
			var want string
			for _, path := range spellings {
				keys = nil
				w := httptest.NewRecorder()
				r.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
				if w.Code != 200 { // chi does not serve it
					continue
				}
				if want == "" {
					want = keys[0]
				}
				if slices.ContainsFunc(keys, func(k string) bool { return k != want }) {
					t.Errorf("%s: %s has the keys %q; want %q", name, path, keys, want)
				}
			}
		}
	}
}

func TestInventedMethodsShareAKey(t *testing.T) {
	keys := make(map[string]bool)
	for _, method := range []string{"GET", "HEAD", "POST", "A", "B", "get", strings.Repeat("X", 100_000)} {
		k, _ := middleware.Method().Of(httptest.NewRequest(method, "/", nil))
		keys[k] = true
	}
	if len(keys) != 4 {
		t.Errorf("keys %v; want three of methods and one of all others", keys)
	}
}

func TestAnIPv6AddressThatStandsForAnIPv4Address(t *testing.T) {
	key := middleware.ClientIP(nil)
	th, _ := newThrottler()
	chain := must(newMiddleware(th, middleware.IPv6Chain(policy("p48", per(100, time.Minute)), policy("p56", per(90, time.Minute)), policy("p64", per(80, time.Minute)), nil), &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}}))(status(200))
	for _, test := range []struct {
		from, want string
		limits     int // of IPv6Chain
	}{
		{"64:ff9b::203.0.113.7", "ip:203.0.113.7", 1},
		{"64:ff9b::cb00:7108", "ip:203.0.113.8", 1},
		{"64:ff9b:0:0:0:1:cb00:7108", "ip:64:ff9b::/64", 3}, // beyond the /96
		{"64:ff9b:1:fffe::203.0.113.7", "ip:64:ff9b:1:fffe::cb00:7107", 1},
		{"64:ff9b:1:cb00:0:7107::", "ip:64:ff9b:1:cb00:0:7107::", 1},
		{"64:ff9b:2::1", "ip:64:ff9b:2::/64", 3},
		{"2002:cb00:7107::1", "ip:203.0.113.7", 1},
		{"2002:cb00:7107:ffff::1", "ip:203.0.113.7", 1},
		{"2001:0:4136:e378:8000:63bf:34ff:8ef8", "ip:203.0.113.7", 1},
		{"2001:1::1", "ip:2001:1::/64", 3},
		{"::ffff:203.0.113.7", "ip:203.0.113.7", 1},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(test.from), 9).String()
		if got, _ := key.Of(r); got != test.want {
			t.Errorf("%s: key %q, want %q", test.from, got, test.want)
		}
		w := httptest.NewRecorder()
		chain.ServeHTTP(w, r)
		if got := strings.Count(w.Header().Get("RateLimit-Policy"), ";q="); got != test.limits {
			t.Errorf("%s: %d limits of the chain, want %d", test.from, got, test.limits)
		}
	}
	// An address that embeds a proxy's address is not a proxy.
	key = middleware.ClientIP(&middleware.IPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	for _, from := range []string{"[64:ff9b::10.0.0.1]:9", "[2002:a00:1::1]:9"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = from
		r.Header.Set("X-Forwarded-For", "203.0.113.7")
		if got, _ := key.Of(r); got != "ip:10.0.0.1" {
			t.Errorf("%s: key %q", from, got)
		}
	}
}

func TestLittleIsReadOfLongHeaders(t *testing.T) {
	t.Run("X-Forwarded-For", func(t *testing.T) {
		key := middleware.ClientIP(&middleware.IPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
		proxies := func(n int) []string { return slices.Repeat([]string{"10.2.2.2"}, n) }
		const client = "203.0.113.7"
		for _, test := range []struct {
			name  string
			lines []string
			want  string
		}{
			{"31 proxies", []string{client + "," + strings.Join(proxies(31), ",")}, "ip:" + client},
			{"31 proxies in lines", append([]string{client}, proxies(31)...), "ip:" + client},
			{"32 proxies", []string{client + "," + strings.Join(proxies(32), ",")}, "ip:10.2.2.2"},
			{"32 proxies in lines", append([]string{client}, proxies(32)...), "ip:10.2.2.2"},
			{"spaces", []string{client + "," + strings.Repeat(" ", 200) + "10.2.2.2"}, "ip:" + client},
			{"too many spaces", []string{client + "," + strings.Repeat(" ", 300) + "10.3.3.3"}, "ip:10.0.0.1"},
			{"a long entry", []string{strings.Repeat("1", 1000), "10.2.2.2"}, "ip:10.2.2.2"},
		} {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "10.0.0.1:9"
			r.Header["X-Forwarded-For"] = test.lines
			if got, _ := key.Of(r); got != test.want {
				t.Errorf("%s: key %q, want %q", test.name, got, test.want)
			}
		}
	})
	t.Run("Accept", func(t *testing.T) {
		th, _ := newThrottler()
		h := limit(th, policy("core", per(1, time.Minute)), nil)(status(200))
		get(h)
		for n, want := range map[int]string{0: "application/problem+json", 100: "application/problem+json", 400: "application/json; charset=utf-8"} {
			accept := "application/problem+json" + strings.Repeat(",a/0", n)
			expect(t, get(h, "Accept", accept), 429, "Content-Type", want)
		}
	})
	t.Run("tokens and keys", func(t *testing.T) {
		asked := 0
		verify := func(*http.Request, string) (string, bool) { asked++; return "u", true }
		r := httptest.NewRequest("GET", "/", nil)
		for _, length := range []int{1 << 10, 16 << 10} { // and the scheme
			r.Header.Set("Authorization", "Bearer "+strings.Repeat("x", length))
			r.Header.Set("X-Key", strings.Repeat("x", length+1))
			_, token := middleware.BearerToken(verify).Of(r)
			_, key := middleware.APIKey("X-Key", verify).Of(r)
			if want := length == 1<<10; token != want || key != want {
				t.Errorf("%d bytes: a token is a key: %v, a key is one: %v; want %v", length, token, key, want)
			}
		}
		if asked != 2 {
			t.Errorf("verified %d times, want 2", asked)
		}
	})
}
