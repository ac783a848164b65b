package rollout_test

import (
	"testing"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	redisbackend "github.com/weir-go/weir/backend/redis"
)

func redisClient(t testing.TB, addr string) *redis.Client {
	c := redis.NewClient(redisbackend.ClientOptions(addr))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func memcachedClient(t testing.TB, addr string) *memcache.Client {
	c := memcachedbackend.NewClient(addr)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
