package guard_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/guard"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
)

// Three processes count in Redis. Each spends leases of core, repeats refusals from
// memory, and while Redis does not answer, allows a third of each quota.
func Example() {
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{"127.0.0.1:6379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	store, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5000, Window: time.Hour}}}
	s, err := guard.New(store, &guard.Options{
		Levels: &guard.Levels{
			Policies: map[*throttler.Policy]consistency.Level{core: consistency.Leased},
			Leased:   &leased.Options{},
		},
		Fallback: &fallback.Options{OnFailure: fallback.Local, Processes: 3},
		Refusals: &refusals.Options{},
		Clock:    store.Clock(),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(context.Background())

	t := throttler.New(s.Backend, &throttler.Options{Clock: store.Clock()})
	d, err := t.Take(context.Background(), core.Charge("alice"))
	fmt.Println(d, err)
}
