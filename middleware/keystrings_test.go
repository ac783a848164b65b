package middleware_test

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/weir-go/weir/middleware"
)

// The keys that are built without a request equal the keys of requests.
func TestKeyStrings(t *testing.T) {
	alice := middleware.Subject(func(*http.Request) (string, bool) { return "alice", true })
	wide := &middleware.IPOptions{IPv6Prefix: 48}
	type named struct {
		got  string
		key  middleware.Key
		from string
	}
	tests := map[string]named{
		"subject": {middleware.SubjectKey("alice"), alice, ""},
		"joined": {
			middleware.JoinedKey(middleware.SubjectKey("alice"), "method:GET", ""),
			middleware.Join(alice, middleware.Method(), middleware.RoutePattern()), "",
		},
	}
	for _, addr := range []string{"203.0.113.7", "::ffff:203.0.113.7", "2001:db8:1:2::1", "64:ff9b::1.2.3.4", "2002:102:304::1", "64:ff9b:1::1"} {
		tests[addr] = named{middleware.AddressKey(netip.MustParseAddr(addr), nil), middleware.ClientIP(nil), addr}
		tests[addr+" in a /48"] = named{middleware.AddressKey(netip.MustParseAddr(addr), wide), middleware.ClientIP(wide), addr}
	}
	for name, test := range tests {
		if want, ok := keyOf(test.key, "10.0.0.1:99", "X-Forwarded-For", test.from); !ok || test.got != want {
			t.Errorf("%s: got %q, want %q", name, test.got, want)
		}
	}
	if got := middleware.AddressKey(netip.Addr{}, nil); got != "" {
		t.Errorf("of no address: %q", got)
	}
}
