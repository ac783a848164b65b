package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

func TestMetrics(t *testing.T) {
	d := startDemo(t, "tokens: any\npolicies:\n  core: {limits: [{quota: 2, window: 1h}]}\n")
	for range 5 {
		d.get("/repos/acme/rockets", "Authorization", "Bearer some-secret")
	}
	r := d.operator("/metrics")
	if r.status != http.StatusOK || !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain") {
		t.Fatalf("got %v, %s, want 200 and text", r, r.header)
	}
	for _, want := range []string{
		`weir_decisions_total{op="take",outcome="allowed",policy="core"} 2`,
		`weir_decisions_total{op="take",outcome="refused",policy="core"} 3`,
		`weir_refusals_total{limit="2 per 1h",policy="core"} 3`,
		`weir_decision_duration_seconds_count{op="take"} 5`,
		`weir_memory_keys 2`, `weir_memory_evicted_total 0`,
		`go_goroutines `, `process_cpu_seconds_total `,
	} {
		if !strings.Contains(r.body, "\n"+want) {
			t.Errorf("the metrics do not have %s", want)
		}
	}
	if strings.Contains(r.body, "secret") || strings.Contains(r.body, "127.0.0.1") {
		t.Error("the metrics have a key in them")
	}
	if r := d.get("/metrics"); r.status != http.StatusNotFound {
		t.Errorf("client: got %v, want 404", r)
	}
	if log := d.stderr.String(); strings.Count(log, `msg="rate limit: refusals" policy=core limit="2 per 1h" count=1`) != 1 {
		t.Errorf("three refusals are one line of log, not\n%s", log)
	}
}

func TestMetricsOfBackends(t *testing.T) {
	memcached, redis := testserver.Memcached(t), testserver.Redis(t)
	flags := filepath.Join(t.TempDir(), "flags.yaml")
	share(t, flags, 100)
	d := startDemo(t, fmt.Sprintf("backend: memcached\nmemcached: {servers: [%s]}\nredis: {shards: [{name: a, primary: %s}]}\nflags: %s\non_failure: local\nprocesses: 1\n", memcached.Addr, redis.Addr, flags))
	has := func(want ...string) {
		t.Helper()
		body := d.operator("/metrics").body
		for _, w := range want {
			if !strings.Contains(body, "\n"+w+"\n") {
				t.Errorf("the metrics do not have %s", w)
			}
		}
	}
	d.get("/repos/acme/rockets")
	has(`weir_rollout_served_total{name="redis"} 1`, "weir_refusals_asked_total 1", "weir_fallback_outages 0", "weir_fallback_local_total 0")
	redis.Kill()
	d.get("/repos/acme/rockets")
	has("weir_fallback_outages 1", "weir_fallback_local_total 1", "weir_fallback_held 2") // core and secondary
}
