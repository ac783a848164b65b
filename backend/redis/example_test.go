package redisbackend_test

import (
	"context"
	"fmt"
	stdlog "log"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testserver"
	"github.com/weir-go/weir/throttler"
)

// Counts live on two shards. Each process that has the same shards' names
// shares them.
func Example() {
	addrA, addrB, stop := startTwo() // in place of two servers of yours
	defer stop()

	clientA := redis.NewClient(redisbackend.ClientOptions(addrA))
	defer clientA.Close()
	clientB := redis.NewClient(redisbackend.ClientOptions(addrB))
	defer clientB.Close()
	backend, err := redisbackend.New([]redisbackend.Shard{
		{Name: "a", Primary: clientA},
		{Name: "b", Primary: clientB},
	}, nil)
	if err != nil {
		stdlog.Fatal(err)
	}

	defer backend.Close()

	t := throttler.New(backend, &throttler.Options{Clock: backend.Clock()})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	for _, user := range []string{"alice", "bob", "alice"} {
		d, err := t.Take(context.Background(), core.Charge(user))
		if err != nil {
			stdlog.Fatal(err)
		}
		fmt.Println(user, "on shard", backend.Locate(core.Charge(user)).Shard, "used", d.Limit(0).Used)
	}
	// Output:
	// alice on shard b used 1
	// bob on shard a used 1
	// alice on shard b used 2
}

func startTwo() (a, b string, stop func()) {
	first, err := testserver.StartRedis()
	if err != nil {
		stdlog.Fatal(err)
	}
	second, err := testserver.StartRedis()
	if err != nil {
		stdlog.Fatal(err)
	}
	return first.Addr, second.Addr, func() { first.Stop(); second.Stop() }
}
