package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/guard/shadow"
	"github.com/weir-go/weir/internal/testkit/load"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/synced"
)

var (
	rolloutClients = flag.Int("rollout-clients", 12, "clients of TestClientsMoveUnderLoad")
	rolloutQuota   = flag.Int("rollout-quota", 5, "quota of TestClientsMoveUnderLoad: few enough that clients exhaust it on a busy machine")
	rolloutWindow  = flag.Duration("rollout-window", 2*time.Second, "window of TestClientsMoveUnderLoad; each percentage holds for one and a bit")
)

// share writes a flags' file with that percentage of the clients on redis, and the others on
// memcached.
func share(t *testing.T, file string, percent int) {
	t.Helper()
	if err := os.WriteFile(file, fmt.Appendf(nil, "redis: %d\nmemcached: %d\n", percent, 100-percent), 0o600); err != nil {
		t.Fatal(err)
	}
}

// between returns the configuration of demos that move clients between
// Memcached and Redis.
func between(t *testing.T, flags string) string {
	return fmt.Sprintf("tokens: any\nbackend: memcached\nmemcached: {servers: [%s]}\nredis: {shards: [{name: a, primary: %s}]}\nflags: %s\n",
		testserver.Memcached(t).Addr, testserver.Redis(t).Addr, flags)
}

// stats is the JSON of the operator's page.
type stats struct {
	Rollout  *rollout.Stats
	Shadow   *shadow.Stats
	Fallback *fallback.Stats
	Refusals *refusals.Stats
	Synced   *synced.Stats
	Levels   map[string]debugLevel  `json:"consistency"`
	DryRuns  map[string]debugDryRun `json:"dry_runs"`
}

func (d *demo) stats() stats {
	d.t.Helper()
	var b stats
	if err := json.Unmarshal([]byte(d.operator("/debug/weir?format=json").body), &b); err != nil {
		d.t.Fatal(err)
	}
	return b
}

// TestClientsMoveUnderLoad turns the share of Redis up and down while clients
// of three demos use up their quotas. The full form takes some minutes:
//
//	go test ./cmd/demo-api -run ClientsMove -v -rollout-clients 1000 -rollout-quota 20 -rollout-window 10s
func TestClientsMoveUnderLoad(t *testing.T) {
	t.Parallel() // it waits most of the time
	flags := filepath.Join(t.TempDir(), "flags.yaml")
	share(t, flags, 0)
	config := between(t, flags) + fmt.Sprintf("policies:\n  core: {limits: [{quota: %d, window: %v}]}\n", *rolloutQuota, *rolloutWindow)
	var demos []*demo
	o := load.Config{Path: "/repos/acme/rockets", Clients: *rolloutClients, Every: *rolloutWindow / 30, Prefix: "client", Seed: testseed.Of(t)}
	for range 3 {
		d := startDemo(t, config)
		demos = append(demos, d)
		o.URLs = append(o.URLs, d.url)
	}
	ctx, stop := context.WithCancel(t.Context())
	reports := make(chan load.Report)
	go func() { reports <- load.Run(ctx, o, nil) }()
	for _, percent := range []int{0, 10, 50, 100, 0} {
		share(t, flags, percent)
		select { // so that each flip is at another point of the windows
		case <-time.After(*rolloutWindow * 13 / 10):
		case <-t.Context().Done():
		}
		for percent == 100 && moved(demos) < int64(*rolloutClients) { // a busy machine may take longer
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("at %3d percent: %+v", percent, *demos[0].stats().Rollout)
	}
	stop()
	r := <-reports
	t.Logf("served %d, refused %d, undecided %d; p50 %v, p99 %v", r.Served, r.Refused, r.Undecided, r.Quantile(50), r.Quantile(99))
	if r.WrongCount > 0 || r.Undecided > 0 {
		t.Errorf("%d answers were wrong, %d undecided:\n%s", r.WrongCount, r.Undecided, strings.Join(r.Wrong, "\n"))
	}
	if r.Served == 0 || r.Refused == 0 {
		t.Errorf("served %d, refused %d: the test tests nothing", r.Served, r.Refused)
	}
	var lost int64
	for _, d := range demos {
		s := d.stats().Rollout
		lost += s.Lost
		delete(s.Defaulted, "hangs") // other tests may use all of the processor
		if len(s.Defaulted) > 0 {
			t.Errorf("the flag failed: %v", s.Defaulted)
		}
	}
	if lost > 0 {
		t.Errorf("%d counts were lost, want none", lost)
	}
}

// moved returns the number of counts that the demos have moved.
func moved(demos []*demo) (n int64) {
	for _, d := range demos {
		n += d.stats().Rollout.Moved
	}
	return n
}

// TestFlagsFileGoesWrong breaks the file while a demo runs, and starts another with it.
func TestFlagsFileGoesWrong(t *testing.T) {
	flags := filepath.Join(t.TempDir(), "flags.yaml")
	share(t, flags, 100)
	config := between(t, flags)
	d := startDemo(t, config)
	for used := 1; used <= 2; used++ {
		if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != fmt.Sprintf("%d/60 core", used) {
			t.Errorf("got %v, want 200 %d/60", r, used)
		}
	}
	if s := d.stats().Rollout; s.Served["redis"] != 2 {
		t.Errorf("served %v, want 2 by redis", s.Served)
	}
	if err := os.WriteFile(flags, []byte("# half of it\nredi"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.stderr.find(t, `(the flags' file is wrong; its last good state stays in use" error=\S*flags.yaml:2: the file is )`, d.ended)
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "3/60 core" {
		t.Errorf("got %v, want 200 3/60", r)
	}
	if s := d.stats().Rollout; s.Served["redis"] != 3 || len(s.Defaulted) > 0 {
		t.Errorf("served %v, defaulted %v; want 3 by redis", s.Served, s.Defaulted)
	}

	late := startDemo(t, config) // it has no last good state
	if r := late.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "4/60 core" {
		t.Errorf("got %v, want 200 4/60: it finds the count where the other has it", r)
	}
	if log := late.stderr.String(); !strings.Contains(log, `the flags' file is wrong; until it is right, one backend serves all clients" backend=memcached`) {
		t.Errorf("got log %q", log)
	}
	share(t, flags, 100)
	late.stderr.find(t, `(read the flags)`, late.ended)
	if r := late.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "5/60 core" {
		t.Errorf("got %v, want 200 5/60", r)
	}
}

func TestShadowAndDryRun(t *testing.T) {
	memcached, redis := testserver.Memcached(t), testserver.Redis(t)
	d := startDemo(t, fmt.Sprintf(`
backend: memcached
memcached: {servers: [%s]}
redis: {shards: [{name: a, primary: %s}]}
shadow: redis
dry_runs:
  core: {limits: [{quota: 2, window: 1h}]}
  org.member: {limits: [{quota: 1, window: 1h}]}
`, memcached.Addr, redis.Addr))
	for used := 1; used <= 5; used++ {
		if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != fmt.Sprintf("%d/60 core", used) {
			t.Errorf("got %v, want 200 %d/60", r, used)
		}
	}
	for range 3 {
		if r := d.get("/orgs/acme/feed"); r.status != http.StatusOK {
			t.Errorf("got %v, want 200", r)
		}
	}
	// Each take has its dry run. The feed is charged in two partitions, and a remembered
	// refusal, of the third dry run, counts once.
	const takes = 5*2 + 3*2*2 - 1
	var b stats
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		b = d.stats() // the shadow does not see refusals repeated from memory
		if b.Shadow.Compared+b.Refusals.Answered == takes {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the shadow has seen %+v, the refusal cache %+v, want %d takes", *b.Shadow, *b.Refusals, takes)
		}
	}
	if s := b.Shadow; s.Agreed != s.Compared || s.Failed+s.Dropped != 0 {
		t.Errorf("shadow %+v, want agreement", s)
	}
	if got := fmt.Sprint(b.DryRuns); got != "map[core:{2 3} org.member:{1 2}]" {
		t.Errorf("dry runs %s, want core 2 allowed and 3 refused, org.member 1 and 2", got)
	}
	redis.Kill()
	for range 5 {
		if r := d.get("/search?q=weir"); r.status != http.StatusOK || r.header.Get("X-RateLimit-Resource") != "search" {
			t.Errorf("with the shadow dead: got %v, want 200", r)
		}
	}
}

// TestResharding moves clients from one list of shards to another.
func TestResharding(t *testing.T) {
	a, b := testserver.Redis(t).Addr, testserver.Redis(t).Addr
	flags := filepath.Join(t.TempDir(), "flags.yaml")
	say := func(percent int) {
		if err := os.WriteFile(flags, fmt.Appendf(nil, "redis-resharded: %d\n", percent), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	say(0)
	d := startDemo(t, fmt.Sprintf("tokens: any\nbackend: redis\nredis:\n  shards: [{name: a, primary: %q}]\n  resharded: [{name: a, primary: %q}, {name: b, primary: %q}]\nflags: %s\n", a, a, b, flags))
	const clients = 20
	all := func(used int) {
		t.Helper()
		for i := range clients {
			if r := d.get("/repos/acme/rockets", "Authorization", fmt.Sprint("Bearer client", i)); r.status != http.StatusOK || r.rates() != fmt.Sprintf("%d/60 core", used) {
				t.Errorf("client %d: got %v, want 200 %d/60", i, r, used)
			}
		}
	}
	all(1)
	say(100)
	d.stderr.find(t, `(read the flags)`, d.ended)
	all(2)
	all(3)
	if s := d.stats().Rollout; s.Moved == 0 || s.Moved == clients || s.Served["redis-resharded"] == 0 {
		t.Errorf("%+v; want some counts moved, and none of the shard that both lists have", s)
	}
}

func TestMemcachedDies(t *testing.T) {
	server := testserver.Memcached(t)
	d := startDemo(t, fmt.Sprintf("backend: memcached\nmemcached: {servers: [%s]}\n", server.Addr))
	want := func(what string, r response, rates string) {
		t.Helper()
		if r.status != http.StatusOK || r.rates() != rates {
			t.Errorf("%s: got %v, want 200 %s", what, r, rates)
		}
	}
	want("first", d.get("/repos/acme/rockets"), "1/60 core")
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	want("restarted, and empty", d.get("/repos/acme/rockets"), "1/60 core")
	server.Kill()
	want("dead: no rates, which would be a lie", d.get("/repos/acme/rockets"), "/ ")
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	want("back", d.getWhenBack("/repos/acme/rockets"), "1/60 core")
}
