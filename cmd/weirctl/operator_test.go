package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/cmd/internal/clientpage"
	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// tells runs the program, and checks its exit status and parts of its output.
func tells(t *testing.T, status int, args []string, want ...string) {
	t.Helper()
	out, wrong, got := weirctl(t, args...)
	if got != status {
		t.Errorf("weirctl %q: exit status %d, want %d: %s%s", args, got, status, out, wrong)
	}
	text := strings.Join(strings.Fields(out+wrong), " ")
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("weirctl %q: %s%s; want %q", args, out, wrong, w)
		}
	}
}

func args(text string, more ...string) []string { return append(strings.Fields(text), more...) }

// A key that no request is charged for is an error that names the right one.
func TestKeysThatAreMeant(t *testing.T) {
	server := testserver.Redis(t)
	file := write(t, "weir.yaml", "backend: redis\nredis: {shards: [{name: a, primary: "+server.Addr+"}]}\npolicies: {core: 2 per 1h}\n")
	s, err := config.Open(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, key := range []string{"ip:2001:db8::/64", "ip:203.0.113.9", "subject:alice", "org-7"} {
		if _, err := s.Throttler.Take(t.Context(), s.Config.Policies["core"].Charge(key)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("WEIR_CONFIG", file)
	t.Setenv("WEIR_REDIS", server.Addr)
	for key, want := range map[string]string{
		"ip:2001:db8::1":     "did you mean ip:2001:db8::/64, which has counts?",
		"2001:db8::1":        "did you mean ip:2001:db8::/64, which has counts?",
		"ip:2001:0DB8::/64":  "did you mean ip:2001:db8::/64, which has counts?",
		"203.0.113.9":        "did you mean ip:203.0.113.9, which has counts?",
		"203.0.113.9:8080":   "did you mean ip:203.0.113.9, which has counts?",
		"::ffff:203.0.113.9": "did you mean ip:203.0.113.9, which has counts?",
		"ip:203.0.113.9/32":  "did you mean ip:203.0.113.9, which has counts?",
		"ip:203.0.113.0/24":  "each address of IPv4 is charged alone, and no range is",
		"alice":              "did you mean subject:alice, which has counts?",
		"198.51.100.7":       "did you mean ip:198.51.100.7?",
	} {
		tells(t, 1, args("reset -policy core", key), want)
		tells(t, 1, args("show", key), want)
		if key != "alice" { // it may be one of the program's own form
			want, _, _ := strings.Cut(want, ", which")
			tells(t, 1, args("overrides set core", key, "-blocked"), want, "-unchecked sets it all the same")
		}
	}
	tells(t, 0, args("overrides set core alice -blocked"), "did you mean subject:alice")
	tells(t, 0, args("overrides remove core alice"))
	tells(t, 1, args("reset -policy core bob"), "nothing is counted for bob under core")
	tells(t, 0, args("show bob"), "nothing is counted")
	tells(t, 0, args("reset -policy core org-7"), "nothing is counted any more")
	tells(t, 1, args("overrides set corr subject:alice -blocked"), `"corr" is no policy of `+file+"; did you mean core?")
	tells(t, 0, args("overrides set -unchecked corr subject:alice -blocked"), "version")
	tells(t, 1, args("overrides set core subject: -blocked"), "subject: is no key that is charged", "-unchecked sets it all the same")
	tells(t, 1, []string{"policies", "set", "cor", "5 per 1h"}, `"cor" is no policy of `+file+"; did you mean core?", "-unchecked sets it all the same")
	tells(t, 0, []string{"policies", "set", "cor", "5 per 1h", "-unchecked"}, "version")
	tells(t, 0, []string{"policies", "set", "cor", "6 per 1h"}, "version")
	tells(t, 0, []string{"policies", "set", "core-pro", "50 per 1h"}, "version")
	tells(t, 0, args("overrides set core ip:198.51.100.8 -blocked"), "nothing is counted for ip:198.51.100.8 under core yet", "version")
	t.Setenv("WEIR_CONFIG", "")
	tells(t, 1, args("overrides set core subject:alice -blocked"), "nothing says whether the program has it")
}

const edge = `
domain: edge
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 3, name: per-user}}
- {key: user, value: vip, rate_limit: {unit: year, requests_per_unit: 9}}
- key: route
  descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: "path *", value: "/a/*", shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: free, rate_limit: {unlimited: true}}
`

// throttlerdEnv writes throttlerd's files and environment, and returns the file of the latter.
func throttlerdEnv(t *testing.T, addr, more string) (env string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config", "edge.yaml"), []byte(edge), 0o600); err != nil {
		t.Fatal(err)
	}
	return write(t, "throttlerd.env", "# of the unit\nREDIS_SOCKET_TYPE=tcp\nexport REDIS_URL=\""+addr+"\"\nRUNTIME_ROOT="+dir+"\n"+more)
}

// explain and overrides read throttlerd's environment and files.
func TestExplain(t *testing.T) {
	t.Setenv("WEIR_CONFIG", "")
	t.Setenv("WEIR_REDIS", "")
	server := testserver.Redis(t)
	env := throttlerdEnv(t, server.Addr, "CACHE_KEY_PREFIX=staging:\n")
	file := write(t, "weir.yaml", "prefix: 'staging:'\nbackend: redis\nredis: {shards: [{name: redis, primary: "+server.Addr+"}]}\n")
	s, err := config.Open(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, _ := quota.ParseLimit("3 per 8760h aligned")
	p := &quota.Policy{Name: "edge.user", Limits: []quota.Limit{l}}
	for range 4 {
		if _, err := s.Throttler.Take(t.Context(), throttler.Charge{Policy: p, Key: "edge?user=bob", Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	explain := func(text string) []string { return append([]string{"explain", "-env", env}, strings.Fields(text)...) }
	tells(t, 0, explain("edge user=bob"), "refused by edge.user until", "edge.user edge?user=bob edge.user 3 per 365d aligned 3 0")
	tells(t, 0, explain("edge user=vip"), "allowed", "edge.user_vip edge?user=vip edge.user 9 per 365d aligned 0 9")
	tells(t, 0, explain("edge user=bob route=login"), "allowed", "edge.route.user edge?route=login&user=bob", "the rule has the entries in this order")
	tells(t, 0, explain("edge nothing=x + user=bob + free=y"), "refused by edge.user", "note: no rule of edge is for nothing=x", "unlimited")
	tells(t, 1, explain("edge user=bob x=y"), "no rule of edge is for user=bob x=y", "edge.route.user")
	tells(t, 1, explain("edgee user=bob"), `"edgee" is no domain of`, "did you mean edge?")
	tells(t, 2, explain("edge"), "there is no descriptor")
	tells(t, 0, explain("-policy edge.user edge?user=bob"), "refused")
	tells(t, 0, append([]string{"explain", "-env", env, "edge"}, "path *=/a/b"), "shadow_mode: refuses nothing")

	set := func(text ...string) []string { return append([]string{"overrides", "set", "-env", env}, text...) }
	for key, want := range map[string]string{
		"bob": `did you mean "edge?user=bob"?`, "user=bob": `did you mean "edge?user=bob"?`, "edge?name=bob": `a key must be as "edge?user=VALUE"`,
	} {
		tells(t, 1, set("edge.user", key, "-blocked"), want)
		tells(t, 1, args("reset -policy edge.user -env", env, key), want)
	}
	tells(t, 1, set("edge.route.user", "edge?user=bob&route=login", "-blocked"), `did you mean "edge?route=login&user=bob"?`)
	tells(t, 1, set("edge.usr", "edge?user=bob", "-blocked"), "did you mean edge.user?")
	tells(t, 0, set("edge.user", "edge?user=bob", "8 per 8760h aligned", "-owner", "sales", "-reason", "paid"), "version")
	tells(t, 0, explain("edge user=bob"), "allowed", "8 per 365d aligned 3 5", "override of sales: paid")
	tells(t, 0, set("edge.user", "edge?user=bob", "-blocked", "-for", "1h"), "version")
	tells(t, 0, explain("edge user=bob"), "refused by edge.user until", "blocked")
	tells(t, 0, set("edge.path *_/a/*", "edge?path *=/a/b", "-blocked"), "version") // a rule's path is a name, too
	tells(t, 0, args("overrides -env", env), "edge.path")
	tells(t, 0, args("show -env", env, operator.Hash("edge?user=bob")), "the key is edge?user=bob")
	tells(t, 1, args("show -env", env, operator.Hash("edge?user=eve")), "is the hash of no key")
	log := write(t, "access.log", "GET / 192.0.2.1 eve\n")
	tells(t, 0, args("show -env", env, "-keys", log, operator.Hash("edge?user=eve")), "the key is edge?user=eve")
	tells(t, 0, args("reset -env", env, "edge?user=bob"), "nothing is counted any more under edge.user")
}

// A request to forward auth is explained by its rules.
func TestExplainForwardAuth(t *testing.T) {
	server := testserver.Redis(t)
	file := write(t, "weir.yaml", fmt.Sprintf(`backend: redis
redis: {shards: [{name: a, primary: '%s'}]}
policies: {core: 2 per 1h, login: 1 per 1h}
forward_auth:
  listen: 127.0.0.1:0
  trusted_proxies: [127.0.0.0/8]
  rules:
  - {paths: [/login], methods: [POST], charge: [login by ip, "core by header:X-API-Key"]}
  - {charge: [core by ip]}
`, server.Addr))
	t.Setenv("WEIR_CONFIG", file)
	t.Setenv("WEIR_REDIS", "")
	tells(t, 0, args("explain -ip 2001:db8::1 https://example.com/x"), "allowed", "forward_auth.rules[1] ip:2001:db8::/64 core 2 per 1h 0 2")
	tells(t, 0, args("explain -ip 192.0.2.1 -method POST -header", "X-API-Key: k7", "https://example.com/login"), "forward_auth.rules[0] ip:192.0.2.1 login", "forward_auth.rules[0] x-api-key:k7 core")
	tells(t, 0, args("overrides set core ip:192.0.2.1 -blocked"), "version") // in the Redis of the counts
	tells(t, 0, args("explain -ip 192.0.2.1 https://example.com/"), "refused by forward_auth.rules[1]", "blocked")
	tells(t, 2, args("explain https://example.com/"), "-ip is not set")
	tells(t, 1, args("explain -ip alice https://example.com/"), `the address is "alice"; it must be an address of IPv4 or IPv6`)
	tells(t, 2, args("explain -ip 192.0.2.1 https:///login"), "it must be a URL, such as https://example.com/login")
}

// A process says what it counts, also where the store does not have it.
func TestExplainFrom(t *testing.T) {
	table := new(policies.Table)
	stack, err := config.Open(write(t, "weir.yaml", "backend: memory\npolicies: {core: 2 per 1h}\n"), &config.Options{Table: table})
	if err != nil {
		t.Fatal(err)
	}
	defer stack.Close()
	for range 3 {
		if _, err := stack.Throttler.Take(t.Context(), stack.Config.Policies["core"].Charge("k")); err != nil {
			t.Fatal(err)
		}
	}
	page, closePage, err := clientpage.New(&clientpage.Options{
		Stack: stack, Table: table, Service: func() *inspect.Service { return inspect.RunningFile(stack.Config) },
		Operators: write(t, "operators", "dora:correct horse battery\n"), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = closePage() }()
	mux := http.NewServeMux()
	mux.Handle("/debug/weir/client", page)
	server := httptest.NewServer(mux)
	defer server.Close()
	from := "http://dora:correct%20horse%20battery@" + server.Listener.Addr().String() + "/debug/weir"
	tells(t, 0, args("explain -policy core k -from", from), "refused by core until", "- k core 2 per 1h 2 0")
	tells(t, 0, args("explain -policy core other -from", from), "allowed", "- other core 2 per 1h 0 2")
	tells(t, 0, args("explain -json -policy core k -from", from), `"refused": true`, `"limit": "2 per 1h"`)
	tells(t, 1, args("explain -policy cor k -from", from), "422 Unprocessable Entity", "did you mean core?")
	tells(t, 1, args("explain -ip 192.0.2.1 https://example.com -from", from), "there is no forward_auth in the configuration")
	tells(t, 1, args("explain edge -from", from), "there is no descriptor")
	tells(t, 1, args("explain edge a=b -from", server.URL+"/debug/weir"), "401 Unauthorized: sign in")
	tells(t, 1, args("explain edge a=b -from", server.URL), "the URL is wrong (404 Not Found)")
	tells(t, 1, args("explain edge a=b -from http://127.0.0.1:1"), "http://127.0.0.1:1/client: dial tcp")
	tells(t, 2, args("explain edge a=b -from localhost"), `-from is "localhost"; it must be that of a process' debug page`)
	tells(t, 2, args("explain edge a=b -env x -from", from), "-env is set, and -from, too; it must be left out")
}
