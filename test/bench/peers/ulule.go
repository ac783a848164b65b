package peers

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	limiterredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

var ululeMemory = Peer{Name: "ulule/limiter", Open: func(c Config) (*Limiter, error) {
	return openUlule(memory.NewStore(), c, func() {}), nil
}}

var ulule = Peer{Name: "ulule/limiter", Open: func(c Config) (*Limiter, error) {
	client := redis.NewClient(&redis.Options{Addr: c.Redis})
	store, err := limiterredis.NewStoreWithOptions(client, limiter.StoreOptions{Prefix: "ulule"})
	return openUlule(store, c, func() { _ = client.Close() }), err
}}

// ululeAutoPipeline is ulule on go-redis's automatic pipelining, which is marked experimental.
var ululeAutoPipeline = Peer{Name: "ulule/limiter on AutoPipeline", Open: func(c Config) (*Limiter, error) {
	client := redis.NewClient(&redis.Options{Addr: c.Redis})
	pipeline, err := client.AutoPipeline()
	if err != nil {
		return nil, err
	}
	store, err := limiterredis.NewStoreWithOptions(pipeline, limiter.StoreOptions{Prefix: "ulule-auto"})
	return openUlule(store, c, func() { _ = pipeline.Close(); _ = client.Close() }), err
}}

func openUlule(store limiter.Store, c Config, closeAll func()) *Limiter {
	l := limiter.New(store, limiter.Rate{Period: c.Window, Limit: c.Quota})
	return &Limiter{
		Take: func(ctx context.Context, key string) (bool, error) {
			r, err := l.Get(ctx, key)
			return !r.Reached, err
		},
		Wrap:  stdlib.NewMiddleware(l, stdlib.WithKeyGetter(headerKey)).Handler,
		Close: closeAll,
	}
}
