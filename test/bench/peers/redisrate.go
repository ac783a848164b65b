package peers

import (
	"context"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

var redisRate = Peer{Name: "redis_rate", Open: func(c Config) (*Limiter, error) {
	client := redis.NewClient(&redis.Options{Addr: c.Redis})
	l := redis_rate.NewLimiter(client)
	limit := redis_rate.Limit{Rate: int(c.Quota), Burst: int(c.Quota), Period: c.Window}
	return &Limiter{
		Take: func(ctx context.Context, key string) (bool, error) {
			r, err := l.Allow(ctx, key, limit)
			return err == nil && r.Allowed > 0, err
		},
		Close: func() { _ = client.Close() },
	}, nil
}}
