package peers

import (
	"context"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

var redisRate = Peer{Name: "redis_rate", Open: func(c Config) (*Limiter, error) {
	client := redis.NewClient(&redis.Options{Addr: c.Redis})
	return openRedisRate(redis_rate.NewLimiter(client), c, func() { _ = client.Close() }), nil
}}

// redisRateAutoPipeline is redis_rate on go-redis's automatic pipelining, as ululeAutoPipeline.
var redisRateAutoPipeline = Peer{Name: "redis_rate on AutoPipeline", Open: func(c Config) (*Limiter, error) {
	client := redis.NewClient(&redis.Options{Addr: c.Redis})
	pipeline, err := client.AutoPipeline()
	if err != nil {
		return nil, err
	}
	return openRedisRate(redis_rate.NewLimiter(pipeline), c, func() { _ = pipeline.Close(); _ = client.Close() }), nil
}}

func openRedisRate(l *redis_rate.Limiter, c Config, closeAll func()) *Limiter {
	limit := redis_rate.Limit{Rate: int(c.Quota), Burst: int(c.Quota), Period: c.Window}
	return &Limiter{
		Take: func(ctx context.Context, key string) (bool, error) {
			r, err := l.Allow(ctx, key, limit)
			return err == nil && r.Allowed > 0, err
		},
		Close: closeAll,
	}
}
