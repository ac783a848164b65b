package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
)

// Whatever a client writes into X-Forwarded-For, its key is the address that the trusted
// proxy appended or, without a trusted proxy, its own address.
func FuzzForwardedFor(f *testing.F) {
	for _, forged := range []string{"", "198.51.100.1", "10.0.0.7", "10.0.0.7, 10.0.0.8", ",", "unknown", "[2001:db8::1]:80", "for=1.2.3.4", "::ffff:10.1.1.1", "1.2.3.4, \t, x", "10.0.0.9%eth0", "\x00"} {
		f.Add(forged, "10.0.0.1:4711", false)
		f.Add(forged, "[::ffff:10.0.0.1]:4711", true)
	}
	f.Fuzz(func(t *testing.T, forged, proxy string, lines bool) {
		addr, err := netip.ParseAddrPort(proxy)
		if err != nil || !netip.MustParsePrefix("10.0.0.0/8").Contains(addr.Addr().Unmap()) {
			return // no trusted proxy
		}
		th, _ := newThrottler()
		byIP := middleware.ClientIP(&middleware.IPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
		core := policy("core", per(10, time.Hour))
		h := must(newMiddleware(th, middleware.Limit(core, byIP), nil))(status(200))
		used := func(remote string, forwardedFor ...string) string {
			r, err := http.NewRequest(http.MethodGet, "/", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.RemoteAddr = remote
			r.Header["X-Forwarded-For"] = forwardedFor
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Header().Get("X-RateLimit-Used")
		}
		const client = "203.0.113.9"
		if got := used(proxy, client); got != "1" {
			t.Fatalf("used %q, want 1", got)
		}
		chain := []string{forged + ", " + client}
		if lines {
			chain = []string{forged, client}
		}
		if got := used(proxy, chain...); got != "2" {
			t.Errorf("X-Forwarded-For: %q through a proxy: used %s, want 2: the client is %s", chain, got, client)
		}
		if got := used(client+":1234", strings.Repeat(forged, 2)); got != "3" {
			t.Errorf("X-Forwarded-For: %q without a proxy: used %s, want 3: the client is %s", forged, got, client)
		}
	})
}
