package policies_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/open-feature/go-sdk/openfeature/isolated"
	"github.com/open-feature/go-sdk/openfeature/memprovider"
	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// newClient returns a client of a Redis server of the test.
func newClient(t testing.TB, server *testserver.RedisServer) redis.UniversalClient {
	t.Helper()
	patience := 10 * time.Second // the machine may be busy
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{server.Addr}, DialTimeout: patience, ReadTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// must returns b, and closes it when the test ends.
func must[B interface {
	driver.Backend
	Close()
}](t *testing.T, b B, err error) driver.Backend {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// backends are all backends that decide exactly, or seem to in a single process.
var backends = map[string]func(t *testing.T, c clock.Clock) driver.Backend{
	"memory": func(*testing.T, clock.Clock) driver.Backend { return memorybackend.NewDefault() },
	"redis": func(t *testing.T, _ clock.Clock) driver.Backend {
		b, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: newClient(t, testserver.Redis(t))}}, nil)
		return must(t, b, err)
	},
	"memcached": func(t *testing.T, _ clock.Clock) driver.Backend {
		client := memcachedbackend.NewClient(testserver.Memcached(t).Addr)
		t.Cleanup(func() { _ = client.Close() })
		b, err := memcachedbackend.New([]memcachedbackend.Server{{Name: "a", Client: client}}, nil)
		return must(t, b, err)
	},
	"rollout": func(t *testing.T, _ clock.Clock) driver.Backend {
		api := isolated.NewAPI()
		t.Cleanup(func() { _ = api.Shutdown(context.Background()) })
		if err := api.SetProviderAndWait(t.Context(), memprovider.NewInMemoryProvider(map[string]memprovider.InMemoryFlag{
			rollout.DefaultFlag: {State: memprovider.Enabled, Variants: map[string]any{"on": "new"}, DefaultVariant: "on"},
		})); err != nil {
			t.Fatal(err)
		}
		b, err := rollout.New(map[string]handoff.Store{"old": memorybackend.NewDefault(), "new": memorybackend.NewDefault()}, "old", api.NewClient(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	},
	"fallback": func(t *testing.T, _ clock.Clock) driver.Backend {
		b, err := fallback.New(memorybackend.NewDefault(), &fallback.Options{OnFailure: fallback.Local, Processes: 1})
		return must(t, b, err)
	},
	"refusals": func(t *testing.T, _ clock.Clock) driver.Backend {
		b, err := refusals.New(memorybackend.NewDefault(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	},
	"leased": func(t *testing.T, c clock.Clock) driver.Backend {
		b, err := leased.New(memorybackend.NewDefault(), &leased.Options{Busy: 1, Clock: c})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close(context.Background()) })
		return b
	},
}

// model contains the limits of one key, and its used units.
type model struct {
	own, table, override int64 // quotas; 0 if not set
	blocked, unlimited   bool
	used, resetAt        int64
}

func (m *model) quota() int64 {
	switch {
	case m.unlimited:
		return quota.MaxQuota
	case m.override > 0:
		return m.override
	case m.table > 0:
		return m.table
	}
	return m.own
}

// take reports whether a take of cost is allowed at now, and then charges it.
func (m *model) take(cost, now int64) bool {
	if m.blocked {
		return false
	}
	if now >= m.resetAt {
		m.used = 0
	}
	if m.used+cost > m.quota() {
		return false
	}
	if m.used == 0 {
		m.resetAt = now + time.Hour.Milliseconds()
	}
	m.used += cost
	return true
}

// change makes a random change, in m and in e.
func (m *model) change(random *rand.Rand, e *policies.Edit, key string) {
	o := policies.Override{Policy: "core", Key: key}
	switch n := 1 + random.Int64N(30); random.IntN(7) {
	case 0:
		m.table = n
		e.Set(policy("core", hourly(n)))
	case 1:
		m.table = 0
		e.Remove("core")
	case 2, 3:
		m.override, m.blocked, m.unlimited = n, false, false
		o.Limits = []quota.Limit{hourly(n)}
		e.Override(o)
	case 4:
		m.override, m.blocked, m.unlimited = 0, true, false
		o.Blocked = true
		e.Override(o)
	case 5:
		m.override, m.blocked, m.unlimited = 0, false, true
		o.Unlimited = true
		e.Override(o)
	case 6:
		m.override, m.blocked, m.unlimited = 0, false, false
		e.RemoveOverride("core", key)
	}
}

// Whatever changes, each key has the limits of the table, and keeps its used units.
func TestAllBackendsGoByTheTable(t *testing.T) {
	t.Parallel()
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			random, c := testseed.Rand(t, 0), clock.NewManual(t0)
			var table policies.Table
			s := table.Source("code")
			th := throttler.New(open(t, c), &throttler.Options{Clock: c, Policies: &table})
			for round := range 20 {
				edit(t, s, func(e *policies.Edit) { e.Clear() })
				key, m := fmt.Sprint("key", round), &model{own: 10}
				p := policy("core", hourly(10))
				var log []string
				for step := range 100 {
					if random.IntN(4) == 0 {
						edit(t, s, func(e *policies.Edit) { m.change(random, e, key) })
						log = append(log, fmt.Sprintf("%+v", *m))
					}
					if random.IntN(30) == 0 {
						c.Advance(time.Duration(random.Int64N(int64(90 * time.Minute))))
					}
					cost := 1 + random.Int64N(3)
					now := c.Now().UnixMilli()
					before := *m
					want := m.take(cost, now)
					d, err := th.Take(t.Context(), throttler.Charge{Policy: p, Key: key, Cost: cost})
					log = append(log, fmt.Sprintf("%d: %v; %+v", cost, d, *m))
					if name == "leased" && want && !d.Allowed { // units leased under other limits return in the background
						*m, want = before, false
					}
					used := d.Limit(0).Used
					if name == "refusals" && !d.Allowed { // the refusal's, from before other takes
						used = max(used, m.used)
					}
					if err != nil || d.Allowed != want || d.Blocked != m.blocked || d.Limit(0).Limit.Quota != m.quota() ||
						!m.blocked && name != "leased" && used != m.used {
						t.Fatalf("step %d: %v, %v; want allowed %t, used %d of %d\n%q", step, d, err, want, m.used, m.quota(), log)
					}
				}
			}
		})
	}
}
