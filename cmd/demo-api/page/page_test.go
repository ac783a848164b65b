package page

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler/quota"
)

// serve returns a server of the page. With stack, it also starts a stand-in for the program
// that stops servers, which sends its requests to asked.
func serve(t *testing.T, stack bool) (server *httptest.Server, asked chan string) {
	t.Helper()
	o := &Options{
		Caller:  middleware.ClientIP(nil),
		Callers: []Caller{{"alice", "demo-alice"}},
		Policies: []*quota.Policy{
			{Name: "core", Limits: []quota.Limit{{Quota: 60, Window: time.Hour}}},
			{Name: "auth", Limits: []quota.Limit{{Quota: 20, Window: 90 * time.Second, Algorithm: quota.TokenBucket}}},
		},
		Place: func(_ context.Context, caller string) Place { return Place{"redis", "of " + caller} },
	}
	asked = make(chan string, 1)
	if stack {
		o.Stack = filepath.Join(t.TempDir(), "control")
		l, err := net.Listen("unix", o.Stack)
		if err != nil {
			t.Fatal(err)
		}
		controlled := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked <- r.Method + " " + r.URL.String()
		})}
		go func() { _ = controlled.Serve(l) }()
		t.Cleanup(func() { _ = controlled.Close() })
	}
	server = httptest.NewServer(New(o))
	t.Cleanup(server.Close)
	return server, asked
}

// ask sends a request with headers, pairs of a name and a value, such as Host.
func ask(t *testing.T, method, url string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Body.Close() })
	return w
}

func TestPageRunsItsOwnScriptAlone(t *testing.T) {
	server, _ := serve(t, false)
	h := ask(t, "GET", server.URL).Header
	policy := h.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy does not have %s: %s", want, policy)
		}
	}
	if strings.Contains(policy, "unsafe") || h.Get("Content-Type") != "text/html; charset=utf-8" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers: %v", h)
	}
	for _, elsewhere := range []string{"src=\"http", "href=\"http", "@import", "url("} {
		if strings.Contains(html, elsewhere) {
			t.Errorf("the page has %s", elsewhere)
		}
	}
}

func TestState(t *testing.T) {
	server, _ := serve(t, false)
	var s state
	if err := json.NewDecoder(ask(t, "GET", server.URL+"/page/state").Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if len(s.Callers) != 2 || s.Callers[1].Token != "demo-alice" || s.Stack || s.Place.Backend != "redis" || !strings.HasPrefix(s.Place.Shard, "of ip:") {
		t.Errorf("got %+v", s)
	}
	if got := s.Limits["core"][0]; got != (limit{"60 per 1h", "1h", true}) {
		t.Errorf("core: %+v", got)
	}
	if got := s.Limits["auth"][0]; got.Window != "1m30s" || got.AtOnce {
		t.Errorf("auth: %+v", got)
	}
}

func TestAlgorithmsDecideWithoutAWait(t *testing.T) {
	server, _ := serve(t, false)
	var a algorithmsAnswer
	post := func(method string) {
		t.Helper()
		a = algorithmsAnswer{}
		if err := json.NewDecoder(ask(t, method, server.URL+"/page/algorithms").Body).Decode(&a); err != nil {
			t.Fatal(err)
		}
	}
	for range perWindow {
		post("POST")
	}
	if a.Limit != "10 per 10s" || len(a.Algorithms) != len(quota.Algorithms())-1 {
		t.Fatalf("got %+v", a)
	}
	for _, x := range a.Algorithms {
		waits := x.Algorithm == quota.LeakyBucket.String()
		if !x.Allowed || waits != (x.StartIn > 0) || waits && x.StartIn < 5000 {
			t.Errorf("the tenth at once: %+v", x)
		}
	}
	post("GET")
	for _, x := range a.Algorithms {
		if x.Used == 0 || x.Used > perWindow {
			t.Errorf("a look: %+v", x)
		}
	}
}

// The controls that stop servers obey only the page, in a browser on this machine.
func TestControlsObeyThePageAlone(t *testing.T) {
	server, asked := serve(t, true)
	const stop = "/page/stack/server?name=a&stopped=true"
	for _, test := range []struct {
		what, method string
		headers      []string
		status       int
	}{
		{"the page", "POST", []string{"Origin", server.URL, "Sec-Fetch-Site", "same-origin"}, 200},
		{"the page of an old browser", "POST", []string{"Origin", server.URL}, 200},
		{"another site", "POST", []string{"Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site"}, 403},
		{"another port", "POST", []string{"Origin", "http://127.0.0.1:1", "Sec-Fetch-Site", "same-site"}, 403},
		{"another site of an old browser", "POST", []string{"Origin", "http://evil.example"}, 403},
		{"a name that resolves to this machine", "POST", []string{"Host", "evil.example", "Origin", "http://evil.example", "Sec-Fetch-Site", "same-origin"}, 403},
		{"a proxy", "POST", []string{"X-Forwarded-For", "192.0.2.1"}, 403},
	} {
		if got := ask(t, test.method, server.URL+stop, test.headers...).StatusCode; got != test.status {
			t.Errorf("%s: got %d, want %d", test.what, got, test.status)
		}
		select {
		case got := <-asked:
			if test.status != 200 || got != "POST "+stop {
				t.Errorf("%s: the program was asked for %s", test.what, got)
			}
		default:
			if test.status == 200 {
				t.Errorf("%s: the program was not asked", test.what)
			}
		}
	}
	remote := httptest.NewRequest("POST", stop, nil)
	for addr, want := range map[string]bool{"192.0.2.1:1": false, "[::1]:1": true, "[::ffff:127.0.0.1]:1": true} {
		remote.RemoteAddr, remote.Host = addr, "localhost:8080"
		if got := local(remote); got != want {
			t.Errorf("from %s: local is %t", addr, got)
		}
	}
}

func TestWithoutAStackNothingCanBeStopped(t *testing.T) {
	server, _ := serve(t, false)
	for _, path := range []string{"/page/stack", "/page/stack/server?name=a&stopped=true", "/page/stack/flag?percent=1"} {
		if got := ask(t, "POST", server.URL+path).StatusCode; got != http.StatusNotFound {
			t.Errorf("%s: got %d, want 404", path, got)
		}
	}
}
