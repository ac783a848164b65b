package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/cmd/internal/build"
	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/config"
	weirdebug "github.com/weir-go/weir/contrib/debug"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// weirctl runs the program, and returns its output and exit status.
func weirctl(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, wrong bytes.Buffer
	status = run(t.Context(), args, &out, &wrong)
	return out.String(), wrong.String(), status
}

// must runs the program, and returns the fields of each line of its output.
func must(t *testing.T, args ...string) (lines [][]string) {
	t.Helper()
	out, wrong, status := weirctl(t, args...)
	if status != 0 {
		t.Fatalf("weirctl %q: exit status %d: %s%s", args, status, out, wrong)
	}
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

func write(t *testing.T, name, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"", 2, "usage: weirctl COMMAND"},
		{"help", 0, "usage: weirctl COMMAND"},
		{"-version", 0, build.Line("weirctl")},
		{"shwo", 2, `the command is "shwo"; it must be check`},
		{"show -h", 0, "-within key"},
		{"show -nothing", 2, "-nothing"},
		{"show key", 2, "-config is not set; it must be"},
		{"show", 2, "there are 0 arguments; there must be one key"},
		{"show a b", 2, `the argument "b" is one too many`},
		{"show -- -json", 2, "-config is not set"},
		{"check", 2, "there must be a file at least"},
		{"check -kind toml x", 2, `-kind is "toml"; it must be config, policies or ratelimit`},
		{"check /does/not/exist", 1, "no such file"},
		{"check /", 1, "/: it is a directory; name its files, such as /*.yaml"},
		{"top localhost:80", 2, `the URL is "localhost:80"; it must be that of a process`},
		{"top -n 0 http://x", 2, "-n is 0; it must be 1 or more"},
		{"top http://127.0.0.1:1/debug/weir", 1, "http://127.0.0.1:1/debug/weir: dial tcp"},
		{"policies", 2, "-redis is not set; it must be"},
		{"policies -redis 127.0.0.1:1,nowhere", 2, `-redis is "127.0.0.1:1,nowhere"; it must be a host and a port`},
		{"policies -redis nowhere", 2, `-redis is "nowhere"; it must be a host and a port`},
		{"policies -redis ftp://x/", 2, "scheme is unknown"},
		{"policies set core", 2, "there must be a name and limits"},
		{"policies set core 60", 2, `limit is "60"; it must be a quota, per, and a window`},
		{"overrides set core alice", 2, "policies: "},
		{"overrides set core alice -blocked -for -1h", 2, "-for is -1h0m0s; it must be above zero"},
		{"overrides set core alice -blocked -for 0s", 2, "-for is 0s; it must be above zero"},
		{"overrides set core alice -blocked -for soon", 2, "it must be a duration, such as 1h"},
		{"overrides set core alice -blocked -for 1h -until 2030-01-02T03:04:05Z", 2, "-for and -until are set"},
		{"overrides set core alice -blocked -until 2001-01-02T03:04:05Z", 2, "which is over"},
	} {
		t.Setenv("WEIR_CONFIG", "")
		t.Setenv("WEIR_REDIS", "")
		out, wrong, status := weirctl(t, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(out+wrong, c.want) {
			t.Errorf("weirctl %s: exit status %d, %s%s; want %d, and %q", c.args, status, out, wrong, c.status, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	right := write(t, "weir.yaml", "listen: {any: thing}\npolicies: {core: 60 per 1h}\n")
	live := write(t, "live.json", "\ufeff"+`{"policies": [{"name": "core", "limits": ["5 per 1m"]}], "overrides": [{"policy": "core", "key": "bob", "blocked": true, "until": "2001-01-02T03:04:05Z"}]}`)
	out, wrong, status := weirctl(t, "check", "-own", "listen", "-uses=core,search", right, live)
	if status != 0 || !strings.Contains(out, right+": right (config)") || !strings.Contains(out, live+": right (policies)") || !strings.Contains(out, live+`: warning: the override of policy "core" for key "bob" ended at 2001-01-02T03:04:05Z`) {
		t.Errorf("right files: exit status %d, %s%s", status, out, wrong)
	}
	for text, want := range map[string]string{
		`{"policies": []}`: "the file has no policies and no overrides",
		`{"policies": [{"name": "core", "limits": ["5 per 1m"], "until": "2001-01-02T03:04:05Z"}]}`:                                             `the policy "core" ended at 2001-01-02T03:04:05Z`,
		`{"policies": [{"name": "search", "limits": ["5 per 1m"]}], "overrides": [{"policy": "serch", "key": "subject:bob", "blocked": true}]}`: `an override is for "serch", which is no policy of the file; did you mean search?`,
		`{"overrides": [{"policy": "core", "key": "ip:2001:db8::1", "blocked": true}]}`:                                                         `an override of policy "core": ip:2001:db8::1 is no key that is charged; did you mean ip:2001:db8::/64? Middleware.ClientIP and forward auth charge addresses in that form`,
		`{"overrides": [{"policy": "core", "key": "ip:192.0.2.0/24", "blocked": true}]}`:                                                        `an override of policy "core": ip:192.0.2.0/24 is no key that is charged: each address of IPv4 is charged alone, and no range is`,
		`{"overrides": [{"policy": "core", "key": "subject:", "blocked": true}]}`:                                                               `an override of policy "core": subject: is no key that is charged: a caller without a subject has no such key`,
	} {
		file := write(t, "warned.json", text)
		if out, _, status := weirctl(t, "check", file); status != 0 || out != file+": warning: "+want+"\n"+file+": right (policies)\n" {
			t.Errorf("%s: exit status %d, %s; want %s", text, status, out, want)
		}
	}
	misspelled := write(t, "wrong.yaml", "policies: {serch: 60 per 1h, core: 60 per 0h}\n")
	cycle := write(t, "wrong.json", `{"policies": [{"name": "a", "limits": ["5 per 1m"], "parent": "a"}]}`)
	out, wrong, status = weirctl(t, "check", "-json", "-uses=core,search", misspelled, cycle, right)
	var all []checked
	if err := json.Unmarshal([]byte(out), &all); err != nil || status != 1 || len(all) != 3 {
		t.Fatalf("wrong files: exit status %d, %v, %s%s", status, err, out, wrong)
	}
	for i, want := range []string{"did you mean search?", "parent", "unknown key listen"} {
		if all[i].Right || !strings.Contains(strings.Join(all[i].Problems, "\n"), want) {
			t.Errorf("%+v; want a problem with %q", all[i], want)
		}
	}
	if problems := all[0].Problems; len(problems) != 2 || !strings.HasPrefix(problems[0], misspelled+":1: ") {
		t.Errorf("%q; want two, with their lines", problems)
	}
	if want := "2 of 3 files are wrong"; !strings.Contains(wrong, "3 of 3 files are wrong") {
		t.Errorf("stderr is %q, want %q", wrong, want)
	}
}

// The policies of -uses find misspelled names in files of policies, too. Plans and parents have other
// names.
func TestCheckUses(t *testing.T) {
	file := write(t, "live.json", `{"policies": [{"name": "cor", "limits": ["5 per 1m"]}], "overrides": [{"policy": "serch", "key": "subject:bob", "blocked": true}, {"policy": "downloads", "key": "subject:bob", "blocked": true}]}`)
	tells(t, 1, []string{"check", "-uses=core,search", file},
		`"cor" is no policy of the program; did you mean core? It uses core, search`,
		`an override is for "serch", which is no policy of the program or of the file; did you mean search? The program uses core, search`,
		`an override is for "downloads", which is no policy of the program or of the file; the program uses core, search`)
	tells(t, 0, []string{"check", "-uses=cor,serch,downloads", file}, "right (policies)")
	plans := write(t, "plans.json", `{"policies": [{"name": "core", "limits": ["5 per 1m"]}, {"name": "core2", "limits": ["50 per 1m"], "parent": "cores", "parent_key": "all"}, {"name": "cores", "limits": ["500 per 1m"]}], "overrides": [{"policy": "core", "key": "subject:bob", "blocked": true}]}`)
	tells(t, 0, []string{"check", "-uses=core,search", plans}, "right (policies)")
}

// A program may have a table of policies, which its file does not say.
func TestCheckPoliciesAt(t *testing.T) {
	file := write(t, "weir.yaml", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\npolicies_at: 127.0.0.1:1\npolicies: {core: {limits: 60 per 1h, parent: orgs, parent_key: acme}, orgs: 600 per 1h}\n")
	tells(t, 0, []string{"check", "-uses=core", file}, file+": right (config)")
}

// Files of descriptors have the problems that throttlerd -check reports.
func TestCheckDescriptors(t *testing.T) {
	edge := write(t, "edge.yaml", "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, algorithm: token-bucket}}]\n")
	flow := write(t, "flow.json", `{"domain": "other", "descriptors": []}`)
	if out, wrong, status := weirctl(t, "check", edge, flow); status != 0 || !strings.Contains(out, edge+": right (ratelimit)") || !strings.Contains(out, flow+`: warning: the domain "other" has no rate_limit`) || !strings.Contains(out, flow+": right (ratelimit)") {
		t.Errorf("right files: exit status %d, %s%s", status, out, wrong)
	}
	again := write(t, "again.yaml", "# the domain is in the other file, too\ndescriptors: [{key: b}]\ndomain: edge\n")
	misspelled := write(t, "wrong.yaml", "domain: x\ndescriptors:\n- {key: a, rate_limit: {unit: minutes, requests_per_unit: 1}}\n")
	out, wrong, status := weirctl(t, "check", edge, again, misspelled)
	for _, want := range []string{
		again + `: domain is "edge", as in ` + edge + "; a domain must be in one file, unless MERGE_DOMAIN_CONFIG is true\n",
		misspelled + `:3: descriptors[0].rate_limit.unit is "minutes"; it must be second, minute, hour, day, week, month or year` + "\n",
		edge + ": right (ratelimit)\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not in\n%s", want, out)
		}
	}
	if status != 1 || !strings.Contains(wrong, "2 of 3 files are wrong") {
		t.Errorf("exit status %d, %s; want 1", status, wrong)
	}
	if out, wrong, status := weirctl(t, "check", "-merge", edge, again); status != 0 {
		t.Errorf("-merge: exit status %d, %s%s", status, out, wrong)
	}
	if out, _, status := weirctl(t, "check", "-kind", "ratelimit", write(t, "none.yaml", "x: y\n")); status != 1 || !strings.Contains(out, "unknown key x; the keys here are name, domain, descriptors") {
		t.Errorf("-kind ratelimit: exit status %d, %s", status, out)
	}
}

// A synced count is reset in all processes, by any root that answers.
func TestResetSynced(t *testing.T) {
	store, roots := testserver.Redis(t), []*testserver.RedisServer{testserver.Redis(t), testserver.Redis(t)}
	file := write(t, "weir.yaml", fmt.Sprintf("prefix: 'staging:'\nbackend: redis\nredis: {shards: [{name: a, primary: %s}]}\nroots: [%s, %s]\npolicies: {core: {limits: [3 per 8760h aligned, 3 per 8760h token-bucket], consistency: synced}}\n", store.Addr, roots[0].Addr, roots[1].Addr))
	var processes []*config.Stack
	for range 3 {
		s, err := config.Open(file, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		processes = append(processes, s)
	}
	charge := processes[0].Config.Policies["core"].Charge("ip:203.0.113.7")
	eventually := func(allowed bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			n := 0
			for _, s := range processes {
				d, err := s.Throttler.Peek(t.Context(), charge)
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed == allowed {
					n++
				}
			}
			if n == len(processes) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d processes answer %t", n, len(processes), allowed)
			}
		}
	}
	for i := range 2 { // with two roots, and with one
		for _, s := range processes {
			if _, err := s.Throttler.Take(t.Context(), charge); err != nil {
				t.Fatal(err)
			}
		}
		eventually(false)
		tells(t, 0, args("reset -policy core -config", file, "ip:203.0.113.7"), "nothing is counted any more under core")
		eventually(true)
		tells(t, 1, args("reset -config", file, "203.0.113.7"), "did you mean ip:203.0.113.7?")
		roots[i].Kill()
	}
	tells(t, 1, args("reset -config", file, "ip:203.0.113.7"), "core: no root of the count answers")
}

// A program's charges are shown and reset, in each kind of store.
func TestShow(t *testing.T) {
	a, b, m := testserver.Redis(t), testserver.Redis(t), testserver.Memcached(t)
	for name, file := range map[string]string{
		"redis":     fmt.Sprintf("backend: redis\nredis: {shards: [{name: a, primary: %s}, {name: b, primary: %s}]}\n", a.Addr, b.Addr),
		"memcached": fmt.Sprintf("backend: memcached\nmemcached: {servers: [%s]}\n", m.Addr),
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, "weir.yaml", file+"policies:\n  core: {limits: [60 per 1h, 5 per 1m token-bucket], consistency: leased}\n  search: 30 per 1m\ndry_runs: {search: 3 per 1m}\n")
			s, err := config.Open(file, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			for _, key := range []string{"alice", "bob", "acme\x00"} {
				d, err := s.Throttler.Take(t.Context(), s.Config.Policies["search"].Charge(key), s.Config.DryRun("search").Charge(key))
				if err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
			for range 2 {
				if _, err := s.Throttler.Take(t.Context(), s.Config.DryRun("search").Charge("alice")); err != nil {
					t.Fatal(err)
				}
			}
			out, wrong, status := weirctl(t, "show", "-json", "-config", file, "alice")
			var rows []operator.Row
			if err := json.Unmarshal([]byte(out), &rows); err != nil || status != 0 || len(rows) != 4 {
				t.Fatalf("exit status %d, %v, %s%s; want four limits", status, err, out, wrong)
			}
			for i, want := range []operator.Row{
				{Policy: "core", Remaining: 60, Level: "leased"}, {Policy: "core", Remaining: 5, Level: "leased"},
				{Policy: "search", Used: 1, Remaining: 29}, {Policy: "search.dry-run", Used: 3, Refused: true},
			} {
				r := rows[i]
				counted := r.ResetAt != nil && time.Until(*r.ResetAt) > 0 && time.Until(*r.ResetAt) <= time.Minute
				r.Limit, r.Unit, r.ResetAt, r.RetryAt, r.Key = want.Limit, want.Unit, nil, nil, ""
				if !reflect.DeepEqual(r, want) || counted != (want.Used > 0) {
					t.Errorf("%+v, a reset in the next minute %t; want %+v", r, counted, want)
				}
			}
			lines := must(t, "show", "-config", file, "-policy", "search,core", "acme\x00")
			if len(lines) != 4 || strings.Join(lines[1][:6], " ") != "search 30 per 1m 1 29" || strings.Join(lines[3][:7], " ") != "core 5 per 1m token-bucket 0 5" {
				t.Errorf("got %q", lines)
			}
			if lines := must(t, "show", "-config", file, "-policy", "search", "-limit", "40 per 1m", "alice"); len(lines) != 2 || strings.Join(lines[1][:6], " ") != "search 40 per 1m 1 39" {
				t.Errorf("under another limit: %q", lines)
			}
			must(t, "reset", "-config", file, "-policy", "search.dry-run", "alice")
			if lines := must(t, "show", "-config", file, "-policy", "search,search.dry-run", "alice"); lines[1][4] != "1" || lines[2][4] != "0" {
				t.Errorf("after one policy was reset: %q", lines)
			}
			must(t, "reset", "-config", file, "alice")
			for key, want := range map[string]string{"alice": "0", "bob": "1"} {
				if lines := must(t, "show", "-config", file, "-policy", "search", key); lines[1][4] != want {
					t.Errorf("after alice was reset, %s: %q; want %s used", key, lines, want)
				}
			}
		})
	}
	none := write(t, "none.yaml", "backend: redis\nredis: {shards: [{name: a, primary: "+a.Addr+"}]}\n")
	if _, wrong, status := weirctl(t, "show", "-config", none, "-policy", "core", "alice"); status != 2 || !strings.Contains(wrong, "none.yaml; there is none, or -limit must say its limits\n") || !strings.Contains(wrong, "[-limit LIMIT]") {
		t.Errorf("without policies: exit status %d, %s", status, wrong)
	}
	memory := write(t, "memory.yaml", "policies: {core: 60 per 1h}\n")
	if _, wrong, status := weirctl(t, "show", "-config", memory, "alice"); status != 1 || !strings.Contains(wrong, "the backend is memory, whose counts are in the memory of the processes; there is a store to open with redis or memcached\n") {
		t.Errorf("memory: exit status %d, %s", status, wrong)
	}
	if _, wrong, status := weirctl(t, "reset", "-config", memory, "alice"); status != 1 || !strings.Contains(wrong, "the backend is memory") {
		t.Errorf("memory: exit status %d, %s", status, wrong)
	}
	gone := write(t, "gone.yaml", "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:1}]}\npolicies: {core: 60 per 1h}\n")
	if out, wrong, status := weirctl(t, "show", "-config", gone, "alice"); status != 1 || !strings.Contains(out+wrong, "127.0.0.1:1") {
		t.Errorf("a server that is away: exit status %d, %s%s", status, out, wrong)
	}
}

// Processes use an operator's policies and overrides, which are listed until removed.
func TestPoliciesAndOverrides(t *testing.T) {
	server := testserver.Redis(t)
	t.Setenv("WEIR_REDIS", server.Addr)
	t.Setenv("USER", "ops")
	must(t, "policies", "set", "org", "1000 per 1h")
	must(t, "policies", "set", "core", "60 per 1h", "5 per 1m token-bucket", "-parent", "org", "-parent-key", "acme")
	must(t, "overrides", "set", "core", "mallory", "-blocked", "-for", "1h", "-reason", "scrapes")
	must(t, "overrides", "set", "core", "bob", "600 per 1h", "-owner", "sales")

	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer client.Close()
	store := redispolicies.NewStore(client, "")
	var table policies.Table
	w := redispolicies.NewWatch(t.Context(), &table, "redis", store, nil)
	defer w.Close()
	if p := table.View().Policy("core"); p == nil || len(p.Limits) != 2 || p.Parent != "org" {
		t.Errorf("core is %+v", p)
	}

	must(t, "policies", "set", "search", "10 per 1m", "-for", "1h")
	if lines := must(t, "policies"); len(lines) != 5 || !strings.HasPrefix(strings.Join(lines[4], " "), "search 10 per 1m requests - ") {
		t.Errorf("policies: %q", lines)
	}
	if table.View().PolicyAt("core", time.Now().UnixMilli()) == nil {
		t.Error("core has ended, without an end")
	}
	must(t, "policies", "remove", "search")
	if lines := must(t, "policies"); len(lines) != 4 || strings.Join(lines[0], " ") != "version 6" || strings.Join(lines[2], " ") != "core 60 per 1h, 5 per 1m token-bucket requests org of acme -" {
		t.Errorf("policies: %q", lines)
	}
	lines := must(t, "overrides")
	if len(lines) != 3 || strings.Join(lines[1], " ") != "core bob 600 per 1h - sales -" || strings.Join(lines[2][:3], " ") != "core mallory blocked" || strings.Join(lines[2][len(lines[2])-2:], " ") != "ops scrapes" {
		t.Errorf("overrides: %q", lines)
	}
	out, _, status := weirctl(t, "overrides", "-json", "-key", "mallory")
	var all []policies.Override
	if err := json.Unmarshal([]byte(out), &all); err != nil || status != 0 || len(all) != 1 || time.Until(all[0].Until) > time.Hour || time.Until(all[0].Until) < 59*time.Minute {
		t.Errorf("overrides of mallory: exit status %d, %v, %s", status, err, out)
	}
	if _, wrong, status := weirctl(t, "policies", "remove", "org"); status != 1 || !strings.Contains(wrong, "parent") {
		t.Errorf("a parent removed: exit status %d, %s", status, wrong)
	}
	if _, err := store.Write(t.Context(), redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "eve", Blocked: true, Until: time.Unix(1e9, 0)}}}); err != nil {
		t.Fatal(err)
	}
	if lines := must(t, "overrides", "remove-ended"); strings.Join(lines[0], " ") != "1 overrides had ended" {
		t.Errorf("remove-ended: %q", lines)
	}
	must(t, "overrides", "remove", "core", "mallory")
	if _, wrong, status := weirctl(t, "overrides", "remove", "core", "mallory"); status != 1 || !strings.Contains(wrong, `policy "core" has no override for mallory`) {
		t.Errorf("an override that is not there is removed: exit status %d: %s", status, wrong)
	}
	if _, wrong, status := weirctl(t, "policies", "remove", "core", "cor"); status != 1 || !strings.Contains(wrong, `there is no policy "cor"`) {
		t.Errorf("a policy that is not there is removed: exit status %d: %s", status, wrong)
	}
	must(t, "policies", "remove", "core", "org")
	if lines := append(must(t, "overrides"), must(t, "policies")...); len(lines) != 4 {
		t.Errorf("after all but bob's override is removed: %q", lines)
	}
}

// Values that no option changes are kept, as the page documents.
func TestSetAgain(t *testing.T) {
	server := testserver.Redis(t)
	t.Setenv("WEIR_REDIS", server.Addr)
	t.Setenv("USER", "ops")
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer client.Close()
	store := redispolicies.NewStore(client, "")
	must(t, "policies", "set", "org", "1000 per 1h", "-unit", "tokens")
	must(t, "policies", "set", "team", "1000 per 1h", "-unit", "tokens")
	for _, c := range []struct{ args, want string }{
		{"-unit tokens -parent org -parent-key acme -until 2090-01-02T03:04:05Z", "tokens org of acme until 2090"},
		{"", "tokens org of acme until 1"},
		{"-parent-key globex", "tokens org of globex until 1"},
		{"-parent team", "tokens team of  until 1"},
		{"-parent=", "tokens  of  until 1"},
		{"-unit requests", "requests  of  until 1"},
	} {
		must(t, append([]string{"policies", "set", "core", "60 per 1h"}, strings.Fields(c.args)...)...)
		p, err := store.FindPolicy(t.Context(), "core")
		if err != nil || p == nil {
			t.Fatal(p, err)
		}
		if got := fmt.Sprintf("%v %s of %s until %d", p.Unit, p.Parent, p.ParentKey, p.Until.Year()); got != c.want {
			t.Errorf("policies set core with %q: %s; want %s", c.args, got, c.want)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"9 per 1h", "-parent-key=acme", "-owner=sales", "-reason=paid", "-until=2090-01-02T03:04:05Z"}, "9 per 1h; parent acme until 2090, sales: paid"},
		{[]string{"-parent-key=globex"}, "9 per 1h; parent globex until 2090, sales: paid"},
		{[]string{"-parent-key=acme", "-owner=ops", "-reason=moved", "-until=2091-01-02T03:04:05Z"}, "9 per 1h; parent acme until 2091, ops: moved"},
		{[]string{"-blocked"}, "blocked; parent acme until 1, ops: "},
		{[]string{"-unlimited", "-parent-key="}, "unlimited until 1, ops: "},
	} {
		must(t, append([]string{"overrides", "set", "core", "bob"}, c.args...)...)
		v, err := store.Find(t.Context(), "core", "bob")
		if err != nil || v == nil {
			t.Fatal(v, err)
		}
		if got := fmt.Sprintf("%s until %d, %s: %s", operator.Holds(v), v.Until.Year(), v.Owner, v.Reason); got != c.want {
			t.Errorf("overrides set core bob with %q: %s; want %s", c.args, got, c.want)
		}
	}
	// Invalid stored values are replaced, or removed.
	for field, value := range map[string]string{"core": "{", "team": `{"limits": []}`} {
		if err := client.HSet(t.Context(), "{"+redispolicies.DefaultPrefix+"}:policies", field, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	must(t, "policies", "set", "core", "60 per 1h")
	must(t, "policies", "remove", "team")
	if lines := must(t, "policies"); len(lines) != 4 {
		t.Errorf("policies: %q", lines)
	}
}

// The refusals of several processes add up.
func TestTop(t *testing.T) {
	var urls []string
	for process := range 2 {
		o := weirdebug.New(nil)
		server := httptest.NewServer(o.Handler())
		t.Cleanup(server.Close)
		urls = append(urls, server.URL+"/debug/weir")
		refuse := func(key string, n int) {
			for range n {
				o.Decided(context.Background(), observe.Decided{Op: observe.OpTake, Outcome: observe.OutcomeRefused, Policy: "core", Key: key, Binding: quota.Limit{Quota: 60, Window: time.Hour}, Start: time.Now(), RetryAt: time.Now().Add(time.Hour)})
			}
		}
		refuse("both", 30)
		refuse(fmt.Sprint("only ", process), 40+process)
	}
	lines := must(t, append([]string{"top"}, urls...)...)
	if len(lines) != 5 || strings.Join(lines[2][:4], " ") != "60 60-60 core 60" || lines[2][7] != "2" || lines[3][0] != "41" || lines[4][0] != "40" {
		t.Errorf("got %q; want the key of both processes first", lines)
	}
	out, wrong, status := weirctl(t, "top", "-json", "-n", "1", urls[0], urls[1], "http://secret:word@127.0.0.1:1/debug/weir")
	var a ranking
	if err := json.Unmarshal([]byte(out), &a); err != nil || status != 1 || len(a.Keys) != 1 || a.Keys[0].Processes != 2 || len(a.Failed) != 1 || !strings.Contains(wrong, "1 of 3 processes did not answer") || strings.Contains(out, "word") {
		t.Errorf("one process away: exit status %d, %v, %s%s", status, err, out, wrong)
	}
}

// The help of a command has its options in lines, and no escapes.
func TestHelpOfOptions(t *testing.T) {
	for _, name := range [][]string{{"check", "-h"}, {"top", "-h"}, {"overrides", "set", "-h"}, {"explain", "-h"}} {
		if out, wrong, code := weirctl(t, name...); code != 0 || wrong != "" || !strings.Contains(out, "options:\n  -") || strings.Contains(out, `\u`) {
			t.Errorf("weirctl %q: %d, %q, %s", name, code, wrong, out)
		}
	}
}

// Stored and foreign text can't steer the terminal that it is printed to, begin a row of its
// own, or change the order in which a line is shown.
func TestTextIsPrintable(t *testing.T) {
	const evil = "a\x1b[2J\u009b1m\u202eb\u2066\x7f\r\n\t\xff\U000e0001c"
	at := testserver.Redis(t).Addr
	must(t, "overrides", "set", "-redis", at, "-owner", evil, "-reason", evil, "-parent-key", strings.ToValidUTF8(evil, ""), "core", evil, "-unchecked", "-blocked")
	process := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(weirdebug.Refusals{Keys: []weirdebug.Refused{{Policy: evil, Label: evil, Count: 1}}})
	}))
	defer process.Close()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"keys": [], "`+evil+`": 1}`)
	}))
	defer other.Close()
	file := write(t, "policies.json", "{\"policies\": [{\"name\": \"a\u202eb\", \"limits\": []}], \"overrides\": []}")
	for _, args := range [][]string{
		{"overrides", "-redis", at}, {"overrides", "-redis", at, "-json"},
		{"top", process.URL, other.URL}, {"top", process.URL, "-json"},
		{"check", file}, {"check", "-json", file}, {"check", evil}, {"show", "-" + evil}, {evil},
		{"policies", "remove", "-redis", at, evil}, {"overrides", "remove", "-redis", at, "x", evil},
	} {
		out, wrong, _ := weirctl(t, args...)
		for _, r := range out + wrong {
			if r != '\n' && !strconv.IsPrint(r) {
				t.Errorf("weirctl %q prints %q:\n%q", args, r, out+wrong)
				break
			}
		}
		if !utf8.ValidString(out + wrong) {
			t.Errorf("weirctl %q prints no UTF-8: %q", args, out+wrong)
		}
		if slices.Contains(args, "-json") && !json.Valid([]byte(out)) {
			t.Errorf("weirctl %q prints no JSON: %s", args, out)
		}
	}
	if rows := must(t, "overrides", "-redis", at); len(rows) != 2 {
		t.Errorf("one override has %d rows with the head", len(rows))
	}
	out, _, _ := weirctl(t, "overrides", "-redis", at, "-json")
	var all []policies.Override
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 || all[0].Owner != strings.ToValidUTF8(evil, "\uFFFD") {
		t.Errorf("got %+v, %v; want the owner as it was set", all, err)
	}
}

// A process that may have missed a key makes the bounds wider, and not the count.
func TestMergeBounds(t *testing.T) {
	full := weirdebug.Refusals{Missed: 7, Keys: []weirdebug.Refused{{Policy: "p", Label: "x", Count: 10, Excess: 3}}}
	other := weirdebug.Refusals{Missed: 5, Keys: []weirdebug.Refused{{Policy: "p", Label: "y", Count: 9, Excess: 0}}}
	got := merge([]weirdebug.Refusals{full, other}).Keys
	if len(got) != 2 || got[0].Refusals != 10 || got[0].AtLeast != 7 || got[0].AtMost != 15 || got[1].AtLeast != 9 || got[1].AtMost != 16 {
		t.Errorf("got %+v; want x from 7 to 10+5, y from 9 to 9+7", got)
	}
}

// Distances of more than two days are in days.
func TestWhen(t *testing.T) {
	now := time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		in   time.Duration
		want string
	}{
		{90 * time.Minute, "2026-11-24 03:30:00Z (in 1h30m0s)"},
		{-time.Second, "2026-11-24 01:59:59Z (1s ago)"},
		{47 * time.Hour, "2026-11-26 01:00:00Z (in 47h0m0s)"},
		{50 * time.Hour, "2026-11-26 04:00:00Z (in 2 days)"},
		{-1000 * time.Hour, "2026-10-13 10:00:00Z (41 days ago)"},
		{27264 * time.Hour, "2030-01-03 02:00:00Z (in 1136 days)"},
	} {
		if got := operator.When(now.Add(c.in), now); got != c.want {
			t.Errorf("%v: %s; want %s", c.in, got, c.want)
		}
	}
	if got := operator.When(time.Time{}, now); got != "-" {
		t.Errorf("never: %s", got)
	}
}
