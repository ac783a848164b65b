package main

import (
	"bufio"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

// A caller has the limits of its plan, and keeps its usage in another plan.
func TestPlans(t *testing.T) {
	d := startDemo(t, "tokens: {free: {}, pro: {plan: core.pro}, monitor: {plan: '*unlimited'}, abuser: {plan: '*blocked'}}\n")
	for token, want := range map[string]string{"free": "1/60 core", "pro": "1/100 core", "monitor": "1/900 secondary"} {
		if r := d.get("/repos/acme/rockets", "Authorization", "Bearer "+token); r.status != http.StatusOK || r.rates() != want {
			t.Errorf("%s: got %v, want 200 %s", token, r, want)
		}
	}
	if r := d.get("/repos/acme/rockets", "Authorization", "Bearer abuser"); r.status != http.StatusTooManyRequests || !strings.Contains(r.body, "core is blocked for this client.") {
		t.Errorf("a blocked caller: got %v", r)
	}
	body := d.get("/rate_limit", "Authorization", "Bearer pro").body
	for _, want := range []string{`"limit":5000,"used":1`, `"limit":100,"used":1`} {
		if !strings.Contains(body, want) {
			t.Errorf("got %s, want %s in it: all limits of the plan", body, want)
		}
	}
}

// Members of shares divide the limits that they have at the start. Callers in a plan with
// other limits have core's.
func TestPlansWithShares(t *testing.T) {
	of := make(map[string]*throttler.Policy)
	for _, p := range routePolicies {
		of[p.Name] = p
	}
	for backend, want := range map[string]*throttler.Policy{"memory": of[proPolicy], "shares": of[corePolicy]} {
		table, own := new(policies.Table), defaultSettings()
		if err := own.plans(table, &config.Config{Backend: backend, Policies: of}); err != nil {
			t.Fatal(err)
		}
		p, _, _ := table.View().Resolve(t.Context(), of[corePolicy], "subject:carol", 0)
		if !slices.Equal(p.Limits, want.Limits) {
			t.Errorf("%s: the limits are %v; want %v", backend, p.Limits, want.Limits)
		}
	}
}

func TestPlanThatIsNone(t *testing.T) {
	file := writeConfig(t, "tokens: {demo-bob: {plan: core.por}}\n")
	err := run(t.Context(), []string{"-check", "-config", file}, newOutput(), newOutput())
	if err == nil || !strings.Contains(err.Error(), `plan is "core.por"; it must be the name of a policy, such as core.pro, or "*unlimited" or "*blocked"`) {
		t.Errorf("got %v", err)
	}
}

// A stream is in flight until it ends, or its client leaves.
func TestStreams(t *testing.T) {
	d := startDemo(t, "")
	stream := func() *http.Response {
		t.Helper()
		r, err := d.client.Get(d.url + "/stream?for=5s")
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(r.Body).ReadString('\n'); r.StatusCode == http.StatusOK && (line != "0\n" || err != nil) {
			t.Fatalf("the stream begins with %q, %v", line, err)
		}
		return r
	}
	first := stream()
	for range 4 {
		defer stream().Body.Close()
	}
	r := d.get("/stream")
	if r.status != http.StatusTooManyRequests || r.header.Get("Retry-After") != "1" || !strings.Contains(r.body, "streams allows 5 at once. Try again in 1 s.") {
		t.Errorf("a sixth: got %v, Retry-After %q", r, r.header.Get("Retry-After"))
	}
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK {
		t.Errorf("what is no stream: got %v", r)
	}
	_ = first.Body.Close() // the client leaves; the server finds out soon
	for end := time.Now().Add(4 * time.Second); ; {
		if r := d.get("/stream?for=0s"); r.status == http.StatusOK {
			break
		} else if time.Now().After(end) {
			t.Fatalf("after one has left: got %v", r)
		}
	}
}

// A request that waits for its turn is served, or fails at once if the turn comes too late.
func TestUpstream(t *testing.T) {
	d := startDemo(t, "policies:\n  upstream: 1 per 1h leaky-bucket\n")
	if r := d.get("/upstream"); r.status != http.StatusOK || !strings.Contains(r.body, `"waited": `) {
		t.Errorf("the first: got %v", r)
	}
	if r := d.get("/upstream"); r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") != "3" {
		t.Errorf("a second, whose turn is in an hour: got %v", r)
	}
	d = startDemo(t, "policies:\n  upstream: 50 per 1s leaky-bucket\n")
	for range 5 {
		if r := d.get("/upstream"); r.status != http.StatusOK {
			t.Errorf("got %v, want 200", r)
		}
	}
}
