package rollout_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/isolated"
	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/backendtest"
	"github.com/weir-go/weir/backend/handoff"
	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/driver"
)

// provider is an OpenFeature provider that gets its string flag from value.
type provider struct {
	openfeature.NoopProvider
	value  func(ctx context.Context, targetingKey string) openfeature.StringResolutionDetail
	events chan openfeature.Event
}

func (p *provider) Metadata() openfeature.Metadata { return openfeature.Metadata{Name: "test"} }

func (p *provider) StringEvaluation(ctx context.Context, _, _ string, flat openfeature.FlattenedContext) openfeature.StringResolutionDetail {
	key, _ := flat[openfeature.TargetingKey].(string)
	return p.value(ctx, key)
}

func (p *provider) EventChannel() <-chan openfeature.Event { return p.events }

func says(name string) openfeature.StringResolutionDetail {
	return openfeature.StringResolutionDetail{Value: name}
}

// clientOf returns an OpenFeature client with its own provider.
func clientOf(t testing.TB, p openfeature.FeatureProvider) openfeature.IClient {
	t.Helper()
	api := isolated.NewAPI()
	if p != nil {
		if err := api.SetProviderAndWait(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = api.Shutdown(context.Background()) })
	return api.NewClient()
}

func newRollout(t testing.TB, backends map[string]handoff.Store, defaultName string, c openfeature.IClient, options *rollout.Options) *rollout.Backend {
	t.Helper()
	b, err := rollout.New(backends, defaultName, c, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// restless is several processes with flags that change all the time, each on its own. Each
// decision is made by one of the processes, so counts move all the time, in all directions.
type restless struct {
	intN      func(int) int // random
	processes []*rollout.Backend
}

// newRestless returns processes with flags that change once in so many evaluations.
func newRestless(t *testing.T, intN func(int) int, every int, backends map[string]handoff.Store) *restless {
	names := slices.Sorted(maps.Keys(backends))
	r := &restless{intN: intN}
	for range 3 {
		var opinion atomic.Int64
		fickle := func(context.Context, string) openfeature.StringResolutionDetail {
			if intN(every) == 0 {
				opinion.Store(int64(intN(len(names))))
			}
			return says(names[opinion.Load()])
		}
		r.processes = append(r.processes, newRollout(t, backends, names[0], clientOf(t, &provider{value: fickle}), &rollout.Options{
			Refresh: 1, // each decision asks
		}))
	}
	return r
}

func (r *restless) process() *rollout.Backend { return r.processes[r.intN(len(r.processes))] }

func (r *restless) Take(ctx context.Context, q driver.Request) (driver.Decision, error) {
	return r.process().Take(ctx, q)
}

func (r *restless) Peek(ctx context.Context, q driver.Request) (driver.Decision, error) {
	return r.process().Peek(ctx, q)
}

func (r *restless) Reset(ctx context.Context, q driver.Request) error {
	return r.process().Reset(ctx, q)
}

func (r *restless) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	return r.process().Settle(ctx, s)
}

func (r *restless) moves() (moved, followed, lost int64) {
	for _, p := range r.processes {
		s := p.Stats()
		moved, followed, lost = moved+s.Moved, followed+s.Followed, lost+s.Lost
	}
	return moved, followed, lost
}

// TestSequentialHistoriesWhileCountsMove compares every answer with the algorithms, while the
// counts move between backends in memory, in Redis and in Memcached.
func TestSequentialHistoriesWhileCountsMove(t *testing.T) {
	open := houses(t)["three kinds"]
	rng := testseed.Locked(t, 1) // for the flag's values; an evaluation may be late and abandoned
	var all []*restless
	backendtest.Histories(t, func(t *testing.T) driver.Backend {
		r := newRestless(t, rng.IntN, 1, open(t))
		all = append(all, r)
		return r
	})
	var moved, followed int64
	for _, r := range all {
		m, f, lost := r.moves()
		moved, followed = moved+m, followed+f
		if lost > 0 {
			t.Errorf("%d counts were lost", lost)
		}
	}
	if moved < 100 || followed < 30 {
		t.Errorf("counts moved %d times and were followed %d times: the test tests nothing", moved, followed)
	}
	t.Logf("counts moved %d times and were followed %d times", moved, followed)
}

func redisClient(t testing.TB, addr string) redis.UniversalClient {
	t.Helper()
	const long = 20 * time.Second // a busy machine is no failure
	c, err := redisbackend.NewClient(&redis.UniversalOptions{
		Addrs: []string{addr}, DialTimeout: long, ReadTimeout: long, WriteTimeout: long, PoolTimeout: long,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func memcachedClient(t testing.TB, addr string) *memcachedbackend.Client {
	c := memcachedbackend.NewClient(addr)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func redisBackend(t *testing.T, shards []redisbackend.Shard, n int) handoff.Store {
	b, err := redisbackend.New(shards, &redisbackend.Options{Prefix: fmt.Sprintf("t%d:", n), Deadline: 20 * time.Second, Margin: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func memcachedBackend(t *testing.T, servers []memcachedbackend.Server, n int) handoff.Store {
	b, err := memcachedbackend.New(servers, &memcachedbackend.Options{Prefix: fmt.Sprintf("t%d:", n), Deadline: 20 * time.Second, Margin: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// The suite holds while counts move, also for many goroutines at once. If each of them moved
// the counts each time, one of many could follow them for too long.
func testContractWhileCountsMove(t *testing.T, open func(*testing.T) map[string]handoff.Store) {
	backendtest.Run(t, func(t *testing.T) driver.Backend { return newRestless(t, testseed.Locked(t, 1).IntN, 4, open(t)) })
}

func TestContractWhileCountsMove(t *testing.T) {
	testContractWhileCountsMove(t, func(*testing.T) map[string]handoff.Store {
		return map[string]handoff.Store{"old": memorybackend.NewDefault(), "new": memorybackend.NewDefault()}
	})
}

func TestSequentialContractWhileCountsMove(t *testing.T) {
	for name, open := range houses(t) {
		t.Run(name, func(t *testing.T) { testContractWhileCountsMove(t, open) })
	}
}

// houses returns functions that open empty backends for counts to move between.
func houses(t *testing.T) map[string]func(*testing.T) map[string]handoff.Store {
	var shards []redisbackend.Shard
	for _, name := range []string{"a", "b", "c"} {
		shards = append(shards, redisbackend.Shard{Name: name, Primary: redisClient(t, testserver.Redis(t).Addr)})
	}
	servers := []memcachedbackend.Server{{Name: "a", Client: memcachedClient(t, testserver.Memcached(t).Addr)}}
	n := 0 // makes prefixes that were not used before
	return map[string]func(*testing.T) map[string]handoff.Store{
		"three kinds": func(t *testing.T) map[string]handoff.Store {
			n++
			return map[string]handoff.Store{
				"memory": memorybackend.NewDefault(), "redis": redisBackend(t, shards[:1], n), "memcached": memcachedBackend(t, servers, n),
			}
		},
		"two rings": func(t *testing.T) map[string]handoff.Store {
			n++
			return map[string]handoff.Store{"two shards": redisBackend(t, shards[:2], n), "three shards": redisBackend(t, shards, n)}
		},
	}
}
