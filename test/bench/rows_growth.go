package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// growthGoroutines are enough for decisions to share a server's work for each connection.
const growthGoroutines = 64

// growthRows measure only weir: how the cost of a decision grows with keys, limits, logs,
// goroutines and shards.
func (l *lab) growthRows() []row {
	var rows []row
	add := func(name string, x int, measure func(ctx context.Context) (sample, error)) {
		rows = append(rows, row{name: fmt.Sprintf("growth/%s/%d", name, x), x: float64(x), cells: []cell{{"weir", peers.Ours, measure}}})
	}
	for n := 10; n <= l.maxKeys; n *= 10 {
		add("keys/redis", n, func(ctx context.Context) (sample, error) { return l.growKeysInRedis(ctx, n) })
		add("keys/memory", n, func(ctx context.Context) (sample, error) { return l.growKeysInMemory(ctx, n) })
	}
	for _, n := range []int{1, 2, 4, 8, 16} {
		open := func(c peers.Config) (*peers.Limiter, error) { return peers.WeirLimits(c, n) }
		add("limits/redis", n, func(ctx context.Context) (sample, error) {
			return l.growInRedis(ctx, open, l.config(""), l.keys, growthGoroutines)
		})
		add("limits/memory", n, func(ctx context.Context) (sample, error) {
			return l.growInMemory(ctx, open, l.config(""), l.keys)
		})
	}
	for _, n := range l.logs {
		config := peers.Config{Quota: int64(n), Keys: 1}
		add("log/redis", n, func(ctx context.Context) (sample, error) { return l.growLogInRedis(ctx, config) })
		add("log/memory", n, func(ctx context.Context) (sample, error) { return l.growLogInMemory(ctx, config) })
	}
	for _, n := range l.crowds {
		add("goroutines/redis", n, func(ctx context.Context) (sample, error) {
			return l.growInRedis(ctx, peers.Weir.Open, l.config(""), l.keys, n)
		})
	}
	for _, n := range l.shards {
		add("shards", n, func(ctx context.Context) (sample, error) { return l.balance(ctx, n) })
		rows[len(rows)-1].once = true
	}
	return rows
}

func (l *lab) config(redis string) peers.Config {
	return peers.Config{Quota: unlimited, Window: window, Redis: redis, Keys: len(l.keys)}
}

// growKeysInRedis has a server for each number of keys: another size of the hash table would
// be another measurement.
func (l *lab) growKeysInRedis(ctx context.Context, n int) (sample, error) {
	server, err := l.redis(fmt.Sprintf("%d keys", n))
	if err != nil {
		return sample{}, err
	}
	config := peers.Config{Quota: unlimited, Window: window, Redis: server.Addr, Keys: n}
	keys := clientKeys(n)
	if err := server.fill(ctx, peers.Weir, pattern{"allowed", unlimited, keys}, config); err != nil {
		return sample{}, err
	}
	limiter, err := peers.Weir.Open(config)
	if err != nil {
		return sample{}, err
	}
	defer limiter.Close()
	return l.loadRedis(ctx, limiter, server, keys, growthGoroutines)
}

func (l *lab) growKeysInMemory(ctx context.Context, n int) (sample, error) {
	return l.growInMemory(ctx, peers.Weir.Open, peers.Config{Quota: unlimited, Window: window, Keys: n}, clientKeys(n))
}

func (l *lab) growInRedis(ctx context.Context, open func(peers.Config) (*peers.Limiter, error), config peers.Config, keys []string, goroutines int) (sample, error) {
	server, err := l.redis("growth")
	if err != nil {
		return sample{}, err
	}
	config.Redis = server.Addr
	limiter, err := open(config)
	if err != nil {
		return sample{}, err
	}
	defer limiter.Close()
	return l.loadRedis(ctx, limiter, server, keys, goroutines)
}

func (l *lab) loadRedis(ctx context.Context, limiter *peers.Limiter, s *server, keys []string, goroutines int) (sample, error) {
	report, err := measure.Load{
		Goroutines: goroutines, Warmup: l.warmup(), Duration: l.sample, Keys: keys, Take: limiter.Take, ServerCPU: s.cpu,
	}.Run(ctx)
	if err != nil {
		return sample{}, err
	}
	return decisions(report, false), nil
}

func (l *lab) growInMemory(ctx context.Context, open func(peers.Config) (*peers.Limiter, error), config peers.Config, keys []string) (sample, error) {
	limiter, err := open(config)
	if err != nil {
		return sample{}, err
	}
	defer limiter.Close()
	p := pattern{name: "uniform", quota: unlimited, keys: keys}
	if err := fill(ctx, limiter, keys); err != nil {
		return sample{}, err
	}
	requests := walk(p, 0)
	background := context.Background()
	cost := measure.Tight(ctx, 1, l.sample, func(_, i int) {
		_, _ = limiter.Take(background, requests[i&(len(requests)-1)])
	})
	return costs(cost), nil
}

// growLogInRedis decides about one key, one decision at a time. The log is full, so each take
// adds a charge and drops one.
func (l *lab) growLogInRedis(ctx context.Context, config peers.Config) (sample, error) {
	server, err := l.redis("growth")
	if err != nil {
		return sample{}, err
	}
	config.Redis = server.Addr
	limiter, err := peers.WeirLog(config)
	if err != nil {
		return sample{}, err
	}
	defer limiter.Close()
	key := fmt.Sprintf("log-%d", time.Now().UnixNano()) // a new log for each pass
	if err := fillLog(ctx, limiter, config.Quota, key); err != nil {
		return sample{}, err
	}
	return l.loadRedis(ctx, limiter, server, []string{key}, 1)
}

func (l *lab) growLogInMemory(ctx context.Context, config peers.Config) (sample, error) {
	limiter, err := peers.WeirLog(config)
	if err != nil {
		return sample{}, err
	}
	defer limiter.Close()
	if err := fillLog(ctx, limiter, config.Quota, "log"); err != nil {
		return sample{}, err
	}
	background := context.Background()
	cost := measure.Tight(ctx, 1, l.sample, func(int, int) { _, _ = limiter.Take(background, "log") })
	return costs(cost), nil
}

// fillLog charges key as many times as its log can hold.
func fillLog(ctx context.Context, limiter *peers.Limiter, charges int64, key string) error {
	same := make([]string, charges)
	for i := range same {
		same[i] = key
	}
	return fill(ctx, limiter, same)
}

// balance measures how n shards divide keys, and how many keys move when a shard is added.
// moved_share is their number divided by the 1/(n+1) of all keys that must move.
func (l *lab) balance(ctx context.Context, n int) (sample, error) {
	before, closeBefore, err := peers.WeirShards(n)
	if err != nil {
		return sample{}, err
	}
	defer closeBefore()
	after, closeAfter, err := peers.WeirShards(n + 1)
	if err != nil {
		return sample{}, err
	}
	defer closeAfter()
	keys := l.shardsKeys
	moved, count := 0, make(map[string]int)
	for i := range keys {
		if i%1024 == 0 && ctx.Err() != nil {
			return sample{}, ctx.Err()
		}
		key := fmt.Sprintf("client-%014d", i)
		shard := before(key)
		count[shard]++
		if after(key) != shard {
			moved++
		}
	}
	fullest := 0
	for _, c := range count {
		fullest = max(fullest, c)
	}
	cost := measure.Tight(ctx, 1, l.sample/4, func(_, i int) { before(l.keys[i%len(l.keys)]) })
	return sample{values: map[string]float64{
		"fullest":     float64(fullest*n) / float64(keys),
		"moved_share": float64(moved*(n+1)) / float64(keys),
		"cpu_ns":      cost.CPUNanos,
	}}, nil
}
