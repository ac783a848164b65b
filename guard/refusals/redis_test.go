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
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

const long = 20 * time.Second // a busy machine is no failure

func redisOn(t testing.TB, client redis.UniversalClient, prefix string) driver.Backend {
	t.Helper()
	b, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, &redisbackend.Options{Prefix: prefix, Deadline: long})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func newClient(t testing.TB) redis.UniversalClient {
	t.Helper()
	c, err := redisbackend.NewClient(&redis.UniversalOptions{
		Addrs: []string{testserver.Redis(t).Addr}, DialTimeout: long, ReadTimeout: long, WriteTimeout: long, PoolTimeout: long,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestSequentialContractFromMemoryOverRedis(t *testing.T) {
	client := newClient(t)
	var opened atomic.Int64
	backendtest.RunExcept(t, func(t *testing.T) driver.Backend {
		return open(t, redisOn(t, client, fmt.Sprintf("t%d:", opened.Add(1))), &refusals.Options{MaxAge: time.Hour})
	}, decays)
}

// BenchmarkRedis measures a hot key that Redis refuses, without and with a Backend.
func BenchmarkRedis(b *testing.B) {
	client := newClient(b)
	for name, backend := range map[string]driver.Backend{
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
