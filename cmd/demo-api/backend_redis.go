package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	redisbackend "github.com/weir-go/weir/backend/redis"
)

func (b *backends) openRedis(ctx context.Context, configs []shardConfig, prefix string) (handoff.Store, error) {
	var shards []redisbackend.Shard
	var servers []redisServer
	connect := func(shard, role, addr string) *redis.Client {
		s := redisServer{shard, role, addr, redis.NewClient(b.config.clientOptions(addr))}
		servers = append(servers, s)
		b.closers = append(b.closers, func() { _ = s.client.Close() }) // it has nothing left to send
		return s.client
	}
	for _, s := range configs {
		shard := redisbackend.Shard{Name: s.name, Primary: connect(s.name, "primary", s.primary)}
		for _, addr := range s.replicas {
			shard.Replicas = append(shard.Replicas, connect(s.name, "replica", addr))
		}
		shards = append(shards, shard)
	}
	backend, err := redisbackend.New(shards, &redisbackend.Options{Prefix: prefix, Log: b.log})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, backend.Close) // before its clients
	b.redis = append(b.redis, backend)
	silent := warnAboutSilent(ctx, b.log, servers)
	if err := backend.Load(ctx); err != nil && !silent {
		b.log.Warn("a script was not loaded; it will be sent with the first decision", "error", err)
	}
	return backend, nil
}

// clientOptions lets no timeout of the client end a decision before the
// configured deadline does.
func (c *config) clientOptions(addr string) *redis.Options {
	o := redisbackend.ClientOptions(addr)
	o.DialTimeout = max(o.DialTimeout, c.deadline)
	o.ReadTimeout = max(o.ReadTimeout, c.deadline)
	o.WriteTimeout = max(o.WriteTimeout, c.deadline)
	o.PoolTimeout = max(o.PoolTimeout, c.deadline)
	return o
}

// redisServer is one server of a shard.
type redisServer struct {
	shard, role, addr string
	client            *redis.Client
}

// warnAboutSilent asks all servers at once, and reports whether one of them
// did not answer.
func warnAboutSilent(ctx context.Context, log *slog.Logger, servers []redisServer) bool {
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = s.client.Ping(ctx).Err() })
	}
	wg.Wait()
	silent := false
	for i, s := range servers {
		if errs[i] != nil {
			silent = true
			log.Warn("a Redis server does not answer", "shard", s.shard, "role", s.role, "addr", s.addr, "error", errs[i])
		}
	}
	return silent
}

func init() {
	// go-redis writes to stderr in a format of its own what the errors of the
	// decisions say too.
	redis.SetLogger(noLog{})
}

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}
