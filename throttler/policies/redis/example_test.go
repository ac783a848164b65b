package redispolicies_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
)

// An operator gives one customer other limits, in all processes.
func Example() {
	server, err := testserver.StartRedis() // in place of a server of yours
	if err != nil {
		log.Fatal(err)
	}
	defer server.Stop()
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{server.Addr}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, backend := context.Background(), memorybackend.NewDefault()

	// In each process:
	var table policies.Table
	store := redispolicies.NewStore(client, "")
	watch := redispolicies.NewWatch(ctx, &table, "redis", store, nil)
	defer watch.Close()
	t := throttler.New(backend, &throttler.Options{Policies: &table})

	// In an operator's program:
	version, err := store.Write(ctx, redispolicies.Change{
		Set: []*throttler.Policy{{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}}},
		Override: []policies.Override{{
			Policy: "core", Key: "acme", Limits: []throttler.Limit{{Quota: 5000, Window: time.Hour}},
			Until: time.Now().Add(24 * time.Hour), Owner: "sales", Reason: "a trial",
		}},
	})
	if err != nil {
		log.Fatal(err)
	}

	if err := watch.Refresh(ctx); err != nil { // a second later, by itself
		log.Fatal(err)
	}
	fmt.Println("version", version, "in force", table.Status()[0].Version)
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	for _, key := range []string{"alice", "acme"} {
		d, err := t.Take(ctx, core.Charge(key))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, "has", d.Limit(0).Limit.Quota)
	}
	// Output:
	// version 1 in force 1
	// alice has 100
	// acme has 5000
}
