package middleware_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

// The keys that are made without a request equal the keys of requests.
func TestKeyFor(t *testing.T) {
	alice := middleware.Subject(func(*http.Request) (string, bool) { return "alice", true })
	org := middleware.KeyFunc(func(*http.Request) (string, bool) { return "org:acme", true })
	wide := middleware.ClientIP(&middleware.IPOptions{IPv6Prefix: 48})
	type test struct {
		name  string
		key   middleware.Key
		texts []string
		from  string // the address of the request
	}
	tests := []test{
		{"subject", alice, []string{"alice"}, ""},
		{"organisation", org, []string{"org:acme"}, ""},
		{"method", middleware.Method(), []string{"GET"}, ""},
		{"everyone", middleware.Everyone(), nil, ""},
		{"joined", middleware.Join(alice, middleware.Method(), middleware.RoutePattern()), []string{"alice", "GET", ""}, ""},
		{"joined with an address", middleware.Join(org, middleware.ClientIP(nil), middleware.Everyone()), []string{"org:acme", "203.0.113.7", ""}, "203.0.113.7"},
		{"with a port", middleware.ClientIP(nil), []string{"[2001:db8::1]:80"}, "2001:db8::1"},
		{"the prefix of a client", middleware.ClientIP(nil), []string{"2001:db8::/64"}, "2001:db8::1"},
		{"the prefix of a wide client", wide, []string{"2001:db8::/48"}, "2001:db8::1"},
		{"a prefix of one address", middleware.ClientIP(nil), []string{"203.0.113.7/32"}, "203.0.113.7"},
	}
	for _, addr := range []string{"203.0.113.7", "::ffff:203.0.113.7", "2001:db8:1:2::1", "64:ff9b::1.2.3.4", "2002:102:304::1", "64:ff9b:1::1"} {
		tests = append(tests, test{addr, middleware.ClientIP(nil), []string{addr}, addr}, test{addr + " in a /48", wide, []string{addr}, addr})
	}
	for _, test := range tests {
		want, ok := keyOf(test.key, "10.0.0.1:99", "X-Forwarded-For", test.from)
		if got, err := test.key.For(test.texts...); !ok || got != want || err != nil {
			t.Errorf("%s: got %q, error %v; want %q", test.name, got, err, want)
		}
	}
}

func TestKeyForErrorsSayWhatWouldBeRight(t *testing.T) {
	alice := middleware.Subject(func(*http.Request) (string, bool) { return "alice", true })
	ip := middleware.ClientIP(nil)
	for _, test := range []struct {
		key   middleware.Key
		texts []string
		want  string
	}{
		{alice, []string{""}, "the subject is empty"},
		{alice, []string{"subject:alice"}, "begins with subject:; it must be without"},
		{alice, []string{"alice", "bob"}, "2 texts; this key takes 1"},
		{ip, []string{"203.0.113.0/24"}, "203.0.113.0/24, a range; each address of IPv4 has a count, so name one, such as 203.0.113.0"},
		{ip, []string{"2001:db8::/32"}, "2001:db8::/32, a range; each /64 of IPv6 has a count, so name an address, such as 2001:db8::"},
		{middleware.ClientIP(&middleware.IPOptions{IPv6Prefix: 48}), []string{"2001:db8::/64"}, "a range; each /48 of IPv6"},
		{ip, []string{"ip:203.0.113.7"}, "begins with ip:; it must be without"},
		{ip, []string{"alice"}, "the address is alice; it must be one of IPv4 or IPv6"},
		{ip, nil, "0 texts; this key takes 1"},
		{middleware.Method(), []string{"get"}, "the method is get; it must be GET"},
		{middleware.Method(), []string{"FETCH"}, "the method is FETCH; it must be one of net/http's"},
		{middleware.RoutePattern(), []string{""}, "the route's pattern is empty"},
		{middleware.Everyone(), []string{"alice"}, "Everyone takes none"},
		{middleware.FirstOf(alice, ip), []string{"alice"}, "FirstOf has keys of several kinds; call For of the one that the client has"},
		{middleware.Join(alice, ip), []string{"alice"}, "1 texts; Join of 2 keys takes one for each"},
		{middleware.Join(alice, ip), []string{"alice", "10.0.0.0/8"}, "a range"},
		{middleware.KeyFunc(func(*http.Request) (string, bool) { return "", false }), []string{""}, "the key is empty"},
		{middleware.Key{}, []string{"alice"}, "a Key is the zero value"},
	} {
		if got, err := test.key.For(test.texts...); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), test.want) || got != "" {
			t.Errorf("For(%q) is %q, error %v; want %q", test.texts, got, err, test.want)
		}
	}
}

// warnings keeps the warnings of an observer.
type warnings struct {
	observe.Nothing
	list []observe.Warned
}

func (w *warnings) Warned(e observe.Warned) { w.list = append(w.list, e) }

// take returns the policies and texts since the last call.
func (w *warnings) take() (texts []string) {
	for _, e := range w.list {
		texts = append(texts, e.Policy+": "+e.Text+" ("+e.Hint+")")
	}
	w.list = nil
	return texts
}

// Verbs about a key of a form that no request has are warned of, once for each policy.
func TestVerbsForAKeyThatNoRequestHas(t *testing.T) {
	alice := middleware.Subject(func(*http.Request) (string, bool) { return "alice", true })
	org := middleware.KeyFunc(func(*http.Request) (string, bool) { return "org:acme", true })
	p := policy("core", per(60, time.Hour))
	for _, test := range []struct {
		name     string
		classify middleware.Classifier
		charge   throttler.Charge
		want     string // of the warning, or "" for none
	}{
		{"a subject alone", middleware.Limit(p, middleware.FirstOf(alice, middleware.ClientIP(nil))), p.Charge("alice"), "those of this policy's requests begin with subject: or ip:"},
		{"a subject's key", middleware.Limit(p, middleware.FirstOf(alice, middleware.ClientIP(nil))), p.Charge("subject:bob"), ""},
		{"requests without a key", middleware.Limit(p, alice), p.Charge("unknown:"), ""},
		{"an address of IPv6", middleware.Limit(p, middleware.ClientIP(nil)), p.Charge("ip:2001:db8::1"), "begin with ip:"},
		{"a range", middleware.Limit(p, middleware.ClientIP(nil)), p.Charge("ip:203.0.113.0/24"), "begin with ip:"},
		{"a network", middleware.Limit(p, middleware.ClientIP(nil)), p.Charge("ip:2001:db8::/64"), ""},
		{"one part of a joined key", middleware.Limit(p, middleware.Join(alice, middleware.Method())), p.Charge("subject:alice"), "begin with join:"},
		{"a function's key", middleware.Limit(p, org), p.Charge("acme"), ""},
		{"without Within", middleware.Limit(p, alice).Within(org), p.Charge("subject:alice"), "Charge.Within(outer) names the count"},
		{"with Within", middleware.Limit(p, alice).Within(org), p.Charge("subject:alice").Within("org:acme"), ""},
		{"a Within that requests don't have", middleware.Limit(p, alice), p.Charge("subject:alice").Within("org:acme"), "leave out Within"},
		{"a function's charges", middleware.All(middleware.Limit(p, alice), charging(p.Charge("k"))), p.Charge("subject:alice"), ""},
		{"another policy", middleware.Limit(p, alice), policy("other", per(1, time.Hour)).Charge("k"), ""},
	} {
		verbs := map[string]func(th *throttler.Throttler) error{
			"Reset": func(th *throttler.Throttler) error { return th.Reset(t.Context(), test.charge) },
			"Pause": func(th *throttler.Throttler) error { return th.Pause(t.Context(), t0.Add(time.Hour), test.charge) },
			"Peek": func(th *throttler.Throttler) error {
				_, err := th.Peek(t.Context(), test.charge)
				return err
			},
		}
		for verb, call := range verbs {
			seen := new(warnings)
			th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(t0), Observer: seen})
			must(newMiddleware(th, test.classify, nil))
			for range 2 {
				if err := call(th); err != nil {
					t.Fatal(err)
				}
			}
			switch got := seen.take(); {
			case test.want == "" && len(got) == 0:
			case test.want == "" || len(got) != 1 || !strings.Contains(got[0], test.want) || !strings.HasPrefix(got[0], "core: "+verb+" is for "):
				t.Errorf("%s, %s: the warnings are %q; want one with %q", test.name, verb, got, test.want)
			}
		}
	}
}

// An override for a key of a form that no request has is warned of at the next request.
func TestOverridesForAKeyThatNoRequestHas(t *testing.T) {
	var table policies.Table
	override := func(policy, key string) {
		if err := table.Source("code").Edit(func(e *policies.Edit) {
			e.Override(policies.Override{Policy: policy, Key: key, Blocked: true})
		}); err != nil {
			t.Fatal(err)
		}
	}
	override("core", "subject:mallory")
	override("other", "mallory")
	seen := new(warnings)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &table, Observer: seen})
	h := must(newMiddleware(th, middleware.Limit(policy("core", per(60, time.Hour)), middleware.BearerToken(anyToken)), nil))(status(200))
	bob := []string{"Authorization", "Bearer bob"}
	expect(t, get(h, bob...), 200)
	if got := seen.take(); len(got) > 0 {
		t.Errorf("the warnings are %q; want none", got)
	}
	override("core", "mallory")
	for range 2 {
		expect(t, get(h, bob...), 200)
	}
	override("core", "carol")
	expect(t, get(h, bob...), 200)
	want := []string{"core: an override is for a key of a form that no request has, and has no effect (Key.For of package middleware makes keys; those of this policy's requests begin with subject:)"}
	if got := seen.take(); !slices.Equal(got, want) {
		t.Errorf("the warnings are %q; want %q", got, want)
	}
}
