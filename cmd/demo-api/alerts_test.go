package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// TestAlertsFire kills Redis. A real Prometheus that scrapes the demo must report the outage,
// and its end.
func TestAlertsFire(t *testing.T) {
	t.Parallel() // it waits most of the time
	server := testserver.Redis(t)
	d := startDemo(t, fmt.Sprintf(`
backend: redis
redis: {shards: [{name: a, primary: %s}]}
on_failure: local
processes: 1
policies: {search: {limits: [{quota: 1000, window: 1s}], on_failure: closed}}
`, server.Addr))
	rules, err := os.ReadFile("../../observe/prom/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// As in alerts.yaml, but in seconds instead of minutes.
	quick := regexp.MustCompile(`for: \w+`).ReplaceAllString(string(rules), "for: 1s")
	quick = regexp.MustCompile(`\[(1|5)m\]`).ReplaceAllString(quick, "[5s]")
	p := promServer{t, d, testserver.Prometheus(t, fmt.Sprintf(`
global: {scrape_interval: 500ms, evaluation_interval: 200ms}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: demo
    static_configs: [{targets: ["%s"]}]
`, strings.TrimPrefix(d.debug, "http://")), quick).Addr}

	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				_, _ = d.try("GET", "/repos/acme/rockets")
				_, _ = d.try("GET", "/search?q=weir")
			}
		}
	})
	defer load.Wait()
	defer close(stop)

	// Others may fire too, if the machine is busy.
	alerts := []string{"WeirServerDown", "WeirDecisionsFail", "WeirDecisionsDegraded"}
	fire := func(want bool) func() bool {
		return func() bool {
			firing := p.firing()
			return !slices.ContainsFunc(alerts, func(a string) bool { return slices.Contains(firing, a) != want })
		}
	}
	p.await("samples, and no alert", func() bool { return p.has(`sum(weir_decisions_total{op="take"}) > 20`) && fire(false)() })
	server.Kill()
	p.await("all of "+fmt.Sprint(alerts), fire(true))
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	p.await("none of "+fmt.Sprint(alerts), fire(false))
}

// promServer is a Prometheus server that scrapes a demo.
type promServer struct {
	t    *testing.T
	demo *demo
	addr string
}

// await waits until ok.
func (p promServer) await(what string, ok func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("want %s; firing are %q", what, p.firing())
		}
	}
}

// firing returns the names of the alerts that fire.
func (p promServer) firing() []string {
	p.t.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels struct{ Alertname string }
			}
		}
	}
	p.get("/api/v1/alerts", &answer)
	var names []string
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			names = append(names, a.Labels.Alertname)
		}
	}
	return names
}

// has reports whether a query has an answer.
func (p promServer) has(query string) bool {
	p.t.Helper()
	var answer struct{ Data struct{ Result []any } }
	p.get("/api/v1/query?query="+strings.NewReplacer(" ", "%20", `"`, "%22", "{", "%7B", "}", "%7D", ">", "%3E").Replace(query), &answer)
	return len(answer.Data.Result) > 0
}

func (p promServer) get(path string, answer any) {
	p.t.Helper()
	r, err := p.demo.ask("GET", "http://"+p.addr+path)
	if err == nil {
		err = json.Unmarshal([]byte(r.body), answer)
	}
	if err != nil {
		p.t.Fatalf("%s: %v, %v", path, r, err)
	}
}
