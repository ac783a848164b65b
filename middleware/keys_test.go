package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/weir-go/weir/middleware"
)

// keyOf returns key's answer for a request that has passed through chi's
// client address middleware.
func keyOf(key middleware.Key, remoteAddr string, header ...string) (k string, ok bool) {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = remoteAddr
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	chimiddleware.ClientIPFromXFF("10.0.0.0/8")(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		k, ok = key.Of(r)
	})).ServeHTTP(httptest.NewRecorder(), r)
	return k, ok
}

func TestClientIP(t *testing.T) {
	ip := middleware.ClientIP(nil)
	for _, test := range []struct {
		remote, forwarded, want string
	}{
		{"10.0.0.1:99", "203.0.113.7", "ip:203.0.113.7"},
		{"10.0.0.1:99", "198.51.100.1, 203.0.113.7", "ip:203.0.113.7"}, // the client's claim is to the left
		{"10.0.0.1:99", "::ffff:203.0.113.7", "ip:203.0.113.7"},
		{"10.0.0.1:99", "2001:db8:1:2:3:4:5:6", "ip:2001:db8:1:2::/64"},
		{"10.0.0.1:99", "2001:db8:1:2:ffff::1", "ip:2001:db8:1:2::/64"},
		{"10.0.0.1:99", "2001:db8:1:3::1", "ip:2001:db8:1:3::/64"},
		{"10.0.0.1:99", "nonsense", "ip:10.0.0.1"}, // the proxy's address
	} {
		if got, ok := keyOf(ip, test.remote, "X-Forwarded-For", test.forwarded); got != test.want || ok != (test.want != "") {
			t.Errorf("from %s for %s: %q, %v; want %q", test.remote, test.forwarded, got, ok, test.want)
		}
	}
	// Without chi's middleware, no header is trusted.
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Forwarded-For", "203.0.113.7")
	if got, ok := ip.Of(r); got != "ip:192.0.2.1" || !ok {
		t.Errorf("without a ClientIPFrom middleware: %q", got)
	}
	if got, _ := keyOf(middleware.ClientIP(&middleware.IPOptions{IPv6Prefix: 48}), "10.0.0.1:99", "X-Forwarded-For", "2001:db8:1:2::1"); got != "ip:2001:db8:1::/48" {
		t.Errorf("with a /48: %q", got)
	}
}

// An invented token must not give its sender a fresh quota.
func TestOnlyTokensThatAreVerifiedAreKeys(t *testing.T) {
	verify := func(_ *http.Request, token string) (string, bool) {
		subject, ok := map[string]string{"s3cret": "alice", "0ther": "alice", "empty": ""}[token]
		return subject, ok
	}
	caller := middleware.FirstOf(middleware.BearerToken(verify), middleware.APIKey("X-Api-Key", verify), middleware.ClientIP(nil))
	for _, test := range []struct{ header, value, want string }{
		{"Authorization", "Bearer s3cret", "subject:alice"},
		{"Authorization", "token s3cret", "subject:alice"}, // GitHub's scheme
		{"Authorization", "bearer  s3cret ", "subject:alice"},
		{"Authorization", "Bearer 0ther", "subject:alice"}, // one user, one count
		{"X-Api-Key", "s3cret", "subject:alice"},
		{"Authorization", "Bearer invented", "ip:10.0.0.1"},
		{"Authorization", "Bearer empty", "ip:10.0.0.1"},
		{"Authorization", "Bearer", "ip:10.0.0.1"},
		{"Authorization", "Bearer ", "ip:10.0.0.1"},
		{"Authorization", "Basic s3cret", "ip:10.0.0.1"},
		{"Authorization", "s3cret", "ip:10.0.0.1"},
		{"X-Api-Key", "invented", "ip:10.0.0.1"},
		{"X-Api-Key", "", "ip:10.0.0.1"},
	} {
		if got, ok := keyOf(caller, "10.0.0.1:9", test.header, test.value); got != test.want || !ok {
			t.Errorf("%s: %q gives %q, %v; want %q", test.header, test.value, got, ok, test.want)
		}
	}
}

func TestSubjectKeysByTheApplicationsUser(t *testing.T) {
	key := middleware.Subject(func(r *http.Request) (string, bool) { return r.Header.Get("User"), true })
	if got, ok := keyOf(key, "10.0.0.1:9", "User", "alice"); got != "subject:alice" || !ok {
		t.Errorf("%q, %v", got, ok)
	}
	if got, ok := keyOf(key, "10.0.0.1:9"); ok {
		t.Errorf("an empty subject gives %q", got)
	}
}

func TestJoinNeverCollides(t *testing.T) {
	fixed := func(key string) middleware.Key {
		return middleware.KeyFunc(func(*http.Request) (string, bool) { return key, true })
	}
	seen := make(map[string]bool)
	for _, parts := range [][]string{{"a", "bc"}, {"ab", "c"}, {"abc"}, {"a", "b", "c"}, {"", "abc"}, {"abc", ""}, {"a\x02bc"}} {
		var keys []middleware.Key
		for _, part := range parts {
			keys = append(keys, fixed(part))
		}
		joined, _ := middleware.Join(keys...).Of(nil)
		if seen[joined] {
			t.Errorf("%q gives %q, as other parts do", parts, joined)
		}
		seen[joined] = true
	}
	nobody := middleware.KeyFunc(func(*http.Request) (string, bool) { return "", false })
	if _, ok := middleware.Join(fixed("a"), nobody).Of(nil); ok {
		t.Error("joined with a part that is not known")
	}
}

func TestUnknownCallersShareACount(t *testing.T) {
	p := policy("core", per(5, time.Minute))
	charges := middleware.Limit(p, middleware.BearerToken(anyToken)).Charges(httptest.NewRequest("GET", "/", nil))
	if len(charges) != 1 || charges[0].Cost != 1 || charges[0].Policy != p {
		t.Errorf("charges %+v: not to know a caller must not mean not to limit it", charges)
	}
}

func TestRoutePattern(t *testing.T) {
	var got []string
	note := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			k, ok := middleware.RoutePattern().Of(r)
			if !ok {
				k = "none"
			}
			got = append(got, k)
			next.ServeHTTP(w, r)
		})
	}
	r := chi.NewRouter()
	r.Use(note)
	r.With(note).Get("/repos/{owner}/{name}", status(200))
	r.Route("/v1", func(r chi.Router) { r.Get("/users/{id}", status(200)) })
	for _, path := range []string{"/repos/a/b", "/v1/users/7", "/nowhere"} {
		r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", note(status(200)))
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/items/7", nil))
	want := "route:/repos/{owner}/{name} route:/repos/{owner}/{name} route:/v1/users/{id} none route:GET /items/{id}"
	if all := strings.Join(got, " "); all != want {
		t.Errorf("got  %s\nwant %s", all, want)
	}
}

func TestIPv6Chain(t *testing.T) {
	th, _ := newThrottler()
	p48, p56, p64 := policy("ip48", per(5, time.Minute)), policy("ip56", per(3, time.Minute)), policy("ip64", per(2, time.Minute))
	h := chimiddleware.ClientIPFromXFF("10.0.0.0/8")(must(newMiddleware(th, middleware.IPv6Chain(p48, p56, p64, nil), nil))(status(200)))
	for i, test := range []struct {
		from     string
		code     int
		resource string
	}{
		{"2001:db8:0:101::1", 200, "ip64"},
		{"2001:db8:0:101::2", 200, "ip64"},
		{"2001:db8:0:101::3", 429, "ip64"}, // its /64
		{"2001:db8:0:102::1", 200, "ip56"},
		{"2001:db8:0:103::1", 429, "ip56"}, // its /56
		{"2001:db8:0:201::1", 200, "ip48"},
		{"2001:db8:0:301::1", 200, "ip48"},
		{"2001:db8:0:401::1", 429, "ip48"}, // its /48
		{"2001:db8:9:101::1", 200, "ip64"},
		{"203.0.113.7", 200, "ip64"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "10.0.0.1:9"
		r.Header.Set("X-Forwarded-For", test.from)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get("X-RateLimit-Resource"); w.Code != test.code || got != test.resource {
			t.Errorf("request %d, from %s: %d by %s, want %d by %s", i, test.from, w.Code, got, test.code, test.resource)
		}
	}
}

func TestAllJoinsCharges(t *testing.T) {
	a, b := policy("a", per(1, time.Minute)), policy("b", per(1, time.Minute))
	charges := middleware.All(everyone(a), charging(), everyone(b)).Charges(nil)
	if len(charges) != 2 || charges[0].Policy != a || charges[1].Policy != b {
		t.Errorf("charges %+v", charges)
	}
}

func TestClientIPWithoutAnyOtherMiddleware(t *testing.T) {
	var proxies []netip.Prefix
	for _, p := range []string{"10.0.0.0/8", "2001:db8::/32", "::ffff:172.16.0.0/112"} {
		proxies = append(proxies, netip.MustParsePrefix(p))
	}
	direct, behind := middleware.ClientIP(nil), middleware.ClientIP(&middleware.IPOptions{TrustedProxies: proxies})
	for _, test := range []struct {
		key       middleware.Key
		remote    string
		forwarded []string // header lines
		want      string
	}{
		{direct, "203.0.113.7:99", nil, "ip:203.0.113.7"},
		{direct, "[2001:db8:1:2::3]:99", nil, "ip:2001:db8:1:2::/64"},
		{direct, "[fe80::1%eth0]:99", nil, "ip:fe80::/64"},
		{direct, "[::ffff:203.0.113.7]:99", nil, "ip:203.0.113.7"},
		{direct, "203.0.113.7", nil, "ip:203.0.113.7"},
		{direct, "10.0.0.1:99", []string{"203.0.113.7"}, "ip:10.0.0.1"}, // no proxy is trusted
		{direct, "@", nil, ""},
		{direct, "", []string{"203.0.113.7"}, ""},

		{behind, "203.0.113.9:99", []string{"198.51.100.1"}, "ip:203.0.113.9"}, // not a proxy
		{behind, "@", []string{"198.51.100.1"}, ""},
		{behind, "10.0.0.1:99", nil, "ip:10.0.0.1"},
		{behind, "10.0.0.1:99", []string{"203.0.113.7"}, "ip:203.0.113.7"},
		{behind, "172.16.9.9:99", []string{"203.0.113.7"}, "ip:203.0.113.7"},
		{behind, "172.17.9.9:99", []string{"203.0.113.7"}, "ip:172.17.9.9"},
		{behind, "[2001:db8::9]:99", []string{"203.0.113.7,\t10.1.1.1 ,10.2.2.2"}, "ip:203.0.113.7"},
		{behind, "10.0.0.1:99", []string{"198.51.100.1, 203.0.113.7"}, "ip:203.0.113.7"}, // the client's claim is ignored
		{behind, "10.0.0.1:99", []string{"198.51.100.1", "203.0.113.7", "10.9.9.9"}, "ip:203.0.113.7"},
		{behind, "10.0.0.1:99", []string{"10.3.3.3, 10.2.2.2"}, "ip:10.3.3.3"}, // only proxies
		// With ports, as Azure's gateway sends them, and in brackets.
		{behind, "10.0.0.1:99", []string{"203.0.113.7:51234"}, "ip:203.0.113.7"},
		{behind, "10.0.0.1:99", []string{"203.0.113.7:51234, 10.2.2.2:80"}, "ip:203.0.113.7"},
		{behind, "10.0.0.1:99", []string{"[2001:db9:1:2::3]:51234"}, "ip:2001:db9:1:2::/64"},
		{behind, "10.0.0.1:99", []string{"[2001:db9:1:2::3]"}, "ip:2001:db9:1:2::/64"},
		{behind, "10.0.0.1:99", []string{"2001:db9:1:2::3%eth0"}, "ip:2001:db9:1:2::/64"},
		{behind, "10.0.0.1:99", []string{"::ffff:203.0.113.7"}, "ip:203.0.113.7"},
		{behind, "10.0.0.1:99", []string{"203.0.113.7, ::ffff:10.1.1.1"}, "ip:203.0.113.7"},
		// A value that is not an address ends the walk to the left.
		{behind, "10.0.0.1:99", []string{"203.0.113.7, unknown"}, "ip:10.0.0.1"},
		{behind, "10.0.0.1:99", []string{"203.0.113.7, "}, "ip:10.0.0.1"},
		{behind, "10.0.0.1:99", []string{"203.0.113.7", ""}, "ip:10.0.0.1"},
		{behind, "10.0.0.1:99", []string{"203.0.113.7,,10.2.2.2"}, "ip:10.2.2.2"},
		{behind, "10.0.0.1:99", []string{"203.0.113.7, _hidden, 10.2.2.2"}, "ip:10.2.2.2"},
		{behind, "10.0.0.1:99", []string{"203.0.113.7:port"}, "ip:10.0.0.1"},
		{behind, "10.0.0.1:99", []string{"[203.0.113.7]"}, "ip:10.0.0.1"},
		{behind, "10.0.0.1:99", []string{"2001:db9::1:2:3:4:5:6:7"}, "ip:10.0.0.1"},
		{behind, "10.0.0.1:99", []string{"010.0.0.1"}, "ip:10.0.0.1"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = test.remote
		for _, line := range test.forwarded {
			r.Header.Add("X-Forwarded-For", line)
		}
		if got, ok := test.key.Of(r); ok != (test.want != "") || ok && got != test.want {
			t.Errorf("from %s for %q: %q, %v; want %q", test.remote, test.forwarded, got, ok, test.want)
		}
	}
}

func TestRoutePatternResolvesHEADAsGetHeadDoes(t *testing.T) {
	var got []string
	note := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			k, ok := middleware.RoutePattern().Of(r)
			if !ok {
				k = "none"
			}
			got = append(got, strings.TrimPrefix(k, "route:"))
			next.ServeHTTP(w, r)
		})
	}
	r := chi.NewRouter()
	r.Use(note, chimiddleware.GetHead, note)
	r.With(note).Get("/repos/{owner}", status(200))
	r.Get("/files/*", status(200))
	r.Get("/users/{id}", status(200))
	r.Route("/v1", func(r chi.Router) {
		r.Use(note)
		r.With(note).Get("/users/{name}", status(200))
		r.Get("/files/*", status(200))
	})
	for _, test := range []struct{ path, want string }{
		{"/repos/a", "/repos/{owner} /repos/{owner} /repos/{owner}"},
		{"/files/a/b", "/files/* /files/*"},
		{"/v1/users/7", "/v1/users/{name} /v1/users/{name} /v1/users/{name} /v1/users/{name}"},
		{"/v1/files/a/b", "/v1/files/* /v1/files/* /v1/files/*"},
		{"/nowhere", "none none"},
		{"/v1/nowhere", "none none none"},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			got = nil
			r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, test.path, nil))
			if all := strings.Join(got, " "); all != test.want {
				t.Errorf("%s %s: %s, want %s", method, test.path, all, test.want)
			}
		}
	}
}

func TestAProxyThatIsNotDeclaredIsLoggedOnce(t *testing.T) {
	proxies := &middleware.IPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for _, test := range []struct {
		name, remote, header string
		options              *middleware.IPOptions
		lines                int
	}{
		{"loopback", "127.0.0.1:1", "X-Forwarded-For", nil, 1},
		{"private", "10.1.2.3:1", "Forwarded", nil, 1},
		{"private IPv6", "[fd00::1]:1", "X-Forwarded-For", proxies, 1},
		{"declared", "10.1.2.3:1", "X-Forwarded-For", proxies, 0},
		{"public", "203.0.113.1:1", "X-Forwarded-For", nil, 0}, // anyone can send it
		{"no header", "127.0.0.1:1", "Via", nil, 0},
	} {
		th, _ := newThrottler()
		log, lines := newLog()
		p := policy("core", per(100, time.Minute))
		ip := middleware.FirstOf(middleware.BearerToken(anyToken), middleware.ClientIP(test.options))
		h := must(newMiddleware(th, middleware.Limit(p, ip), &middleware.Options{Observer: log}))(status(200))
		for range 3 {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = test.remote
			r.Header.Set(test.header, "198.51.100.7")
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		if got := lines.lines(); len(got) != test.lines || test.lines > 0 && (!strings.Contains(got[0], "share one count") || !strings.Contains(got[0], "TrustedProxies")) {
			t.Errorf("%s: logged %q, want %d lines", test.name, got, test.lines)
		}
	}
}
