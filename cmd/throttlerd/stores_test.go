package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

const twoLimits = perYear + `
  - {key: team, rate_limit: {unit: year, requests_per_unit: 5}}
`

// askBoth asks about a user and a team at once, and returns the remaining units of each, with
// ! if it is over.
func (d *daemon) askBoth(user, team string) (string, error) {
	req := &ratelimitv3.RateLimitRequest{Domain: "d"}
	for _, e := range []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: user}, {Key: "team", Value: team}} {
		req.Descriptors = append(req.Descriptors, &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{e}})
	}
	resp, err := d.rls.ShouldRateLimit(d.t.Context(), req)
	var all []string
	for _, s := range resp.GetStatuses() {
		over := map[bool]string{true: "!"}[s.Code == ratelimitv3.RateLimitResponse_OVER_LIMIT]
		all = append(all, fmt.Sprint(s.LimitRemaining, over))
	}
	return strings.Join(all, " "), err
}

// The variables of envoyproxy/ratelimit configure each kind of store. Refused requests charge
// nothing there, and another process has the same counts.
func TestStores(t *testing.T) {
	t.Parallel() // it waits most of the time
	for name, environ := range map[string]func(t *testing.T) []string{
		"Sentinel": func(t *testing.T) []string {
			s := testserver.Sentinel(t, "mymaster", testserver.Redis(t), 0, time.Second)
			return []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_TYPE=SENTINEL", "REDIS_URL=mymaster," + strings.Join(s.Addrs, ",")}
		},
		"Cluster": func(t *testing.T) []string {
			c := testserver.Cluster(t, 3, 0)
			return []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_TYPE=CLUSTER", "REDIS_URL=" + strings.Join(c.Addrs, ",")}
		},
		"a user": func(t *testing.T) []string {
			server := testserver.Redis(t)
			client := redis.NewClient(&redis.Options{Addr: server.Addr})
			defer client.Close()
			if err := client.ACLSetUser(t.Context(), "limits", "on", ">se:cret", "~weir:*", "+@all").Err(); err != nil {
				t.Fatal(err)
			}
			return []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + server.Addr, "REDIS_AUTH=limits:se:cret"}
		},
		"Memcached": func(t *testing.T) []string {
			return []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + testserver.Memcached(t).Addr + "," + testserver.Memcached(t).Addr}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := environ(t)
			d, other := started(t, twoLimits, all...), started(t, twoLimits, all...)
			for _, d := range []*daemon{d, other} {
				d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
			}
			for i, want := range []string{"2 4", "1 3", "0 2", "0! 2", "0! 2"} {
				d := []*daemon{d, other}[i%2]
				if got, err := d.askBoth("a", "blue"); got != want || err != nil {
					t.Errorf("request %d: %s, %v; want %s", i, got, err, want)
				}
			}
			if got, err := d.askBoth("b", "blue"); got != "2 1" || err != nil {
				t.Errorf("another user: %s, %v; want 2 1", got, err)
			}
		})
	}
}

// scripts returns the number of scripts that a Redis has run. Other commands grow with time.
func scripts(t *testing.T, addr string) (n int) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	info, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	if _, rest, ok := strings.Cut(info, "cmdstat_evalsha:calls="); ok {
		if _, err := fmt.Sscanf(rest, "%d,", &n); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// All processes share the counts of a level, and a reload changes the level and keeps the
// counts.
func TestLevels(t *testing.T) {
	t.Parallel() // it waits most of the time
	const text = `
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 400, consistency: %s}}
`
	for _, level := range []string{"leased", "synced"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t)
			environ := []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + server.Addr}
			moded := fmt.Sprintf(text, level)
			d, other := started(t, moded, environ...), started(t, moded, environ...)
			for _, d := range []*daemon{d, other} {
				d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
			}
			before := scripts(t, server.Addr)
			// Callers ask concurrently: a lease covers the demand of about a second.
			var callers sync.WaitGroup
			var answered atomic.Int64
			for i := range 20 {
				callers.Go(func() {
					for range 15 {
						if got, err := []*daemon{d, other}[i%2].ask("a"); err != nil {
							t.Error(err)
						} else if got >= 0 {
							answered.Add(1)
						}
					}
				})
			}
			callers.Wait()
			if n := scripts(t, server.Addr) - before; n > 200 {
				t.Errorf("Redis ran %d scripts for 300 requests; want far fewer", n)
			}
			allowed := answered.Load()
			if allowed != 300 {
				t.Errorf("%d of 300 requests were allowed", allowed)
			}
			other.terminate() // it returns its leases, or sends its counts
			other.ended <- <-other.ended
			d.write(fmt.Sprintf(text, "exact"))
			eventually(t, func() error {
				if strings.Count(d.log.String(), "a configuration is in force") < 2 {
					return errors.New("no reload")
				}
				return nil
			})
			for range 200 {
				if got, err := d.ask("a"); err != nil {
					t.Fatal(err)
				} else if got >= 0 {
					allowed++
				}
			}
			// For a moment the other process's units may be unknown, and count as used.
			if allowed > 400 || allowed <= 300 {
				t.Errorf("%d requests were allowed, want above 300 and at most 400", allowed)
			}
		})
	}
}

func TestLevelsThatCannotBe(t *testing.T) {
	const single, cluster = "REDIS_SOCKET_TYPE=tcp", "REDIS_TYPE=CLUSTER"
	for _, test := range []struct {
		limit   string
		environ []string
		want    string
	}{
		{"consistency: leased", []string{single}, ""},
		{"consistency: synced", []string{single}, ""},
		{"consistency: leased", []string{single, cluster}, ""},
		{"consistency: leased", []string{"BACKEND_TYPE=memory"}, `config/a.yaml:5: descriptors[0].rate_limit.consistency is "leased"; it must be one that this limit can have: counts live in memory, where a lease saves no round trip; write exact, or choose another backend`},
		{"consistency: synced", []string{single, cluster}, `config/a.yaml:5: descriptors[0].rate_limit.consistency is "synced"; it must be one that this limit can have: there are no shards to agree at that are single servers of Redis`},
		{"consistency: synced, algorithm: sliding-window", []string{single}, `config/a.yaml:5: descriptors[0].rate_limit.consistency is "synced"; it must be one that this limit can have: synced: policy`},
		{"consistency: loose", []string{single}, `config/a.yaml:5: descriptors[0].rate_limit.consistency is "loose"; it must be exact, leased or synced`},
	} {
		d := &daemon{t: t, dir: t.TempDir()}
		d.write("\ndomain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: year, requests_per_unit: 3, " + test.limit + "}\n")
		var out, log lockedBuffer
		err := run(t.Context(), []string{"-check"}, append([]string{"RUNTIME_ROOT=" + d.dir, "REDIS_URL=127.0.0.1:1"}, test.environ...), &out, &log)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s, %s: %v\nwant %s", test.limit, test.environ, err, test.want)
		}
	}
}

// A descriptor may have the name of a policy of WEIR_CONFIG, or of its dry run, and a level: they
// have one level then.
func TestLevelsOfNamesOfTheFile(t *testing.T) {
	t.Parallel() // it waits most of the time
	const text = `
domain: core
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 400, consistency: leased}}
  - {key: dry-run, rate_limit: {unit: year, requests_per_unit: 400, consistency: %s}}
`
	file := filepath.Join(t.TempDir(), "weir.yaml")
	weir := "backend: redis\nredis: {shards: [{name: a, primary: '" + testserver.Redis(t).Addr + "'}]}\npolicies: {core: {limits: [60 per 1m], consistency: leased}}\n"
	if err := os.WriteFile(file, []byte(weir), 0o600); err != nil {
		t.Fatal(err)
	}
	d := started(t, fmt.Sprintf(text, "leased"), "WEIR_CONFIG="+file)
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	d.write(fmt.Sprintf(text, "synced"))
	eventually(t, func() error {
		if n := strings.Count(d.log.String(), "a configuration is in force"); n != 2 {
			return fmt.Errorf("%d configurations were put in force, want 2", n)
		}
		return nil
	})
}

// A hit is near its limit if much of it is used, not because its process has leased little.
func TestLeasedIsNotNear(t *testing.T) {
	metrics := testserver.FreeAddr(t)
	d := started(t, strings.Replace(perYear, "3}", "1000000, consistency: leased}", 1),
		"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+testserver.Redis(t).Addr, "USE_PROMETHEUS=true", "PROMETHEUS_ADDR="+metrics)
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	for range 100 {
		if _, err := d.ask("a"); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"near": "0", "within": "100"} {
		want = fmt.Sprintf(`ratelimit_service_rate_limit_%s_limit{domain="d",key1="user",key2=""} %s`, name, want)
		if _, text := d.page("http://"+metrics+"/metrics", ""); !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in %s", want, text)
		}
	}
}
