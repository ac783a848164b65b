package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// growthGoroutines are enough for decisions to share a server's work for each connection.
const growthGoroutines = 64

// growthRows measure only weir: how the cost of a decision grows with keys, limits, logs,
// goroutines and shards.
func (l *lab) growthRows() (rows []row) {
	add := func(name string, x int, measure func(ctx context.Context) sample) {
		rows = append(rows, row{name: fmt.Sprintf("growth/%s/%d", name, x), x: float64(x), cells: []cell{{"weir", peers.Ours, measure}}})
	}
	for n := 10; n <= l.maxKeys; n *= 10 {
		config := peers.Config{Quota: unlimited, Window: window, Keys: n}
		add("keys/redis", n, func(ctx context.Context) sample {
			// Another size of the hash table would be another measurement.
			server := l.redis(fmt.Sprintf("%d keys", n))
			config.Redis = server.Addr
			p := pattern{"allowed", unlimited, clientKeys(n)}
			server.fill(ctx, peers.Weir, p, config)
			return useLimiter(peers.Weir.Open, config, func(limiter *peers.Limiter) sample {
				return l.load(ctx, limiter, server, p, growthGoroutines, false)
			})
		})
		add("keys/memory", n, func(ctx context.Context) sample { return l.growInMemory(ctx, peers.Weir.Open, clientKeys(n)) })
	}
	for _, n := range []int{1, 2, 4, 8, 16} {
		open := func(c peers.Config) (*peers.Limiter, error) { return peers.WeirLimits(c, n) }
		add("limits/redis", n, func(ctx context.Context) sample { return l.growInRedis(ctx, open, growthGoroutines) })
		add("limits/memory", n, func(ctx context.Context) sample { return l.growInMemory(ctx, open, l.keys) })
	}
	for _, n := range l.logs {
		add("log/redis", n, func(ctx context.Context) sample {
			server := l.redis("growth")
			return l.growLog(ctx, n, server.Addr, func(limiter *peers.Limiter, key string) sample {
				return l.load(ctx, limiter, server, pattern{"log", unchecked, []string{key}}, 1, false)
			})
		})
		add("log/memory", n, func(ctx context.Context) sample {
			return l.growLog(ctx, n, "", func(limiter *peers.Limiter, key string) sample {
				background := context.Background()
				return costs(measure.Tight(ctx, 1, l.sample, func(int, int) { _, _ = limiter.Take(background, key) }))
			})
		})
	}
	for _, n := range l.crowds {
		add("goroutines/redis", n, func(ctx context.Context) sample { return l.growInRedis(ctx, peers.Weir.Open, n) })
	}
	for _, n := range l.shards {
		add("shards", n, func(ctx context.Context) sample { return l.balance(ctx, n) })
		rows[len(rows)-1].fixed = true
	}
	return rows
}

func (l *lab) growInRedis(ctx context.Context, open func(peers.Config) (*peers.Limiter, error), goroutines int) sample {
	server := l.redis("growth")
	allowed, _, _ := l.patterns()
	return useLimiter(open, peers.Config{Quota: unlimited, Window: window, Redis: server.Addr, Keys: len(l.keys)}, func(limiter *peers.Limiter) sample {
		return l.load(ctx, limiter, server, allowed, goroutines, false)
	})
}

func (l *lab) growInMemory(ctx context.Context, open func(peers.Config) (*peers.Limiter, error), keys []string) sample {
	p := pattern{"uniform", unlimited, keys}
	return l.decideInMemory(ctx, open, peers.Config{Quota: unlimited, Window: window, Keys: len(keys)}, p, [][]string{walk(p, 0)})
}

// growLog measures decisions about one key, one at a time. The log is full, so each take adds
// a charge and drops one.
func (l *lab) growLog(ctx context.Context, charges int, redis string, measure func(*peers.Limiter, string) sample) sample {
	return useLimiter(peers.WeirLog, peers.Config{Quota: int64(charges), Redis: redis, Keys: 1}, func(limiter *peers.Limiter) sample {
		key := fmt.Sprintf("log-%d", time.Now().UnixNano()) // a new log for each pass
		fill(ctx, limiter, slices.Repeat([]string{key}, charges))
		return measure(limiter, key)
	})
}

// balance measures how n shards divide keys, and how many keys move when a shard is added.
// moved_share is their number divided by the 1/(n+1) of all keys that must move.
func (l *lab) balance(ctx context.Context, n int) sample {
	before, closeBefore, err := peers.WeirShards(n)
	check(err)
	defer closeBefore()
	after, closeAfter, err := peers.WeirShards(n + 1)
	check(err)
	defer closeAfter()
	moved, fullest, count := 0, 0, make(map[string]int)
	for i := range l.shardsKeys {
		check(ctx.Err())
		key := fmt.Sprintf("client-%014d", i)
		shard := before(key)
		count[shard]++
		fullest = max(fullest, count[shard])
		if after(key) != shard {
			moved++
		}
	}
	cost := measure.Tight(ctx, 1, l.sample/4, func(_, i int) { before(l.keys[i%len(l.keys)]) })
	return sample{values: map[string]float64{
		"fullest":     float64(fullest*n) / float64(l.shardsKeys),
		"moved_share": float64(moved*(n+1)) / float64(l.shardsKeys),
		"cpu_ns":      cost.CPUNanos,
	}}
}
