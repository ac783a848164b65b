package peers

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

// WeirLimits opens weir with a policy of n fixed windows, in memory if c names no server.
func WeirLimits(c Config, n int) (*Limiter, error) {
	policy := &throttler.Policy{Name: "limits" + strconv.Itoa(n)}
	for i := range n {
		policy.Limits = append(policy.Limits, throttler.Limit{Quota: c.Quota, Window: c.Window * time.Duration(i+1)})
	}
	backend, closeAll, err := weirBackend(c)
	if err != nil {
		return nil, err
	}
	return weirLimiter(throttler.New(backend, nil), closeAll, policy), nil
}

// WeirLog opens weir with a sliding log of c.Quota charges. Each take is 1 ms of weir's time
// after the last, so a full log drops one charge for each that it adds.
func WeirLog(c Config) (*Limiter, error) {
	policy := &throttler.Policy{Name: "log" + strconv.FormatInt(c.Quota, 10), Limits: []throttler.Limit{
		{Quota: c.Quota, Window: time.Duration(c.Quota) * time.Millisecond, Algorithm: throttler.SlidingLog},
	}}
	backend, closeAll, err := weirBackend(c)
	if err != nil {
		return nil, err
	}
	now := clock.NewManual(time.Now())
	l := weirLimiter(throttler.New(backend, &throttler.Options{Clock: now}), closeAll, policy)
	take := l.Take
	l.Take = func(ctx context.Context, key string) (bool, error) {
		now.Advance(time.Millisecond)
		return take(ctx, key)
	}
	return l, nil
}

// WeirShards returns the function that assigns keys to n shards, with names like an
// operator's. It needs no server.
func WeirShards(n int) (shardOf func(key string) string, closeAll func(), err error) {
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{"127.0.0.1:0"}})
	if err != nil {
		return nil, nil, err
	}
	shards := make([]redisbackend.Shard, n)
	for i := range shards {
		shards[i] = redisbackend.Shard{Name: "shard-" + strconv.Itoa(i+1), Primary: client}
	}
	backend, err := redisbackend.New(shards, nil)
	if err != nil {
		return nil, nil, err
	}
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	return func(key string) string { return backend.Locate(policy.Charge(key)).Shard }, func() { _ = client.Close() }, nil
}
