package consistency_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler"
)

func Example() {
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5000, Window: time.Hour, Aligned: true}}}
	all := &throttler.Policy{Name: "all", Limits: []throttler.Limit{{Quota: 900, Window: time.Minute, Algorithm: throttler.TokenBucket}}}
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{"127.0.0.1:6379"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	exact, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer exact.Close()
	table, err := consistency.NewTable(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := leased.New(exact, &leased.Options{Leases: table.Leases})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close(context.Background())
	soft, err := synced.New([]synced.Root{{Name: "a", Client: client}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer soft.Close()
	for policy, level := range map[*throttler.Policy]consistency.Level{core: consistency.Leased, all: consistency.Synced} {
		if err := table.Begin(policy, level); err != nil {
			fmt.Println(err)
			return
		}
	}
	backend, err := consistency.New(store, soft, table)
	if err != nil {
		fmt.Println(err)
		return
	}
	t := throttler.New(backend, nil)
	d, err := t.Take(context.Background(), core.Charge("alice"), all.Charge("alice"))
	fmt.Println(d, err)

	// Later, in all processes within a minute:
	if err := table.Set(core, consistency.Synced); err != nil {
		fmt.Println(err)
	}
}
