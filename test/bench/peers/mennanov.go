package peers

import (
	"context"
	"errors"
	"time"

	"github.com/mennanov/limiters"
	"github.com/redis/go-redis/v9"
)

var mennanovMemory = Peer{Name: "mennanov/limiters", Open: func(c Config) (*Limiter, error) {
	return openMennanov(c, func(string) limiters.FixedWindowIncrementer { return limiters.NewFixedWindowInMemory() }, func() {}), nil
}}

var mennanovRedis = Peer{Name: "mennanov/limiters", Open: func(c Config) (*Limiter, error) {
	client := redis.NewClient(&redis.Options{Addr: c.Redis})
	store := func(key string) limiters.FixedWindowIncrementer {
		return limiters.NewFixedWindowRedis(client, "mennanov:"+key)
	}
	return openMennanov(c, store, func() { _ = client.Close() }), nil
}}

// openMennanov keeps a limiter for each key in a registry, like the package's example for many
// clients.
func openMennanov(c Config, store func(key string) limiters.FixedWindowIncrementer, closeAll func()) *Limiter {
	registry, clock := limiters.NewRegistry(), limiters.NewSystemClock()
	return &Limiter{
		Take: func(ctx context.Context, key string) (bool, error) {
			l := registry.GetOrCreate(key, func() any {
				return limiters.NewFixedWindow(c.Quota, c.Window, store(key), clock)
			}, c.Window, time.Now()).(*limiters.FixedWindow)
			_, err := l.Limit(ctx)
			if errors.Is(err, limiters.ErrLimitExhausted) {
				return false, nil
			}
			return err == nil, err
		},
		Close: closeAll,
	}
}
