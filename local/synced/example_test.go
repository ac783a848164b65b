package synced_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler"
)

// While no root answers, a process decides by itself.
func ExampleNew() {
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{"127.0.0.1:6379"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	roots := []synced.Root{{Name: "a", Client: client}}
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{
		Quota: 1000, Window: time.Hour, Algorithm: throttler.TokenBucket, Burst: 3,
	}}}

	backend, err := synced.New(roots, &synced.Options{Sync: 100 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()
	t := throttler.New(backend, nil)
	for range 4 {
		d, err := t.Take(context.Background(), core.Charge("alice"))
		fmt.Println(d.Allowed, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// true <nil>
	// false <nil>
}
