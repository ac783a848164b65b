package redisbackend_test

import (
	"context"
	"crypto/tls"
	"fmt"
	stdlog "log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// Counts live on two shards. All processes with the same names of shards share them.
func Example() {
	addrA, addrB, stop := startTwo() // in place of two servers of yours
	defer stop()

	clientA, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{addrA}})
	if err != nil {
		stdlog.Fatal(err)
	}
	defer clientA.Close()
	clientB, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{addrB}})
	if err != nil {
		stdlog.Fatal(err)
	}
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

// Two shards, each a primary and a replica.
func ExampleNew_replicas() {
	client := func(addr string) redis.UniversalClient {
		c, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{addr}})
		if err != nil {
			stdlog.Fatal(err)
		}
		return c
	}
	backend, err := redisbackend.New([]redisbackend.Shard{
		{Name: "a", Primary: client("127.0.0.1:7001"), Replicas: []redis.UniversalClient{client("127.0.0.1:7002")}},
		{Name: "b", Primary: client("127.0.0.1:7003"), Replicas: []redis.UniversalClient{client("127.0.0.1:7004")}},
	}, nil)
	if err != nil {
		stdlog.Fatal(err)
	}
	t := throttler.New(backend, &throttler.Options{Clock: backend.Clock()}) // corrected by the servers' clocks

	_ = t
}

// A shard with a primary that Sentinels choose. All Sentinels are listed.
func ExampleNewClient_sentinel() {
	client, err := redisbackend.NewClient(&redis.UniversalOptions{
		MasterName: "mymaster",
		Addrs:      []string{"10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379"},
	})
	if err != nil {
		stdlog.Fatal(err)
	}
	defer client.Close()
	fmt.Println(redisbackend.Shard{Name: "a", Primary: client}.Name)
	// Output: a
}

// A Redis Cluster is one shard. Its clients use TLS, a user and a password.
func ExampleNewClient_cluster() {
	client, err := redisbackend.NewClient(&redis.UniversalOptions{
		Addrs:     []string{"10.0.0.1:7000", "10.0.0.2:7000"}, // it finds the other nodes
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		Username:  "weir",
		Password:  os.Getenv("REDIS_PASSWORD"),
	})
	if err != nil {
		stdlog.Fatal(err)
	}
	defer client.Close()
	fmt.Println(redisbackend.Shard{Name: "a", Primary: client}.Name)
	// Output: a
}

func ExampleParseURL() {
	options, err := redisbackend.ParseURL("rediss://weir:secret@redis.internal/1")
	if err != nil {
		stdlog.Fatal(err)
	}
	options.PoolSize = 16
	fmt.Println(options.Addrs, options.Username, options.DB, options.TLSConfig != nil)
	// Output: [redis.internal:6379] weir 1 true
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
