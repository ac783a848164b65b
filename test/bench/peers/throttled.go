package peers

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/throttled/throttled/v2/store/memstore"
)

var throttledMemory = Peer{Name: "throttled", Open: func(c Config) (*Limiter, error) {
	store, err := memstore.NewCtx(0) // 0: unbounded, and without an LRU list
	if err != nil {
		return nil, err
	}
	return openThrottled(store, c, func() {})
}}

var throttledRedis = Peer{Name: "throttled", Open: func(c Config) (*Limiter, error) {
	client := redis.NewClient(&redis.Options{Addr: c.Redis})
	store, err := goredisstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, err
	}
	return openThrottled(store, c, func() { _ = client.Close() })
}}

func openThrottled(store throttled.GCRAStoreCtx, c Config, closeAll func()) (*Limiter, error) {
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(int(c.Quota), c.Window),
		MaxBurst: int(c.Quota) - 1,
	})
	if err != nil {
		return nil, err
	}
	http := throttled.HTTPRateLimiterCtx{RateLimiter: l, VaryBy: &throttled.VaryBy{Headers: []string{KeyHeader}}}
	return &Limiter{
		Take: func(ctx context.Context, key string) (bool, error) {
			limited, _, err := l.RateLimitCtx(ctx, key, 1)
			return !limited, err
		},
		Wrap:  http.RateLimit,
		Close: closeAll,
	}, nil
}
