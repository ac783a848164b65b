package forwardauth

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

const policies = `
policies: {core: 2 per 1m, login: 1 per 1m, all: 5 per 1m, never: 1 per 1h}
`

// open returns the handler of rules, and its clock.
func open(t *testing.T, observer observe.Observer) (http.Handler, *clock.Manual) {
	t.Helper()
	program := new(Program)
	c, err := config.Parse("weir.yaml", []byte(rules), &config.Options{Program: program})
	if err != nil {
		t.Fatal(err)
	}
	now := clock.NewManual(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	h, err := New(throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: now}), c, program.ForwardAuth, observer)
	if err != nil {
		t.Fatal(err)
	}
	return h, now
}

// ask asks as a proxy at 10.0.0.1 about a request such as "POST example.com/login from
// 192.0.2.1". Further words are headers.
func ask(h http.Handler, about string, more ...string) *httptest.ResponseRecorder {
	words := strings.Fields(about)
	host, path, _ := strings.Cut(words[1], "/")
	r := httptest.NewRequest(http.MethodGet, "/?status=403", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	r.Header.Set("X-Forwarded-Method", words[0])
	r.Header.Set("X-Forwarded-Host", host)
	r.Header.Set("X-Forwarded-Uri", "/"+path)
	r.Header.Set("X-Forwarded-For", words[3])
	for _, header := range more {
		name, value, _ := strings.Cut(header, ": ")
		switch {
		case name == "RemoteAddr":
			r.RemoteAddr = value
		case name == "Path":
			r.URL.Path = value
		case strings.HasPrefix(name, "+"):
			r.Header.Add(name[1:], value)
		case value == "":
			r.Header.Del(name)
		default:
			r.Header.Set(name, value)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const rules = policies + `
forward_auth:
  listen: 127.0.0.1:8082
  trusted_proxies: [10.0.0.0/8]
  documentation_url: https://example.com/limits
  rules:
    - {paths: [/healthz], free: true}
    - {hosts: [api.example.com, "*.apis.example.com"], paths: [/login, "/users/{id}/token"], methods: [POST], charge: [login by ip, all by everyone]}
    - {headers: {X-Plan: free, X-Any: "*"}, charge: [core by header:X-Key and host]}
    - {hosts: [example.com], charge: [core by ip]}
`

// The policy that charges a request shows the rule that matched.
func TestRules(t *testing.T) {
	for about, want := range map[string]string{
		"GET example.com/healthz from 192.0.2.1":                        "",
		"POST api.example.com/login from 192.0.2.1":                     "login",
		"POST API.example.com:443/login?x=1 from 192.0.2.1":             "login",
		"POST api.example.com./login from 192.0.2.1":                    "login",
		"POST a.apis.example.com/users/7/token from 192.0.2.1":          "login",
		"POST apis.example.com/login from 192.0.2.1":                    "",
		"POST evilapis.example.com/login from 192.0.2.1":                "",
		"GET api.example.com/login from 192.0.2.1":                      "",
		"POST api.example.com//login from 192.0.2.1":                    "login",
		"POST api.example.com?x=1 from 192.0.2.1":                       "",
		"POST api.example.com/x/../login from 192.0.2.1":                "login",
		"POST api.example.com/x/%2e%2e/%6cogin from 192.0.2.1":          "login",
		"POST api.example.com/healthz/../login from 192.0.2.1":          "login",
		"POST api.example.com/login/x from 192.0.2.1":                   "",
		"Post api.example.com/login from 192.0.2.1":                     "login",
		"GET example.com/login from 192.0.2.1":                          "core",
		"GET elsewhere.com/ from 192.0.2.1":                             "",
		"GET elsewhere.com/ from 192.0.2.1 X-Plan:free X-Any:1 X-Key:k": "core",
		"GET elsewhere.com/ from 192.0.2.1 X-Plan:free X-Key:k":         "",
		"GET elsewhere.com/ from 192.0.2.1 X-Plan:gold X-Any:1 X-Key:k": "",
	} {
		h, _ := open(t, nil)
		var headers []string
		for _, word := range strings.Fields(about)[4:] {
			headers = append(headers, strings.Replace(word, ":", ": ", 1))
		}
		w := ask(h, about, headers...)
		if got := w.Header().Get("X-RateLimit-Resource"); w.Code != http.StatusOK || got != want {
			t.Errorf("%s: %d, charged under %q; want %q", about, w.Code, got, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	h, now := open(t, nil)
	about := "GET example.com/x from 192.0.2.1"
	for range 2 {
		if w := ask(h, about); w.Code != http.StatusOK {
			t.Fatal(w.Code, w.Body)
		}
	}
	w := ask(h, about)
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "60" || w.Header().Get("X-RateLimit-Remaining") != "0" || !strings.Contains(w.Body.String(), "https://example.com/limits") || w.Header().Get(StatusHeader) != "" {
		t.Errorf("refused: %d %v %s", w.Code, w.Header(), w.Body)
	}
	if w := ask(h, about, "Path: /403"); w.Code != http.StatusForbidden || w.Header().Get(StatusHeader) != "429" || w.Header().Get("Retry-After") != "60" || w.Body.Len() == 0 {
		t.Errorf("refused with 403: %d %v %s", w.Code, w.Header(), w.Body)
	}
	// The answer to a HEAD is the answer to the proxy's GET.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = "10.0.0.1:4711"
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	r, _ := http.NewRequest(http.MethodGet, server.URL, nil)
	for name, value := range map[string]string{"Method": "HEAD", "Host": "example.com", "Uri": "/x", "For": "192.0.2.1"} {
		r.Header.Set("X-Forwarded-"+name, value)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil || response.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("about a HEAD: %v, %v", response, err)
	}
	_ = response.Body.Close()
	for _, from := range []string{"192.0.2.2", "192.0.2.1, 192.0.2.3", "192.0.2.1, 192.0.2.4, 10.2.3.4"} {
		if w := ask(h, "GET example.com/x from x", "X-Forwarded-For: "+from); w.Code != http.StatusOK {
			t.Errorf("another client, %s: %d", from, w.Code)
		}
	}
	if w := ask(h, "GET example.com/x from x", "X-Forwarded-For: 203.0.113.9, 192.0.2.1"); w.Code != http.StatusTooManyRequests {
		t.Errorf("the same client, with an address that it made up: %d", w.Code)
	}
	now.Advance(time.Minute)
	if w := ask(h, about); w.Code != http.StatusOK {
		t.Errorf("a minute later: %d", w.Code)
	}
}

// A client that omits a header has its address's quota, and not a fresh one.
func TestKeys(t *testing.T) {
	h, _ := open(t, nil)
	plan := []string{"X-Plan: free", "X-Any: 1"}
	code := func(about string, more ...string) int { return ask(h, about, append(plan, more...)...).Code }
	for i, c := range []struct {
		about, key string
		want       int
	}{
		{"GET a.org/ from 192.0.2.1", "X-Key: k", 200}, {"GET a.org/ from 192.0.2.2", "X-Key: k", 200}, {"GET a.org/ from 192.0.2.3", "X-Key: k", 429},
		{"GET b.org/ from 192.0.2.3", "X-Key: k", 200},
		{"GET a.org/ from 192.0.2.3", "X-Key: ", 200}, {"GET a.org/ from 192.0.2.3", "X-Key: ", 200}, {"GET a.org/ from 192.0.2.3", "X-Key: ", 429},
	} {
		if got := code(c.about, c.key); got != c.want {
			t.Errorf("%d: %s, %s: %d, want %d", i, c.about, c.key, got, c.want)
		}
	}
	// All or nothing: a refused login charges nothing of all's five.
	for i, want := range []int{200, 429, 429, 429, 429, 429} {
		if w := ask(h, "POST api.example.com/login from 192.0.2.1"); w.Code != want {
			t.Errorf("login %d: %d, want %d", i, w.Code, want)
		}
	}
	for i := range 5 {
		want := 200
		if i == 4 {
			want = 429
		}
		if w := ask(h, fmt.Sprintf("POST api.example.com/login from 192.0.2.%d", 10+i)); w.Code != want {
			t.Errorf("login of client %d: %d, want %d", i, w.Code, want)
		}
	}
}

// warnings is an observer that keeps the warnings.
type warnings struct {
	observe.Nothing
	all []observe.Warned
}

func (w *warnings) Warned(e observe.Warned) { w.all = append(w.all, e) }

// A request that no proxy would send is refused, and never allowed.
func TestNoQuestion(t *testing.T) {
	seen := new(warnings)
	h, _ := open(t, seen)
	about := "GET example.com/x from 192.0.2.1"
	for _, c := range []struct {
		more, text string
		want       int
	}{
		{"RemoteAddr: 192.0.2.9:1", "no trusted proxy; add it to forward_auth.trusted_proxies", 403},
		{"RemoteAddr: @", "no trusted proxy", 403},
		{"X-Forwarded-For: ", "X-Forwarded-For is missing", 500},
		{"X-Forwarded-Uri: ", "X-Forwarded-Uri is missing", 500},
		{"X-Forwarded-Method: ", "X-Forwarded-Method is missing", 500},
		{"X-Forwarded-Host: ", "", 200}, // HTTP/1.0
		{"X-Forwarded-Uri: /%zz", "X-Forwarded-Uri is no path", 400},
		{"X-Forwarded-Uri: nothing", "X-Forwarded-Uri is no path", 400},
		{"X-Forwarded-Uri: /healthz#/../login", "X-Forwarded-Uri is no path", 400},
		{"X-Forwarded-Uri: /x\x00", "X-Forwarded-Uri is no path", 400},
		{"X-Forwarded-Uri: /" + strings.Repeat("%2f..;%5c", 900), "X-Forwarded-Uri is no path", 400},
		{"+X-Forwarded-Uri: /healthz", "X-Forwarded-Uri appears twice; the proxy must replace the value that a client sends", 500},
		{"+x-forwarded-method: GET", "X-Forwarded-Method appears twice", 500},
		{"+X-Forwarded-Host: other.example.com", "X-Forwarded-Host appears twice", 500},
		{"+X-Forwarded-For: 192.0.2.7", "", 200},
		{"Path: /200", "it must be /, or the status of refusals", 500},
		{"Path: /check", "it must be /, or the status of refusals", 500},
	} {
		if w := ask(h, about, c.more); w.Code != c.want || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%.80s: %d %s; want %d, and %q", c.more, w.Code, w.Body, c.want, c.text)
		}
	}
	if len(seen.all) != 2 || !strings.Contains(seen.all[0].Text, "no trusted proxy") || !strings.Contains(seen.all[1].Text, "without X-Forwarded-Host") {
		t.Errorf("warnings %+v; want one of the first, and one about the host", seen.all)
	}
}

// Rules that only look like others' are none.
func TestNoMistakes(t *testing.T) {
	openWith(t, policies+`
forward_auth:
  listen: 127.0.0.1:8082
  trusted_proxies: [10.0.0.0/8]
  rules:
    - {paths: [/login], charge: [login by ip]}
    - {paths: [/login], loose: true, charge: [login by ip]}
    - {paths: [/a/], methods: [GET], headers: {X-A: b}, charge: [core by ip, core by host]}
    - {paths: [/a/], methods: [GET], headers: {X-A: "*"}, charge: [core by ip]}
    - {paths: ["/{x}/b", "/c/{x...}"], methods: [PURGE], charge: [core by ip]}
    - {paths: ["/{x}/b", /v1/, "/(x)/"], hosts: [a.example.com, example.com], charge: [core by ip]}
    - {hosts: ["*.example.com"], charge: [core by ip]}
    - {charge: [core by ip]}
`)
}

func TestMistakes(t *testing.T) {
	const before = policies + "forward_auth:\n  listen: 127.0.0.1:8082\n  trusted_proxies: [10.0.0.0/8]\n"
	for text, want := range map[string]string{
		policies + "forward_auth: {rules: [{free: true}]}":                                                                                 "forward_auth.trusted_proxies",
		policies + "forward_auth: {listen: 8082, rules: []}":                                                                               `forward_auth.listen is "8082"; it must be a host and a port`,
		before + "  rules: []":                                                                                                             "it must be a list of rules",
		before + "  rules: [{path: /login}]":                                                                                               "unknown key path; did you mean paths?",
		before + "  rules: [{paths: [/login]}]":                                                                                            "it must be a rule with charge",
		before + "  rules: [{free: true, charge: [core by ip]}]":                                                                           "left out, because the rule charges",
		before + "  rules: [{charge: [core]}]":                                                                                             "it must be a policy and a key, such as core by ip",
		before + "  rules: [{charge: [core by cookie]}]":                                                                                   "keys are ip, host, method, everyone and header:NAME",
		before + "  rules: [{charge: [core by ip or host]}]":                                                                               "it must be a policy and a key",
		before + "  rules: [{charge: [core by ip and]}]":                                                                                   "it must be a policy and a key",
		before + "  rules: [{charge: ['core by header:']}]":                                                                                "it must be a policy and a key",
		before + "  rules: [{charge: ['core by header:IP']}]":                                                                              "it must be a policy and a key",
		before + "  rules: [{charge: [core by IP]}]":                                                                                       "it must be a policy and a key",
		before + "  rules: [{charge: [cor by ip]}]":                                                                                        `forward_auth.rules[0].charge[0]: "cor" is no policy of the file; it must be one of all, core, login, never`,
		before + "  rules: [{free: true, paths: [login]}]":                                                                                 "it must be a path, such as /login",
		before + "  rules: [{free: true, paths: ['/{x}{y}']}]":                                                                             "it must be a path, such as /login",
		before + "  rules: [{free: true, paths: [/a], loose: true}]":                                                                       "left out: a rule that charges nothing is for its exact paths",
		before + "  rules: [{charge: [core by ip], loose: true}]":                                                                          "left out, because the rule has no paths",
		before + "  ambiguous_paths: allow\n  rules: [{free: true}]":                                                                       "it must be charge, for every rule that one reading of the path matches, or refuse",
		before + "  rules: [{free: true, hosts: ['api.*.com']}]":                                                                           "it must be a host without a port",
		before + "  rules: [{free: true, hosts: ['api.com:80']}]":                                                                          "it must be a host without a port",
		before + "  rules: [{free: true, methods: [post]}]":                                                                                "it must be a method in capitals: POST",
		before + "  rules: [{free: true, methods: [ANY]}]":                                                                                 "for all methods, leave methods out",
		before + "  rules: [{free: true, methods: [PSOT]}]":                                                                                "it must be a method of HTTP or WebDAV in capitals",
		before + "  rules: [{free: true, methods: [GET, GET]}]":                                                                            "left out, because it is there twice",
		before + "  rules: [{free: true, paths: ['/api/*']}]":                                                                              "it must be /api/ for all under it",
		before + "  rules: [{free: true, paths: ['/api/**']}]":                                                                             "it must be /api/ for all under it",
		before + "  rules: [{free: true, paths: ['/*']}]":                                                                                  "it must be / for all under it",
		before + "  rules: [{free: true, paths: ['/users/*/x']}]":                                                                          "it must be /users/ for all under it, or have a name such as {id} for one segment",
		before + "  rules: [{free: true, paths: ['/users/:id']}]":                                                                          "it must be written with {id}",
		before + "  rules: [{free: true, paths: ['/login?next=x']}]":                                                                       "it must be /login: a path has no query",
		before + "  rules: [{free: true, paths: [/%61]}]":                                                                                  "it must be written decoded",
		before + "  rules: [{free: true, paths: [//x]}]":                                                                                   "it must be without empty segments",
		before + "  rules: [{free: true, paths: [/a/../b]}]":                                                                               "it must be without empty segments, '.' and '..'",
		before + "  rules: [{free: true, paths: [/a/./]}]":                                                                                 "it must be without empty segments, '.' and '..'",
		before + "  rules: [{free: true, paths: ['/(login|x)']}]":                                                                          "it is no regular expression",
		before + "  rules: [{free: true, paths: ['/a;x=1']}]":                                                                              "without control characters and parameters",
		before + "  rules: [{free: true, paths: [/a/, /a/b]}]":                                                                             "left out, because paths[0] contains it",
		before + "  rules: [{free: true, paths: [/a, /a]}]":                                                                                "left out, because paths[0] contains it",
		before + "  rules: [{free: true, hosts: [a.b.c, '*.b.c']}]":                                                                        "left out, because hosts[1] contains it",
		before + "  rules: [{free: true}]":                                                                                                 "a list with a rule that has charge: these limit nothing",
		before + "  rules: [{paths: [], charge: [core by ip]}]":                                                                            "rules[0].paths is empty; it must be left out, for all, or not empty",
		before + "  rules: [{methods: [], hosts: [a], charge: [core by ip]}]":                                                              "rules[0].methods is empty",
		before + "  rules: [{hosts: [], charge: [core by ip]}]":                                                                            "rules[0].hosts is empty",
		before + "  rules: [{headers: {}, charge: [core by ip]}]":                                                                          "rules[0].headers is a mapping; it must be left out",
		before + "  rules: [{headers: {X-Plan: ''}, charge: [core by ip]}]":                                                                "rules[0].headers.X-Plan is missing; it must be a value, or * for any",
		before + "  rules: [{headers: {host: a}, charge: [core by ip]}]":                                                                   "it must be another header: hosts is for the request's host",
		before + "  rules: [{charge: ['core by header:x-forwarded-for']}]":                                                                 "it must be by ip: a client chooses",
		before + "  documentation_url: limits\n  rules: [{charge: [core by ip]}]":                                                          "it must be the URL of a page, such as https://",
		before + "  rules: [{charge: [core by ip, core by ip]}]":                                                                           "left out, because it is there twice",
		before + "  rules: [{charge: [core by ip]}, {paths: [/a], free: true}]":                                                            "it must be before rules[0], or left out",
		before + "  rules: [{paths: [/], free: true}, {paths: [/a], free: true, headers: {X-A: b}}, {charge: [core by ip]}]":               "it must be before rules[0], or left out",
		before + "  rules: [{paths: ['/{x}/'], methods: [GET, POST], free: true}, {paths: [/a/b], methods: [POST], charge: [core by ip]}]": "it must be before rules[0], or left out",
		before + "  rules: [{paths: [/a], free: true}, {paths: [/a], free: true}, {charge: [core by ip]}]":                                 "it must be before rules[0], or left out",
		before + "  rules: [{free: true, headers: {'X Plan': a}}]":                                                                         "it must be the name of a header",
		before + "  dialect: rfc\n  rules: [{free: true}]":                                                                                 "it must be github, ietf, draft-3 or none",
		strings.Replace(before, "1 per 1h}", "1 per 1h, busy: 5 per 30s in-flight}", 1) + "  rules: [{charge: [core by ip, busy by ip]}]":  `forward_auth.rules[0].charge[1]: policy "busy" has a limit in-flight`,
		strings.Replace(before, "10.0.0.0/8", "0.0.0.0/0", 1) + "  rules: []":                                                              "it must be your proxies' own range",
	} {
		program := new(Program)
		c, err := config.Parse("weir.yaml", []byte(text), &config.Options{Program: program})
		if err == nil {
			_, err = New(throttler.New(memorybackend.NewDefault(), nil), c, program.ForwardAuth, nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nerror %v\nwant %q", text, err, want)
		}
	}
}

// A mistake in a rule is one error: the rule is not taken for one of all requests, next to which later
// rules are useless.
func TestAMistakeInARuleIsOneError(t *testing.T) {
	for _, rule := range []string{
		"paths: [login]", "paths: login", "hosts: ['api.com:80']", "hosts: {}", "methods: [get]", "methods: [[GET]]",
		"headers: {'X Plan': a}", "headers: {X-Plan: [a]}", "headers: [X-Plan]", "paths: []", "paths: [/a], methods: [get]",
	} {
		text := `policies: {core: 1 per 1h}
forward_auth:
  listen: 127.0.0.1:0
  trusted_proxies: [127.0.0.0/8]
  rules: [{charge: [core by ip], ` + rule + `}, {paths: [/a], free: true}]
`
		_, err := config.Parse("weir.yaml", []byte(text), &config.Options{Program: new(Program)})
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one error", rule, err)
		}
	}
}
