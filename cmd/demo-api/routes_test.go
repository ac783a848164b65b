package main

import (
	"encoding/json"
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

// TestUnchangedIsFree asks with an ETag, in each of the forms that clients
// send it: what was not changed is not charged.
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

func TestRateLimitIsFreeAndWhole(t *testing.T) {
	d := startDemo(t, "policies:\n  extra: {limits: [{quota: 7, window: 1h}]}\n")
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
			"core": {60, 0, 60}, "search": {30, 1, 29}, "auth.createToken": {5, 0, 5}, "extra": {7, 0, 7},
		} {
			if got := answer.Resources[name]; [3]int64{got.Limit, got.Used, got.Remaining} != want {
				t.Errorf("%s: got %+v, want limit, used, remaining %v", name, got, want)
			}
		}
	}
}

func TestCallers(t *testing.T) {
	alone := startDemo(t, "")
	behind := startDemo(t, "trusted_proxies: [127.0.0.0/8, 10.0.0.0/8]\n")
	for _, test := range []struct {
		name    string
		d       *demo
		headers []string
		want    string
	}{
		{"address", alone, nil, "1/60 core"},
		{"address again", alone, nil, "2/60 core"},
		{"a token", alone, []string{"Authorization", "Bearer one"}, "1/60 core"},
		{"the token again", alone, []string{"Authorization", "bearer one"}, "2/60 core"},
		{"another token", alone, []string{"Authorization", "Bearer two"}, "1/60 core"},
		{"not a token", alone, []string{"Authorization", "Basic b25lOnR3bw=="}, "3/60 core"},
		{"whom nobody vouches for", alone, []string{"X-Forwarded-For", "192.0.2.1"}, "4/60 core"},
		{"the proxy itself", behind, nil, "1/60 core"},
		{"behind the proxy", behind, []string{"X-Forwarded-For", "192.0.2.1"}, "1/60 core"},
		{"behind two proxies", behind, []string{"X-Forwarded-For", "198.51.100.9, 192.0.2.1, 10.0.0.7"}, "2/60 core"},
		{"another behind it", behind, []string{"X-Forwarded-For", "192.0.2.2"}, "1/60 core"},
		{"garbage counts for the proxy", behind, []string{"X-Forwarded-For", "192.0.2.3, garbage"}, "2/60 core"},
	} {
		if r := test.d.get("/repos/acme/rockets", test.headers...); r.rates() != test.want {
			t.Errorf("%s: got %v, want %s", test.name, r, test.want)
		}
	}
}

// TestChain charges members and their organisation together: who has used up
// its own quota costs the organisation nothing.
func TestChain(t *testing.T) {
	d := startDemo(t, "policies:\n  org: {limits: [{quota: 5, window: 1h}]}\n  org.member: {limits: [{quota: 3, window: 1h}]}\n")
	for _, test := range []struct{ org, member, want string }{
		{"acme", "one", "1/3 org.member"}, {"acme", "one", "2/3 org.member"}, {"acme", "one", "3/3 org.member"},
		{"acme", "one", "3/3 org.member"}, // refused
		{"acme", "two", "4/5 org"}, {"acme", "two", "5/5 org"},
		{"acme", "two", "5/5 org"}, // refused, with one left to itself
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
