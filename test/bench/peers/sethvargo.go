package peers

import (
	"context"
	"net/http"

	"github.com/gomodule/redigo/redis"
	"github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/sethvargo/go-redisstore"
)

var sethvargoMemory = Peer{Name: "sethvargo/go-limiter", Open: func(c Config) (*Limiter, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(c.Quota), Interval: c.Window})
	if err != nil {
		return nil, err
	}
	return openSethvargo(store)
}}

// sethvargoRedis brings its own pool, because the pool of redisstore.New keeps no idle
// connections, and every decision would dial.
var sethvargoRedis = Peer{Name: "sethvargo/go-redisstore", Open: func(c Config) (*Limiter, error) {
	pool := &redis.Pool{
		MaxActive: 100,
		MaxIdle:   100,
		Wait:      true,
		Dial:      func() (redis.Conn, error) { return redis.Dial("tcp", c.Redis) },
	}
	store, err := redisstore.NewWithPool(&redisstore.Config{Tokens: uint64(c.Quota), Interval: c.Window}, pool)
	if err != nil {
		return nil, err
	}
	return openSethvargo(store)
}}

func openSethvargo(store limiter.Store) (*Limiter, error) {
	m, err := httplimit.NewMiddleware(store, func(r *http.Request) (string, error) { return headerKey(r), nil })
	if err != nil {
		return nil, err
	}
	return &Limiter{
		Take: func(ctx context.Context, key string) (bool, error) {
			_, _, _, ok, err := store.Take(ctx, key)
			return ok, err
		},
		Wrap:  m.Handle,
		Close: func() { _ = store.Close(context.Background()) },
	}, nil
}
