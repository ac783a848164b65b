package forwardauth

import (
	"bufio"
	"fmt"
	"net/http"
	"net/url"
	urlpath "path"
	"slices"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
)

// openWith returns the handler of a file's rules.
func openWith(t *testing.T, text string) *handler {
	t.Helper()
	program := new(Program)
	c, err := config.Parse("weir.yaml", []byte(text), &config.Options{Program: program})
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(throttler.New(memorybackend.NewDefault(), nil), c, program.ForwardAuth, nil)
	if err != nil {
		t.Fatal(err)
	}
	return h.(*handler)
}

// decided returns the rules that charge a POST request, or nil if it is refused as no path.
func (h *handler) decided(t *testing.T, uri string) (charging []int, ok bool) {
	t.Helper()
	p, ok := pathOf(uri)
	f := &forwarded{method: http.MethodPost, host: "example.com"}
	if ok {
		f.readings, ok = read(p)
	}
	return h.decide(f, nil), ok
}

const pathRules = `
policies: {api: 60 per 1h, login: 5 per 1h, search: 5 per 1h, user: 5 per 1h}
forward_auth:
  listen: 127.0.0.1:8082
  trusted_proxies: [10.0.0.0/8]
  rules:
    - {paths: [/healthz, /static/], free: true}
    - {paths: [/login], methods: [POST], loose: true, charge: [login by ip, api by ip]}
    - {paths: [/search/], charge: [search by ip]}
    - {paths: ["/users/{id}"], charge: [user by ip]}
    - {charge: [api by ip]}
`

func TestReadings(t *testing.T) {
	h := openWith(t, pathRules)
	for uri, want := range map[string][]int{
		"/healthz":                  nil,
		"/healthz?q=/../search/":    nil,
		"/static/a.js":              nil,
		"/static/my%20file.js":      nil,
		"/static/caf%C3%A9.js":      nil,
		"/static/caf\xc3\xa9.js":    nil,
		"/static/100%25.js":         nil,
		"/static/a;v=1.js":          nil,
		"/static/a..b.js":           nil,
		"/search/..%2fhealthz":      {2, 4},
		"/search/..%2Fhealthz?q=1":  {2, 4},
		"/search/..%2fx":            {2, 4},
		"/search/%2e%2e/healthz":    {2, 4},
		"/search/../healthz":        {2, 4},
		`/search/..\healthz`:        {2, 4},
		"/search/..%5chealthz":      {2, 4},
		"/search/..%255chealthz":    {2, 4},
		"/search/..%252fhealthz":    {2, 4},
		"/search/%25252e%25252e/x":  {2, 4},
		"/search/..;/healthz":       {2, 4},
		"/search/..;x=1/healthz":    {2, 4},
		"/search/..%3b/healthz":     {2, 4},
		"/search/..%c0%afhealthz":   {2, 4},
		"/search/..%e0%80%afx":      {2, 4},
		"/search/..%ef%bc%8fx":      {2, 4},
		"/search/%c0%ae%c0%ae/x":    {2, 4},
		"/users/..%2fx":             {3, 4},
		"/users/a%2fb":              {3, 4},
		"/us%65rs/a%2fb":            {3, 4},
		"/healthz%00":               {4},
		"/healthz%00.js":            {4},
		"/healthz%3fx":              {4},
		"/healthz%23x":              {4},
		"/healthz%0a":               {4},
		"/h%65althz":                {4},
		"/healthz/":                 {4},
		"/healthz;x=1":              {4},
		"//healthz":                 {4},
		"/./healthz":                {4},
		"/healthz/.":                {4},
		"/static//a.js":             {4},
		"/static/..;/login":         {4, 1},
		"/static/%2e%2e/login":      {4, 1},
		"/static/x%2f..%2f../login": {4, 1},
		"//example.com/login":       {4, 1},
		"http://example.com/login":  {1},
		"http://example.com":        {4},
		"?q=1":                      {4},
		"*":                         {4},
		"/x//../login":              {4, 1},
		"/a;%2f/%6cogin":            {4},
		"/a;%2f..%2f%6cogin":        {4, 1},
	} {
		got, ok := h.decided(t, uri)
		slices.Sort(got)
		slices.Sort(want)
		if !ok || !slices.Equal(got, want) {
			t.Errorf("%s: charged by the rules %v, %t; want %v", uri, got, ok, want)
		}
	}
	for _, uri := range []string{"", "x", "/%", "/%4", "/%zz", "/%u002f", "/\x01", "/a#b", "/a?#"} {
		if got, ok := h.decided(t, uri); ok && uri != "" {
			t.Errorf("%q is a path, charged by the rules %v", uri, got)
		}
	}
}

func TestLoosePaths(t *testing.T) {
	h := openWith(t, pathRules)
	for _, uri := range []string{
		"/login", "/login/", "/LOGIN", "/Login", "/login;x=1", "/login;", "/login.json", "/login.", "/login..", "/login%20", "/login%20/", "/login%2f", "/login//", "/login%00", "/login%09", "/login%0a",
		"/login.json/", "/LOGIN.JSON;x=1", "/login%2ejson", "/login%3bx", "/login;x/", "/login.;x", "/login%c2%a0", "/%6cogin%2F", "/%4cOGIN", "/lo%67in.xml%20", "/%ef%bd%8cogin", "/login%3fx", "/login%23", "/login?x", "/log%0ain", "/login%252f", "/login/%2e", "/login/x/..",
	} {
		if got, ok := h.decided(t, uri); !ok || !slices.Contains(got, 1) {
			t.Errorf("%s: charged by the rules %v, %t; want the login's among them", uri, got, ok)
		}
	}
	if got, _ := h.decided(t, "/login.json"); !slices.Equal(got, []int{1, 4}) {
		t.Errorf("/login.json, which is no login for some servers, is charged by the rules %v; want the next one's, too", got)
	}
	for _, uri := range []string{"/logins", "/login/x", "/x/login", "/log", "/", "/login-json", "/.login", "/log%20in"} {
		if got, ok := h.decided(t, uri); !ok || slices.Contains(got, 1) {
			t.Errorf("%s: charged by the rules %v, %t; want others than the login's", uri, got, ok)
		}
	}
}

// clean is path.Clean, but a last slash stays.
func clean(p string) string {
	c := urlpath.Clean(p)
	if strings.HasSuffix(p, "/") && c != "/" {
		c += "/"
	}
	return c
}

// servers read paths as some frameworks do.
var servers = map[string]func(sent string) string{
	"as sent": func(sent string) string { return mustDecode(sent, onlyEncoded) }, // a space has one spelling
	"decoded": func(sent string) string { p, _ := url.PathUnescape(sent); return p },
	"cleaned": func(sent string) string { p, _ := url.PathUnescape(sent); return clean(p) },
	"Go": func(sent string) string {
		u, err := url.ParseRequestURI(sent)
		if err != nil {
			return sent
		}
		return mustDecode(clean(u.EscapedPath()), func(c byte) bool { return c != '/' }) // ServeMux decodes each segment
	},
	"twice": func(sent string) string {
		p, _ := url.PathUnescape(sent)
		if q, err := url.PathUnescape(p); err == nil {
			p = q
		}
		return clean(p)
	},
	"Tomcat": func(sent string) string {
		all := strings.Split(sent, "/")
		for i := range all {
			all[i], _, _ = strings.Cut(all[i], ";")
		}
		p, _ := url.PathUnescape(strings.Join(all, "/"))
		return clean(p)
	},
	"IIS": func(sent string) string {
		p, _ := url.PathUnescape(sent)
		return clean(strings.ReplaceAll(p, `\`, "/"))
	},
	"C": func(sent string) string {
		p, _ := url.PathUnescape(sent)
		p, _, _ = strings.Cut(p, "\x00")
		return clean(p)
	},
}

// Whatever a server reads, its rule charges; and no path is free that one of them reads as
// another than the free one.
func TestNoServerReadsAnotherPath(t *testing.T) {
	h := openWith(t, pathRules)
	random := testseed.Rand(t, 1)
	words := []string{"/", "/", "..", ".", "%2e", "%2f", "%2F", "%5c", `\`, ";x", ";", "%00", "%252f", "%25", "%3b", "search", "login", "healthz", "users", "static", "x", "%6cogin", "%20"}
	refused := 0
	const n = 20000
	for range n {
		sent := "/"
		for range 1 + random.IntN(7) {
			sent += words[random.IntN(len(words))]
		}
		if _, err := url.PathUnescape(sent); err != nil {
			continue
		}
		charging, ok := h.decided(t, sent)
		if !ok {
			refused++
			continue
		}
		for name, server := range servers {
			p := server(sent)
			f := &forwarded{method: http.MethodPost, host: "example.com", readings: readings{paths: []string{p}}}
			if p == "" || p[0] != '/' {
				continue
			}
			for _, i := range h.decide(f, nil) {
				if !slices.Contains(charging, i) {
					t.Fatalf("%s is %s for %s, rule %d; it is charged by the rules %v", sent, p, name, i, charging)
				}
			}
		}
	}
	if refused > n/20 {
		t.Errorf("%d of %d paths are refused; want a few", refused, n)
	}
}

// Go's own ServeMux serves no path by a pattern whose rule does not charge it.
func TestServeMux(t *testing.T) {
	h := openWith(t, pathRules)
	mux, rules := http.NewServeMux(), map[string]int{"/login": 1, "/search/": 2, "/users/{id}": 3, "/": 4}
	for pattern := range rules {
		mux.Handle(pattern, http.NotFoundHandler())
	}
	mux.Handle("/healthz", http.NotFoundHandler())
	mux.Handle("/static/", http.NotFoundHandler())
	random := testseed.Rand(t, 2)
	words := []string{"/", "/", "/", "..", ".", "%2e", "%2f", "%5c", `\`, ";x", "%00", "%252f", "%3b", "%3f", "?", "search", "login", "healthz", "users", "%75sers", "static", "x", "%20", "%c0%af", "\xff"}
	for range 20000 {
		sent := "/"
		for range 1 + random.IntN(8) {
			sent += words[random.IntN(len(words))]
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST " + sent + " HTTP/1.1\r\nHost: example.com\r\n\r\n")))
		if err != nil {
			continue
		}
		charging, ok := h.decided(t, sent)
		_, pattern := mux.Handler(r)
		if rule, charged := rules[pattern]; ok && charged && !slices.Contains(charging, rule) {
			t.Fatalf("%q is served by %s, and charged by the rules %v", sent, pattern, charging)
		}
	}
}

// A hostile path costs little.
func TestReadingsAreBounded(t *testing.T) {
	for _, part := range []string{"%2f..;%5c", "/..", "//", "%25", "%252525", ";/", "%c0%af", "%ef%bc%8f", "%00", "%3f%23", `\..`, "/%2e", "a/../", "%25%32%66"} {
		sent := "/" + strings.Repeat(part, 8<<10/len(part))
		begin, most := time.Now(), 0
		const n = 20
		for range n {
			r, _ := read(sent)
			most = max(most, len(r.paths))
		}
		t.Logf("%-12s %v, %d readings", part, time.Since(begin)/n, most)
		if most > maxReadings {
			t.Errorf("%s: %d readings", part, most)
		}
	}
	gitlab := "/api/v4/projects/group%2Fsub%2Fproject/repository/files/src%2Fmain%2Ego/raw"
	if r, ok := read(gitlab); !ok || !r.ambiguous || len(r.paths) > 4 {
		t.Errorf("%+v, %t", r, ok)
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = read("/api/v4/projects/7") }); n > 1 {
		t.Errorf("a plain path takes %v allocations", n)
	}
}

func TestAmbiguousPathsAreRefused(t *testing.T) {
	h := openWith(t, strings.Replace(pathRules, "  rules:", "  ambiguous_paths: refuse\n  rules:", 1))
	for uri, want := range map[string]int{"/users/a%2fb": 400, "//x": 400, "/x": 200, "/static/my%20file": 200, "/healthz": 200} {
		if w := ask(h, fmt.Sprintf("GET example.com%s from 192.0.2.1", uri)); w.Code != want {
			t.Errorf("%s: %d %s; want %d", uri, w.Code, w.Body, want)
		}
	}
}

// A request without a host may be any host's.
func TestNoHost(t *testing.T) {
	h := openWith(t, strings.Replace(pathRules, "    - {charge: [api by ip]}\n", "    - {hosts: [a.example.com], free: true}\n    - {hosts: [b.example.com], charge: [user by ip]}\n    - {charge: [api by ip and host]}\n", 1))
	f := &forwarded{method: http.MethodGet, readings: readings{paths: []string{"/"}}}
	if got := h.decide(f, nil); !slices.Equal(got, []int{5, 6}) {
		t.Errorf("charged by the rules %v", got)
	}
	f.readings.paths[0] = "/healthz"
	if got := h.decide(f, nil); got != nil {
		t.Errorf("/healthz: charged by the rules %v", got)
	}
	if w := ask(h, "GET example.com/ from 192.0.2.1", "X-Forwarded-Host: "); w.Code != http.StatusOK || w.Header().Get("X-RateLimit-Resource") == "" {
		t.Errorf("without a host: %d %v", w.Code, w.Header())
	}
}
