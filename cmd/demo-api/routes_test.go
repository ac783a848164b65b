package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestRoutes(t *testing.T) {
	d := startDemo(t, "")
	for _, test := range []struct {
		method, path string
		status       int
		rates        string
		body         string // a part of it
	}{
		{"GET", "/repos/acme/rockets", 200, "1/60 core", `"full_name": "acme/rockets"`},
		{"HEAD", "/repos/acme/rockets", 200, "2/60 core", ""},
		{"GET", "/slow?for=1ms", 200, "3/60 core", `"slept": "1ms"`},
		{"GET", "/slow?for=6s", 400, "4/60 core", `for is \"6s\"; it must be a duration from 0s to 5s, such as 500ms`},
		{"GET", "/slow?for=-1s", 400, "5/60 core", `for is \"-1s\"`},
		{"GET", "/slow?for=long", 400, "6/60 core", `for is \"long\"`},
		{"GET", "/export", 200, "7/60 core", "row,square\n"},
		{"GET", "/export?rows=1000", 200, "18/60 core", "999,998001\n"},
		{"GET", "/export?rows=2001", 400, "19/60 core", `rows is \"2001\"; it must be a whole number from 0 to 2000`},
		{"GET", "/search?q=weir", 200, "1/30 search", `"full_name": "acme/weir"`},
		{"GET", "/search", 400, "2/30 search", `q is missing`},
		{"POST", "/auth/token", 201, "1/5 auth.createToken", `"token": "demo_`},
		{"GET", "/healthz", 200, "/ ", "ok\n"},
		{"GET", "/nowhere", 404, "/ ", `"message": "no such route`},
		{"GET", "/repos/acme", 404, "/ ", `"message": "no such route`},
		{"POST", "/repos/acme/rockets", 405, "/ ", `"message": "POST is not allowed here; GET is"`},
		{"GET", "/auth/token", 405, "/ ", `"message": "GET is not allowed here; POST is"`},
	} {
		r := d.send(test.method, test.path)
		if r.status != test.status || r.rates() != test.rates || !strings.Contains(r.body, test.body) {
			t.Errorf("%s %s: got %v, want %d %s …%s…", test.method, test.path, r, test.status, test.rates, test.body)
		}
		if allow := r.header.Get("Allow"); (r.status == 405) != (allow != "") {
			t.Errorf("%s %s: Allow is %q", test.method, test.path, allow)
		}
		if strings.HasPrefix(r.body, "{") && !json.Valid([]byte(r.body)) {
			t.Errorf("%s %s: not JSON: %s", test.method, test.path, r.body)
		}
	}
}

// TestUnchangedIsFree sends an ETag in each form that clients send: a 304 is not charged.
func TestUnchangedIsFree(t *testing.T) {
	d := startDemo(t, "")
	first := d.get("/repos/acme/rockets")
	etag := first.header.Get("ETag")
	if first.status != http.StatusOK || first.rates() != "1/60 core" || !strings.HasPrefix(etag, `"`) {
		t.Fatalf("got %v, ETag %q, want 200 1/60 core and a strong ETag", first, etag)
	}
	for _, match := range []string{etag, "W/" + etag, `"other", ` + etag, "*"} {
		for range 3 {
			r := d.get("/repos/acme/rockets", "If-None-Match", match)
			if r.status != http.StatusNotModified || r.rates() != "1/60 core" || r.body != "" || r.header.Get("ETag") != etag {
				t.Errorf("If-None-Match: %s: got %v, want 304 1/60 core", match, r)
			}
		}
	}
	if r := d.get("/repos/acme/rockets", "If-None-Match", `"other"`); r.status != http.StatusOK || r.rates() != "2/60 core" {
		t.Errorf("changed: got %v, want 200 2/60 core", r)
	}
	if r := d.get("/repos/acme/boats", "If-None-Match", etag); r.status != http.StatusOK {
		t.Errorf("another repository: got %v, want 200", r)
	}
}

// TestSecondaryCountsEveryRequest checks that no request is free without limit: secondary
// charges the requests that the other policies do not.
func TestSecondaryCountsEveryRequest(t *testing.T) {
	d := startDemo(t, "tokens: {one: {}}\npolicies:\n  core: {limits: [{quota: 3, window: 1h}]}\n  secondary: {limits: [{quota: 10, window: 1h}]}\n")
	alice := []string{"Authorization", "Bearer one"}
	etag := d.get("/repos/acme/rockets", alice...).header.Get("ETag")
	used := func(want int) {
		t.Helper()
		if body := d.get("/rate_limit", alice...).body; !strings.Contains(body, fmt.Sprintf(`"secondary":{"limit":10,"used":%d,`, want)) {
			t.Errorf("got %s, want secondary with %d used", body, want)
		}
	}
	used(1)
	for range 3 {
		if r := d.get("/repos/acme/rockets", append(alice, "If-None-Match", etag)...); r.status != http.StatusNotModified || r.rates() != "1/3 core" {
			t.Errorf("unchanged: got %v, want 304 1/3 core", r)
		}
	}
	used(4)
	if r := d.get("/export?rows=100", alice...); r.rates() != "3/3 core" { // costs 2
		t.Errorf("export: got %v, want 3/3 core", r)
	}
	used(5)
	if r := d.get("/repos/acme/rockets", alice...); r.status != http.StatusTooManyRequests {
		t.Errorf("the core quota is used up: got %v, want 429", r)
	}
	used(5) // a refused request is not charged
	for _, path := range []string{"/search?q=weir", "/search", "/orgs/acme/feed", "/orgs/other/feed"} {
		if r := d.get(path, alice...); r.status == http.StatusTooManyRequests {
			t.Errorf("%s: got %v", path, r)
		}
	}
	used(9)
	if r := d.send("POST", "/auth/token", alice...); r.status != http.StatusCreated {
		t.Errorf("the tenth: got %v, want 201", r)
	}
	for _, path := range []string{"/search?q=weir", "/orgs/acme/feed", "/repos/acme/rockets"} {
		if r := d.get(path, alice...); r.status != http.StatusTooManyRequests {
			t.Errorf("%s: got %v, want 429", path, r)
		}
	}
	if r := d.get("/search?q=weir", alice...); r.rates() != "10/10 secondary" {
		t.Errorf("got %v, want 10/10 secondary", r)
	}
	if r := d.get("/search?q=weir"); r.status != http.StatusOK {
		t.Errorf("another caller: got %v, want 200", r)
	}
	if body := d.get("/orgs/acme/rate_limit", alice...).body; !strings.Contains(body, `"org":{"limit":100,"used":1,`) {
		t.Errorf("got %s: a request that secondary refused was charged to the organisation", body)
	}
}

func TestRateLimitIsFreeAndWhole(t *testing.T) {
	d := startDemo(t, "")
	d.get("/search?q=weir")
	for range 2 {
		var answer struct {
			Resources map[string]struct{ Limit, Used, Remaining int64 }
		}
		r := d.get("/rate_limit")
		if err := json.Unmarshal([]byte(r.body), &answer); err != nil {
			t.Fatalf("%v: %v", r, err)
		}
		for name, want := range map[string][3]int64{
			"core": {60, 0, 60}, "search": {30, 1, 29}, "auth.createToken": {5, 0, 5}, "secondary": {900, 1, 899},
		} {
			if got := answer.Resources[name]; [3]int64{got.Limit, got.Used, got.Remaining} != want {
				t.Errorf("%s: got %+v, want limit, used, remaining %v", name, got, want)
			}
		}
	}
}

func TestCallers(t *testing.T) {
	const tokens = "tokens: {key-1: {subject: alice}, key-2: {subject: alice}, bob: {}}\n"
	alone := startDemo(t, tokens)
	behind := startDemo(t, tokens+"trusted_proxies: [127.0.0.0/8, 10.0.0.0/8]\n")
	everyone := startDemo(t, "tokens: any\n")
	nobody := startDemo(t, "tokens: {}\n")
	for _, test := range []struct {
		name    string
		d       *demo
		headers []string
		want    string
	}{
		{"address", alone, nil, "1/60 core"},
		{"address again", alone, nil, "2/60 core"},
		{"a token", alone, []string{"Authorization", "Bearer key-1"}, "1/60 core"},
		{"the token again", alone, []string{"Authorization", "bearer  key-1"}, "2/60 core"},
		{"another token of the same caller", alone, []string{"Authorization", "token key-2"}, "3/60 core"},
		{"another caller", alone, []string{"Authorization", "Bearer bob"}, "1/60 core"},
		{"a name that is no token", alone, []string{"Authorization", "Bearer alice"}, "3/60 core"},
		{"an invented token", alone, []string{"Authorization", "Bearer invented"}, "4/60 core"},
		{"not a token", alone, []string{"Authorization", "Basic b25lOnR3bw=="}, "5/60 core"},
		{"an address from a proxy that is not trusted", alone, []string{"X-Forwarded-For", "192.0.2.1"}, "6/60 core"},
		{"the proxy itself", behind, nil, "1/60 core"},
		{"behind the proxy", behind, []string{"X-Forwarded-For", "192.0.2.1"}, "1/60 core"},
		{"behind two proxies", behind, []string{"X-Forwarded-For", "198.51.100.9, 192.0.2.1, 10.0.0.7"}, "2/60 core"},
		{"another behind it", behind, []string{"X-Forwarded-For", "192.0.2.2"}, "1/60 core"},
		{"garbage counts for the proxy", behind, []string{"X-Forwarded-For", "192.0.2.3, garbage"}, "2/60 core"},
		{"any token", everyone, []string{"Authorization", "Bearer invented"}, "1/60 core"},
		{"any other token", everyone, []string{"Authorization", "Bearer invented too"}, "1/60 core"},
		{"no token where any is taken", everyone, nil, "1/60 core"},
		{"a token where none is known", nobody, []string{"Authorization", "Bearer demo-alice"}, "1/60 core"},
		{"no token there", nobody, nil, "2/60 core"},
	} {
		if r := test.d.get("/repos/acme/rockets", test.headers...); r.rates() != test.want {
			t.Errorf("%s: got %v, want %s", test.name, r, test.want)
		}
	}
	everyone.stderr.find(t, "(every invented token gets a fresh quota)", everyone.ended)
}

// TestIssuedTokensAreNoKeys checks that tokens issued by the demo give no fresh quotas.
func TestIssuedTokensAreNoKeys(t *testing.T) {
	d := startDemo(t, "")
	for used := 1; used <= 3; used++ {
		var answer struct{ Token string }
		if err := json.Unmarshal([]byte(d.send("POST", "/auth/token").body), &answer); err != nil || answer.Token == "" {
			t.Fatalf("no token was issued: %v", err)
		}
		if r := d.get("/search?q=weir", "Authorization", "Bearer "+answer.Token); r.rates() != fmt.Sprintf("%d/30 search", used) {
			t.Errorf("with a token of the demo: got %v, want %d/30", r, used)
		}
	}
}

// TestNoCacheReplaysRates checks that a shared cache keeps no response with a caller's rates,
// whatever the status.
func TestNoCacheReplaysRates(t *testing.T) {
	d := startDemo(t, "policies:\n  auth.createToken: {limits: [{quota: 1, window: 1h}]}\n")
	etag := d.get("/repos/acme/rockets").header.Get("ETag")
	for _, test := range []struct {
		method, path string
		headers      []string
		status       int
		want         string
	}{
		{"GET", "/repos/acme/rockets", nil, 200, "private, no-cache"},
		{"HEAD", "/repos/acme/rockets", nil, 200, "private, no-cache"},
		{"GET", "/repos/acme/rockets", []string{"If-None-Match", etag}, 304, "private, no-cache"},
		{"GET", "/repos/acme/rockets", []string{"If-Match", `"other"`}, 412, "private, no-cache"},
		{"GET", "/repos/acme/rockets", []string{"Range", "bytes=999999-"}, 200, "private, no-cache"},
		{"GET", "/slow?for=1ms", nil, 200, "no-store"},
		{"GET", "/slow?for=x", nil, 400, "no-store"},
		{"GET", "/export?rows=x", nil, 400, "no-store"},
		{"GET", "/export", nil, 200, "no-store"},
		{"GET", "/search?q=weir", nil, 200, "no-store"},
		{"GET", "/search", nil, 400, "no-store"},
		{"GET", "/orgs/acme/feed", nil, 200, "no-store"},
		{"GET", "/rate_limit", nil, 200, "no-store"},
		{"POST", "/auth/token", nil, 201, "no-store"},
		{"POST", "/auth/token", nil, 429, "no-store"},
		{"GET", "/nowhere", nil, 404, "no-store"},
		{"DELETE", "/search", nil, 405, "no-store"},
		{"GET", "/healthz", nil, 200, "no-store"},
	} {
		r := d.send(test.method, test.path, test.headers...)
		vary := strings.Join(r.header.Values("Vary"), ", ")
		if r.status != test.status || strings.Join(r.header.Values("Cache-Control"), "; ") != test.want || !strings.Contains(vary, "Authorization") {
			t.Errorf("%s %s %q: got %v, Cache-Control %q, Vary %q; want %d, %s, Authorization",
				test.method, test.path, test.headers, r, r.header.Values("Cache-Control"), vary, test.status, test.want)
		}
	}
}

// TestDebugIsForTheOperator checks that the API's listener does not serve the operator's
// pages.
func TestDebugIsForTheOperator(t *testing.T) {
	d := startDemo(t, "")
	for path, want := range map[string]string{
		"/": `"/debug/weir?format=json": "counters`, "/debug": `"/debug/weir?format=json": "counters`, "/debug/": `"/debug/weir?format=json": "counters`, "/debug/weir?format=json": `"backend": "memory"`,
	} {
		if r := d.operator(path); r.status != http.StatusOK || !strings.Contains(r.body, want) || r.header.Get("Cache-Control") != "no-store" {
			t.Errorf("operator, %s: got %v, want 200 and %s", path, r, want)
		}
		if r := d.get(path); path != "/" && r.status != http.StatusNotFound {
			t.Errorf("client, %s: got %v, want 404", path, r)
		}
	}
	if r := d.operator("/repos/acme/rockets"); r.status != http.StatusNotFound || !strings.Contains(r.body, "/debug lists them") {
		t.Errorf("the API on the operator's listener: got %v, want 404", r)
	}
	d.get("/repos/acme/rockets")
	if r := d.operator("/debug/weir?format=json"); !strings.Contains(r.body, `"keys": 2`) { // core's and secondary's
		t.Errorf("after one request: got %v, want the memory backend's two keys", r)
	}
	if !strings.HasPrefix(d.debug, "http://127.0.0.1:") {
		t.Errorf("it listens on %s, want loopback", d.debug)
	}
}

// TestChain charges members and their organisation together: a member that has used up its own
// quota charges the organisation nothing.
func TestChain(t *testing.T) {
	d := startDemo(t, "tokens: {one: {}, two: {}}\npolicies:\n  org: {limits: [{quota: 5, window: 1h}]}\n  org.member: {limits: [{quota: 3, window: 1h}]}\n")
	for _, test := range []struct{ org, member, want string }{
		{"acme", "one", "1/3 org.member"}, {"acme", "one", "2/3 org.member"}, {"acme", "one", "3/3 org.member"},
		{"acme", "one", "3/3 org.member"}, // refused
		{"acme", "two", "4/5 org"}, {"acme", "two", "5/5 org"},
		{"acme", "two", "5/5 org"}, // refused; one unit of two's own is left
		{"other", "two", "1/3 org.member"},
	} {
		r := d.get("/orgs/"+test.org+"/feed", "Authorization", "Bearer "+test.member)
		if r.rates() != test.want {
			t.Errorf("%s of %s: got %v, want %s", test.member, test.org, r, test.want)
		}
	}
	r := d.get("/orgs/acme/rate_limit", "Authorization", "Bearer two")
	for _, want := range []string{`"org":{"limit":5,"used":5,"remaining":0`, `"org.member":{"limit":3,"used":2,"remaining":1`} {
		if !strings.Contains(r.body, want) {
			t.Errorf("got %s, want %s in it", r.body, want)
		}
	}
}

func TestQuotaIsKept(t *testing.T) {
	d := startDemo(t, "policies:\n  auth.createToken: {limits: [{quota: 20, window: 2h}, {quota: 5, window: 1h}]}\n")
	for i := range 5 {
		if r := d.send("POST", "/auth/token"); r.status != http.StatusCreated {
			t.Fatalf("token %d: got %v, want 201", i+1, r)
		}
	}
	r := d.send("POST", "/auth/token")
	if r.status != http.StatusTooManyRequests || r.header.Get("Retry-After") == "" {
		t.Errorf("token 6: got %v, Retry-After %q, want 429 and when to come back", r, r.header.Get("Retry-After"))
	}
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "1/60 core" {
		t.Errorf("another policy: got %v, want 200 1/60 core", r)
	}
}
