package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// deadShards names servers that can't exist: port 0 can't be listened on.
const deadShards = `
backend: redis
redis:
  shards:
    - {name: a, primary: "127.0.0.1:0", replicas: ["127.0.0.2:0"]}
    - {name: b, primary: "127.0.0.3:0"}
`

func TestDeadShardsAreNoReasonNotToStart(t *testing.T) {
	open := startDemo(t, deadShards)
	for _, want := range []string{
		`shard=a role=primary addr=127.0.0.1:0`, `shard=a role=replica addr=127.0.0.2:0`, `shard=b role=primary addr=127.0.0.3:0`,
	} {
		if got := open.stderr.String(); !strings.Contains(got, want) {
			t.Errorf("got log %q, want %q in it", got, want)
		}
	}
	if r := open.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "/ " {
		t.Errorf("on_failure: open: got %v, want 200 without rates, which would be a lie", r)
	}
	closed := startDemo(t, deadShards+"on_failure: closed\n")
	if r := closed.get("/repos/acme/rockets"); r.status != http.StatusServiceUnavailable || r.rates() != "/ " {
		t.Errorf("on_failure: closed: got %v, want 503 without rates", r)
	}
	if r := closed.get("/healthz"); r.status != http.StatusOK {
		t.Errorf("not limited: got %v, want 200", r)
	}
}

func TestDebugShowsTheRedisServers(t *testing.T) {
	primary := testserver.Redis(t)
	replica := testserver.RedisReplica(t, primary)
	d := startDemo(t, fmt.Sprintf("backend: redis\nredis: {shards: [{name: a, primary: %s, replicas: [%s]}]}\n", primary.Addr, replica.Addr))
	want := []string{"redisbackend a primary</td><td>answers", "redisbackend a replica 0</td><td>answers"}
	missing := func() bool {
		page := d.operator("/debug/weir").body
		return slices.ContainsFunc(want, func(text string) bool { return !strings.Contains(page, text) })
	}
	for deadline := time.Now().Add(20 * time.Second); missing(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the page lacks one of %q", want)
		}
	}
}

// A password is changed on a server and in the file while the demo runs.
func TestPasswordIsReadAgain(t *testing.T) {
	server := testserver.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	dir := writeFiles(t, map[string]string{"password": "one\n"})
	change := func(password string) {
		t.Helper()
		if err := admin.ConfigSet(t.Context(), "requirepass", password).Err(); err != nil {
			t.Fatal(err)
		}
	}
	change("one")
	d := startDemo(t, fmt.Sprintf("backend: redis\nredis: {shards: [{name: a, primary: %q, password_file: %q}]}\non_failure: closed\n", server.Addr, filepath.Join(dir, "password")))
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK {
		t.Fatalf("got %v, want 200", r)
	}
	change("two")
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte("two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	r := d.get("/repos/acme/rockets")
	for deadline := time.Now().Add(time.Minute); r.status != http.StatusOK && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		r = d.get("/repos/acme/rockets")
	}
	if r.status != http.StatusOK {
		t.Errorf("a minute after the password was changed: got %v, want 200", r)
	}
}

// withShard returns a configuration of one shard, named a, with these keys.
func withShard(keys string) string {
	return "backend: redis\nredis:\n  shards:\n    - {name: a, " + keys + "}\n"
}

// The demo runs on a server that wants TLS, a client's certificate, a user and a
// password, and on Sentinels and a Cluster.
func TestDemoOnEachTopology(t *testing.T) {
	tlsServer := testserver.RedisTLS(t)
	primary := testserver.Redis(t)
	replica := testserver.RedisReplica(t, primary)
	sentinels := testserver.Sentinel(t, "shard-a", primary, 1, testserver.Never)
	cluster := testserver.Cluster(t, 3, 1)
	list := func(addrs []string) string { return `["` + strings.Join(addrs, `", "`) + `"]` }
	files := "{ca_file: " + tlsServer.CAFile + ", cert_file: " + tlsServer.CertFile + ", key_file: " + tlsServer.KeyFile + ", server_name: " + testserver.ServerName + "}"
	for name, keys := range map[string]string{
		"TLS":      `primary: "` + tlsServer.Addr + `", tls: ` + files,
		"URL":      `primary: "rediss://` + tlsServer.Addr + `/1", tls: ` + files,
		"Sentinel": `sentinel: {master: shard-a, addrs: ` + list(sentinels.Addrs) + `}, replicas: ["` + replica.Addr + `"]`,
		"Cluster":  `cluster: ` + list(cluster.Addrs),
	} {
		t.Run(name, func(t *testing.T) {
			d := startDemo(t, withShard(keys))
			for _, want := range []string{"1/60 core", "2/60 core"} {
				if r := d.get("/repos/acme/rockets"); r.rates() != want {
					t.Errorf("got %v, want %s", r, want)
				}
			}
			complains := func() bool { return strings.Contains(d.stderr.String(), "does not answer") }
			for range 5 { // on a busy machine, a server may be late by more than a second
				if !complains() {
					return
				}
				d = startDemo(t, withShard(keys))
			}
			if complains() {
				t.Errorf("got log %q each time, want no server that does not answer", d.stderr.String())
			}
		})
	}
}

func TestProcessesShareCounts(t *testing.T) {
	const quota, clients, each = 200, 64, 5
	demos := sharing(t, 3, quota)
	var served, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for j := range each {
				r, err := demos[(i+j)%len(demos)].try("GET", "/repos/acme/rockets", "Authorization", "Bearer one")
				switch {
				case err != nil:
					t.Error(err)
				case r.status == http.StatusOK && r.header.Get("X-RateLimit-Used") != "": // otherwise nothing was decided
					served.Add(1)
				case r.status == http.StatusTooManyRequests && r.header.Get("X-RateLimit-Remaining") == "0":
					refused.Add(1)
				default:
					t.Errorf("got %v, want 200 with what is used, or 429 with nothing remaining", r)
				}
			}
		})
	}
	wg.Wait()
	if served.Load() != quota || refused.Load() != clients*each-quota {
		t.Errorf("served %d, refused %d; want %d, %d", served.Load(), refused.Load(), quota, clients*each-quota)
	}
	for i, d := range demos {
		if r := d.get("/repos/acme/rockets", "Authorization", "Bearer two"); r.rates() != fmt.Sprintf("%d/%d core", i+1, quota) {
			t.Errorf("another caller at demo %d: got %v, want %d/%d core", i, r, i+1, quota)
		}
	}
}

// TestRequestsInFlightAreCounted sends more slow requests at once than the quota allows: they
// are charged when they begin.
func TestRequestsInFlightAreCounted(t *testing.T) {
	const quota, clients = 5, 10
	demos := sharing(t, 1, quota)
	var served, refused atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			r, err := demos[0].try("GET", "/slow?for=500ms")
			switch {
			case err != nil:
				t.Error(err)
			case r.status == http.StatusOK && r.header.Get("X-RateLimit-Used") != "": // otherwise nothing was decided
				served.Add(1)
			case r.status == http.StatusTooManyRequests:
				refused.Add(1)
			default:
				t.Errorf("got %v, want 200 with what is used, or 429", r)
			}
		})
	}
	wg.Wait()
	if served.Load() != quota || refused.Load() != clients-quota {
		t.Errorf("served %d, refused %d; want %d, %d", served.Load(), refused.Load(), quota, clients-quota)
	}
}

// TestPrimaryDies loses one shard while the demo runs.
func TestPrimaryDies(t *testing.T) {
	primary := testserver.Redis(t)
	d := startDemo(t, fmt.Sprintf("backend: redis\nredis: {shards: [{name: a, primary: %s}]}\non_failure: closed\n", primary.Addr))
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "1/60 core" {
		t.Fatalf("got %v, want 200 1/60 core", r)
	}
	primary.Kill()
	if r := d.get("/repos/acme/rockets"); r.status != http.StatusServiceUnavailable {
		t.Errorf("dead: got %v, want 503", r)
	}
	if err := primary.Restart(); err != nil {
		t.Fatal(err)
	}
	if r := d.getWhenBack("/repos/acme/rockets"); r.status != http.StatusOK || r.rates() != "1/60 core" {
		t.Errorf("back, and empty: got %v, want 200 1/60 core", r)
	}
}

// sharing starts demos that share two shards.
func sharing(t *testing.T, demos int, coreQuota int) []*demo {
	t.Helper()
	config := "tokens: any\nbackend: redis\nredis:\n  shards:\n"
	for _, name := range []string{"a", "b"} {
		primary := testserver.Redis(t)
		replica := testserver.RedisReplica(t, primary)
		config += fmt.Sprintf("    - {name: %s, primary: %s, replicas: [%s]}\n", name, primary.Addr, replica.Addr)
	}
	config += fmt.Sprintf("policies:\n  core: {limits: [{quota: %d, window: 1h}]}\n", coreQuota)
	var all []*demo
	for range demos {
		all = append(all, startDemo(t, config))
	}
	return all
}
