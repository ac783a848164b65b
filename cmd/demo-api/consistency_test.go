package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// rewrite replaces d's configuration file.
func (d *demo) rewrite(text string) {
	d.t.Helper()
	if err := os.WriteFile(d.file, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func hangUp(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// levelsOn returns the configuration of a demo with a level of core. Core's quota is 20, in a
// window so long that it doesn't end during a test.
func levelsOn(server, level string) string {
	return fmt.Sprintf(`tokens: any
backend: redis
redis: {shards: [{name: a, primary: %q}]}
policies:
  core: {limits: [{quota: 20, window: 1000h, aligned: true}], consistency: %s, sync: 10ms}
  search: {limits: [{quota: 20, window: 1h}], consistency: exact}
`, server, level)
}

// A demo starts with levels if none of its policies can be synced.
func TestLevelsOfPlainWindows(t *testing.T) {
	server := testserver.Redis(t).Addr
	for _, level := range []string{"exact", "leased"} {
		d := startDemo(t, strings.ReplaceAll(levelsOn(server, level), ", aligned: true", ""))
		if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK {
			t.Errorf("%s: got %v", level, r)
		}
	}
}

// Leases of Memcached, and dry runs in the level of the policy next to them.
func TestLevelsOfOthers(t *testing.T) {
	memcached := startDemo(t, fmt.Sprintf(`tokens: any
backend: memcached
memcached: {servers: [%s]}
policies:
  core: {limits: [{quota: 40, window: 1h}], consistency: leased}
`, testserver.Memcached(t).Addr))
	served := 0
	for range 60 {
		if r := memcached.get("/repos/acme/rockets"); r.status == http.StatusOK {
			served++
		}
	}
	if served != 40 {
		t.Errorf("%d were served of a quota of 40", served)
	}
	dry := startDemo(t, levelsOn(testserver.Redis(t).Addr, "synced")+"dry_runs: {core: {limits: [{quota: 2, window: 1000h, aligned: true}]}}\n")
	for used := 1; used <= 5; used++ {
		if r := dry.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != fmt.Sprintf("%d/20 core", used) {
			t.Errorf("got %v, want 200 %d/20", r, used)
		}
	}
	if got := fmt.Sprint(dry.stats().DryRuns); got != "map[core:{2 3}]" {
		t.Errorf("dry runs %s, want core 2 allowed and 3 refused", got)
	}
}

// Two demos change the level of core one after the other, under load. A client gets one quota.
func TestLevelsChangeLive(t *testing.T) {
	for _, sequence := range [][]string{{"exact", "leased", "exact"}, {"exact", "synced", "leased"}, {"leased", "synced", "exact"}} {
		t.Run(strings.Join(sequence, " "), func(t *testing.T) {
			server := testserver.Redis(t).Addr
			demos := []*demo{startDemo(t, levelsOn(server, sequence[0])), startDemo(t, levelsOn(server, sequence[0]))}
			served := 0
			use := func(n int) {
				t.Helper()
				for i := range n {
					if r := demos[i%2].get("/repos/acme/rockets"); r.status == http.StatusOK {
						served++
					}
					if served >= 16 && served < 20 { // otherwise both could serve the last unit
						awaitTotals(t, demos)
					}
				}
				awaitTotals(t, demos)
			}
			use(8)
			for _, level := range sequence[1:] {
				for i, d := range demos {
					d.rewrite(levelsOn(server, level) + patient)
					hangUp(t) // reaches all demos, but the other's file may be unchanged
					for deadline := time.Now().Add(time.Minute); d.stats().Levels["core"].Level != level; time.Sleep(5 * time.Millisecond) {
						if time.Now().After(deadline) {
							t.Fatalf("the level of demo %d is not %s; it logs %s", i, level, d.stderr)
						}
					}
					use(4)
				}
			}
			use(40)
			if served != 20 {
				t.Errorf("%d were served of a quota of 20; the demos log\n%s%s", served, demos[0].stderr, demos[1].stderr)
			}
		})
	}
}

// awaitTotals waits until demos know each other's synced units.
func awaitTotals(t *testing.T, demos []*demo) {
	t.Helper()
	for range 2 { // one to send, one to receive; each time, both are asked about the client
		for _, d := range demos {
			d.get("/rate_limit")
		}
		for _, d := range demos {
			before := d.stats().Synced.Syncs
			for deadline := time.Now().Add(time.Minute); d.stats().Synced.Syncs < before+2; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("no sync in a minute")
				}
			}
		}
	}
}

// A SIGHUP changes levels, and changes nothing if the file has a mistake.
func TestHangups(t *testing.T) {
	server := testserver.Redis(t).Addr
	d := startDemo(t, levelsOn(server, "exact"))
	d.rewrite("policies: {core: {consistency: soft}}\n")
	hangUp(t)
	d.stderr.find(t, `(SIGHUP: nothing was changed.*consistency is ..soft..; it must be exact, leased or synced)`, d.ended)
	d.rewrite(levelsOn(server, "exact"))
	hangUp(t)
	d.stderr.find(t, `(nothing has changed that can)`, d.ended)
	d.rewrite(levelsOn(server, "synced"))
	hangUp(t)
	d.stderr.find(t, `(the consistency level has changed" policy=core from=exact to=synced both_until=)`, d.ended)
	if m := d.stats().Levels["core"]; m.Level != "synced" || m.BothUntil == nil {
		t.Errorf("the page says %+v", m)
	}
	d.rewrite(levelsOn(server, "exact") + "  org: {limits: [{quota: 1, window: 1h}], consistency: leased}\n")
	hangUp(t)
	d.stderr.find(t, `(the policy had no consistency at the start.*policy=org)`, d.ended)
}

// Synced policies need no store: its failure affects only the others, by their on_failure.
func TestStoreFailsUnderSynced(t *testing.T) {
	store, root := testserver.Redis(t), testserver.Redis(t)
	d := startDemo(t, levelsOn(store.Addr, "synced")+fmt.Sprintf(`  secondary: {limits: [{quota: 900, window: 1m, aligned: true}], consistency: synced}
on_failure: closed
roots: [%q]
`, root.Addr))
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "1/20 core" {
		t.Errorf("got %v", r)
	}
	store.Kill()
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "2/20 core" {
		t.Errorf("the store is gone: a synced take: %v", r)
	}
	if r := d.get("/search?q=weir"); r.status != http.StatusServiceUnavailable {
		t.Errorf("the store is gone: synced and exact, closed: %v", r)
	}
	root.Kill()
	for range 30 {
		d.get("/repos/acme/rockets")
	}
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusTooManyRequests {
		t.Errorf("the root is gone too, and the quota used up: %v", r)
	}
}

// In an outage that on_failure serves, a policy of one level is charged with one of another.
func TestMixedTakesInAnOutage(t *testing.T) {
	store, root := testserver.Redis(t), testserver.Redis(t)
	d := startDemo(t, levelsOn(store.Addr, "synced")+fmt.Sprintf("on_failure: open\nroots: [%q]\n", root.Addr))
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "1/20 core" {
		t.Errorf("got %v", r)
	}
	store.Kill()
	served := 0
	for range 30 {
		switch r := d.get("/repos/acme/rockets"); r.status {
		case http.StatusOK:
			served++
		case http.StatusTooManyRequests:
		default:
			t.Fatalf("got %v", r)
		}
	}
	if served != 19 {
		t.Errorf("%d were served of the 19 that were left", served)
	}
}

func TestLevels(t *testing.T) {
	for _, level := range []string{"exact", "leased", "synced"} {
		t.Run(level, func(t *testing.T) {
			d := startDemo(t, levelsOn(testserver.Redis(t).Addr, level))
			served := 0
			for range 30 {
				switch r := d.get("/repos/acme/rockets"); r.status {
				case http.StatusOK:
					served++
				case http.StatusTooManyRequests:
					if got := r.header.Get("X-RateLimit-Remaining"); got != "0" {
						t.Errorf("a refusal says that %s remain", got)
					}
				default:
					t.Fatalf("got %v", r)
				}
			}
			if served != 20 {
				t.Errorf("%d were served of a quota of 20", served)
			}
			if r := d.get("/rate_limit"); !strings.Contains(r.body, `"core":{"limit":20,"used":20,`) {
				t.Errorf("/rate_limit: %s", r.body)
			}
			if got := d.stats().Levels["core"].Level; got != level {
				t.Errorf("the page says the level is %q", got)
			}
		})
	}
}

// An operator changes a quota in the file of live policies: it applies to synced counts, which
// continue.
func TestLiveQuotaOfSynced(t *testing.T) {
	dir := writeFiles(t, map[string]string{"live.json": "{}"})
	live := filepath.Join(dir, "live.json")
	d := startDemo(t, levelsOn(testserver.Redis(t).Addr, "synced")+"live_policies: "+live+"\n")
	for range 5 {
		d.get("/repos/acme/rockets")
	}
	if err := os.WriteFile(live, []byte(`{"policies": [{"name": "core", "limits": ["8 per 1000h aligned"]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	limit := func() (n struct {
		Resources map[string]struct{ Limit, Used int }
	}) {
		if err := json.Unmarshal([]byte(d.get("/rate_limit").body), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for deadline := time.Now().Add(time.Minute); limit().Resources["core"].Limit != 8; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the limit is %d, want 8", limit().Resources["core"].Limit)
		}
	}
	served := 0
	for range 10 {
		if r := d.get("/repos/acme/rockets"); r.status == http.StatusOK {
			served++
			if got := r.header.Get("X-RateLimit-Limit"); got != "8" {
				t.Errorf("X-RateLimit-Limit is %s, want 8", got)
			}
		}
	}
	if served != 3 {
		t.Errorf("%d were served of the 3 that were left of 8", served)
	}
}
