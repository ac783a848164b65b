package refusals_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/backendtest"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/backend/refusals"
	"github.com/weir-go/weir/internal/testserver"
	"github.com/weir-go/weir/throttler"
)

func redisOn(t testing.TB, client redis.UniversalClient, prefix string) throttler.Backend {
	t.Helper()
	b, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, &redisbackend.Options{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func newClient(t testing.TB) *redis.Client {
	o := redisbackend.ClientOptions(testserver.Redis(t).Addr)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = 20*time.Second, 20*time.Second, 20*time.Second, 20*time.Second // a busy machine is no failure
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestContractFromMemoryOverRedis(t *testing.T) {
	client := newClient(t)
	var opened atomic.Int64
	backendtest.RunExcept(t, func(t *testing.T) throttler.Backend {
		return open(t, redisOn(t, client, fmt.Sprintf("t%d:", opened.Add(1))), &refusals.Options{MaxAge: time.Hour})
	}, decays)
}

// BenchmarkRedis is a hot key that Redis refuses, without and with a Backend.
func BenchmarkRedis(b *testing.B) {
	client := newClient(b)
	for name, backend := range map[string]throttler.Backend{
		"asked":      redisOn(b, client, "a:"),
		"remembered": open(b, redisOn(b, client, "b:"), nil),
	} {
		b.Run(name, func(b *testing.B) {
			t := throttler.New(backend, nil)
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if d, err := t.Take(context.Background(), charge(core, "alice", 6)); err != nil || d.Allowed {
						b.Error(d.Allowed, err)
						return
					}
				}
			})
		})
	}
}
