package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// board has the fields of observe/prom/weir.json that matter for Grafana's requests to Prometheus.
type board struct {
	Templating struct {
		List []struct{ Name, Type string }
	}
	Panels []boardPanel
}

type boardPanel struct {
	Type, Title, Description string
	Datasource               struct{ UID string }
	FieldConfig              struct {
		Defaults struct{ Unit string }
	}
	Targets []struct{ Expr, LegendFormat string }
}

func readBoard(t *testing.T) (b board) {
	t.Helper()
	text, err := os.ReadFile("../../observe/prom/weir.json")
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBoardIsOfAnyPrometheus checks the rules of Grafana's linter that matter to a user: the
// board's variables choose the data source, the jobs and the instances, and rates are over a
// range that fits the scrape interval.
func TestBoardIsOfAnyPrometheus(t *testing.T) {
	b := readBoard(t)
	var variables []string
	for _, v := range b.Templating.List {
		variables = append(variables, v.Type+" "+v.Name)
	}
	if want := []string{"datasource datasource", "query job", "query instance", "query policy"}; !slices.Equal(variables, want) {
		t.Errorf("variables are %q; want %q", variables, want)
	}
	for _, p := range b.Panels {
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" || p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("panel %q has the data source %q, the unit %q and the description %q", p.Title, p.Datasource.UID, p.FieldConfig.Defaults.Unit, p.Description)
		}
		for _, target := range p.Targets {
			metrics := regexp.MustCompile(`weir_\w+`).FindAllString(target.Expr, -1)
			if n := strings.Count(target.Expr, `{job=~"$job", instance=~"$instance"`); n != len(metrics) {
				t.Errorf("%s: %d of %d metrics are of the chosen jobs and instances: %s", p.Title, n, len(metrics), target.Expr)
			}
			if strings.Count(target.Expr, "[") != strings.Count(target.Expr, "[$__rate_interval]") {
				t.Errorf("%s: a range is not $__rate_interval: %s", p.Title, target.Expr)
			}
			for _, m := range metrics {
				if strings.HasSuffix(m, "_total") && !regexp.MustCompile(`(rate|increase)\(`+m).MatchString(target.Expr) {
					t.Errorf("%s: a counter without its rate: %s", p.Title, target.Expr)
				}
			}
		}
	}
}

// drawn bounds the values of a panel's query during the outage: all are from low to high, and
// at least one is peak or more.
type drawn struct{ low, high, peak float64 }

var (
	aRate  = drawn{0, 5000, 0.1} // a second
	aPart  = drawn{0, 1, 0.01}
	aTime  = drawn{0, 1, 1e-6} // the highest bucket ends at 1 s
	aCount = drawn{0, 5000, 1}
	aFlag  = drawn{0, 1, 1}
	idle   = drawn{0, 5000, 0} // possibly nothing happened
)

// inTheOutage has the bounds of each panel's queries, in order. On a busy machine, more
// servers than the hung Redis may count as down: there are three, of two shards.
var inTheOutage = map[string][]drawn{
	"Decisions": {aRate}, "Refused": {aPart}, "Failing": {aPart}, "Degraded": {aPart}, "Breakers open": {{0, 3, 1}}, "p99": {aTime},
	"Decisions by policy and outcome": {aRate}, "Refusals by policy and limit": {aRate},
	"Time of decisions": {aTime, aTime}, "Degraded decisions by policy": {aRate},
	"Failures by cause and result": {aRate}, "Breakers": {aFlag}, "Breakers that opened": {{0, 100, 0.5}}, "Shards without an answer": {{0, 2, 1}},
	"Counts to be handed over": {aCount, idle},
	"Time of round trips":      {aTime, aTime}, "Decisions in a round trip": {{1, 128, 1}},
	"Replica lag": {{0, 60, 0}}, "Replicas cut off": {{0, 1, 0}}, "Clock skew": {{-5, 5, -5}},
	"Moves": {aRate}, "Counts lost": {{0, 5000, 0.5}, idle},
	"Leases": {aRate, aRate, aRate, idle}, "Syncs": {aRate, idle}, "Refusals from memory": {aRate, aRate},
	"Policies in force": {{1, math.Inf(1), 1}}, "Policies not taken over": {{0, 10, 0}},
}

// TestBoardInAnOutage draws each panel of the board by a real Prometheus that scrapes a demo
// while Redis hangs, and while clients move from it to Memcached.
func TestBoardInAnOutage(t *testing.T) {
	t.Parallel() // it waits most of the time
	redis := testserver.Redis(t)
	flags := filepath.Join(t.TempDir(), "flags.yaml")
	share(t, flags, 100)
	d := startProcess(t, writeConfig(t, fmt.Sprintf(`
tokens: any
backend: redis
redis: {shards: [{name: a, primary: %q, replicas: [%q]}]}
memcached: {servers: [%q]}
flags: %s
deadline: 500ms
on_failure: local
processes: 1
policies:
  core: {limits: [{quota: 10000, window: 1h, aligned: true}], consistency: leased}
  search: {limits: [{quota: 1, window: 1s}], on_failure: closed}
  secondary: {limits: [{quota: 1000000, window: 1h, aligned: true}], consistency: synced}
`, redis.Addr, testserver.RedisReplica(t, redis).Addr, testserver.Memcached(t).Addr, flags)))
	live := writeFiles(t, map[string]string{"live.json": `{"policies": [{"name": "core", "limits": ["50 per 1h"]}]}`})
	other := startDemo(t, "live_policies: "+filepath.Join(live, "live.json")+"\n")
	p := promServer{t, d, testserver.Prometheus(t, fmt.Sprintf(`
global: {scrape_interval: 500ms} # also the most that an answer may take
scrape_configs:
  - job_name: demo
    static_configs: [{targets: [%q, %q]}]
`, strings.TrimPrefix(d.debug, "http://"), strings.TrimPrefix(other.debug, "http://")), "").Addr}

	begun := time.Now()
	stop := d.callers()
	defer stop()
	all := func(queries ...string) func() bool {
		return func() bool {
			return !slices.ContainsFunc(queries, func(q string) bool { return !p.has(q) })
		}
	}
	p.await("decisions, refusals and a replica", all(`sum(weir_leased_local_total) > 0`, `sum(increase(weir_refusals_answered_total[4s])) > 1`, `weir_replica_cut`))
	redis.Pause()
	p.await("an open breaker, and local decisions", all(`weir_breaker_open{server="primary"} == 1`, `sum(weir_fallback_held) > 0`, `sum(weir_failures_total) > 0`))
	share(t, flags, 50)
	p.await("counts that are lost", all(`sum(weir_moves_total{outcome="lost"}) > 0`))
	share(t, flags, 0)
	p.await("more of them", all(`sum(increase(weir_moves_total{outcome="lost"}[4s])) > 0`))
	redis.Resume()
	p.await("no open breaker", all(`weir_breaker_open{server="primary"} == 0`))

	var wrong []string
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(500 * time.Millisecond) {
		if wrong = p.drawsBoard(readBoard(t), begun); len(wrong) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(wrong) > 0 {
		t.Error(strings.Join(wrong, "\n"))
	}
}

// drawsBoard returns the mistakes in the panels since begun.
func (p promServer) drawsBoard(b board, begun time.Time) (wrong []string) {
	for _, panel := range b.Panels {
		want := inTheOutage[panel.Title]
		if panel.Type == "row" {
			continue
		}
		if len(want) != len(panel.Targets) {
			p.t.Fatalf("%s has %d queries; the test knows %d", panel.Title, len(panel.Targets), len(want))
		}
		for i, target := range panel.Targets {
			if err := p.draws(target.Expr, target.LegendFormat, begun, want[i]); err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: %s: %v", panel.Title, target.Expr, err))
			}
		}
	}
	return wrong
}

// callers runs clients that request several paths until stop is called.
func (d *demo) callers() (stop func()) {
	done := make(chan struct{})
	var all sync.WaitGroup
	for client := range 4 {
		all.Go(func() {
			as := []string{"Authorization", fmt.Sprintf("Bearer client-%d", client)}
			for {
				select {
				case <-done:
					return
				case <-time.After(100 * time.Millisecond):
					for range 5 { // also on a busy machine 10 a second, which are leased
						_, _ = d.try("GET", "/repos/acme/rockets", as...)
					}
					_, _ = d.try("GET", "/search?q=weir", as...)
					_, _ = d.try("GET", "/rate_limit", as...)
				}
			}
		})
	}
	return func() { close(done); all.Wait() }
}

// draws returns an error if the graph of a query since begun is not as wanted.
func (p promServer) draws(query, legend string, begun time.Time, want drawn) error {
	query = strings.NewReplacer("$__rate_interval", "4s", "$job", ".+", "$instance", ".+", "$policy", ".*").Replace(query)
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	p.get("/api/v1/query_range?"+url.Values{
		"query": {query}, "step": {"0.5"}, "start": {strconv.FormatInt(begun.Unix(), 10)}, "end": {strconv.FormatInt(time.Now().Unix(), 10)},
	}.Encode(), &answer)
	peak := math.Inf(-1)
	for _, series := range answer.Data.Result {
		for _, label := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(legend, -1) {
			if series.Metric[label[1]] == "" {
				return fmt.Errorf("%v has no label %s for the legend", series.Metric, label[1])
			}
		}
		for _, at := range series.Values {
			value, err := strconv.ParseFloat(at[1].(string), 64)
			if err != nil {
				return err
			}
			if value < want.low || value > want.high {
				return fmt.Errorf("%v is %v, which is not from %v to %v", series.Metric, value, want.low, want.high)
			}
			if value > peak { // false for NaN, a quantile without values
				peak = value
			}
		}
	}
	if peak < want.peak {
		return fmt.Errorf("the highest of %d series is %v; want %v or more", len(answer.Data.Result), peak, want.peak)
	}
	return nil
}
