package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

const password = "correct horse battery"

// press sends the form about one client, and returns the page.
func (d *demo) press(fields ...string) response {
	d.t.Helper()
	form := url.Values{"reason": {"called at 3 am"}, "for": {"1h"}}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	r, err := http.NewRequest(http.MethodPost, d.debug+"/debug/weir/client?kind=user&client=one", strings.NewReader(form.Encode()))
	if err != nil {
		d.t.Fatal(err)
	}
	r.SetBasicAuth("dora", password)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := d.client.Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return response{status: resp.StatusCode, header: resp.Header, body: string(text)}
}

// The page about one client raises, blocks and resets users, addresses and members, in memory and
// in Redis at each level.
func TestClientPage(t *testing.T) {
	t.Parallel() // it waits most of the time
	file := filepath.Join(t.TempDir(), "operators")
	if err := os.WriteFile(file, []byte("dora:"+password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, level := range []string{"memory", "exact", "leased", "synced"} {
		t.Run(level, func(t *testing.T) {
			config := "tokens: {one: {}}\noperators_file: " + file + "\nrefusal_cache: false\npolicies:\n  org: 3 per 1h\n  core: {limits: [2 per 8760h aligned]"
			if level == "memory" {
				config += "}\n"
			} else {
				server := testserver.Redis(t)
				config += fmt.Sprintf(", consistency: %s}\nbackend: redis\nredis: {shards: [{name: a, primary: '%s'}]}\npolicies_at: '%s'\n", level, server.Addr, server.Addr)
			}
			d := startDemo(t, config)
			token := []string{"Authorization", "Bearer one"}
			get := func(want string) {
				t.Helper()
				if r := d.get("/repos/acme/rockets", token...); fmt.Sprint(r.status, " ", r.rates()) != want {
					t.Errorf("got %v, want %s", r, want)
				}
			}
			get("200 1/2 core")
			get("200 2/2 core")
			get("429 2/2 core")
			one := []string{"policy", "core", "key", "subject:one"}
			for _, step := range []struct{ action, says, then string }{
				{"raise", "in force", "200 3/5 core"}, {"block", "is blocked", "429 / "}, {"unblock", "is removed", "429 3/2 core"}, {"reset", "is reset", "200 1/2 core"},
			} {
				if r := d.press(append(one, "action", step.action, "limits", "5 per 8760h aligned")...); r.status != http.StatusOK || !strings.Contains(r.body, step.says) {
					t.Errorf("%s: %v; want %s", step.action, r, step.says)
				}
				get(step.then)
			}
			for fields, want := range map[string]string{
				"policy=cor&key=subject:one&action=block":          "did you mean core?",
				"policy=core&key=203.0.113.7&action=block":         "did you mean ip:203.0.113.7?",
				"policy=core&key=ip:2001:db8::/48&action=block":    "did you mean ip:2001:db8::/64?",
				"policy=core&key=one&action=block":                 "did you mean subject:one, which has counts?",
				"policy=search&key=subject:two&action=reset":       "nothing is counted for subject:two under search",
				"policy=org.member&key=subject:one&action=unblock": "has no override",
			} {
				query, err := url.ParseQuery(fields)
				if err != nil {
					t.Fatal(err)
				}
				if r := d.press("policy", query.Get("policy"), "key", query.Get("key"), "action", query.Get("action")); r.status != http.StatusUnprocessableEntity || !strings.Contains(r.body, want) && !strings.Contains(r.body, strings.ReplaceAll(want, "'", "&#39;")) {
					t.Errorf("%s: %v; want %s", fields, r, want)
				}
			}
			if level != "memory" {
				return
			}
			d.get("/orgs/acme/feed", token...)
			d.get("/orgs/other/feed", token...)
			if r := d.press("policy", "org.member", "key", "subject:one", "within", "org:acme", "action", "reset"); r.status != http.StatusOK {
				t.Errorf("%v; want a reset", r)
			}
			for org, want := range map[string]string{"acme": `"org.member":{"limit":20,"used":0`, "other": `"org.member":{"limit":20,"used":1`} {
				if r := d.get("/orgs/"+org+"/rate_limit", token...); !strings.Contains(r.body, want) {
					t.Errorf("%s: %s; want %s", org, r.body, want)
				}
			}
		})
	}
}

// Without operators the page shows, and changes nothing.
func TestClientPageOnlyShows(t *testing.T) {
	d := startDemo(t, "")
	d.get("/repos/acme/rockets")
	for query, want := range map[string]string{
		"kind=address&client=127.0.0.1":              `<dd class="used">1</dd>`,
		"kind=user&client=alice":                     "5 policies have counted nothing",
		"kind=organisation&client=acme":              "key org:acme",
		"kind=member&client=acme/alice":              "within org:acme",
		"kind=member&client=alice":                   "such as acme/alice",
		"kind=user&client=alice&policy=org":          "policy org does not charge user; one of these does: core",
		"kind=key&client=subject:alice&policy=serch": "did you mean search?",
		"": "operators_file in the configuration must name a file",
	} {
		r, err := d.ask("GET", d.debug+"/debug/weir/client?"+query)
		if err != nil || !strings.Contains(r.body, want) || strings.Contains(r.body, `method="post"`) {
			t.Errorf("%s: %v, %v; want %s", query, r, err, want)
		}
	}
	if r := d.press("policy", "core", "key", "ip:127.0.0.1", "action", "reset"); r.status != http.StatusMethodNotAllowed {
		t.Errorf("%v; want 405", r)
	}
	file := writeConfig(t, "operators_file: nowhere\n")
	if err := run(t.Context(), []string{"-check", "-config", file}, newOutput(), newOutput()); err == nil || !strings.Contains(err.Error(), "operators_file: open ") {
		t.Errorf("%v; want an error about operators_file", err)
	}
}
