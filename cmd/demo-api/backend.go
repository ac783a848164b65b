package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/throttler"
)

// startTimeout bounds how long servers that do not answer delay the start.
const startTimeout = time.Second

// open returns the configured backend, and what closes its connections. A
// Redis server that does not answer is worth a warning, no more: on_failure
// says what becomes of its callers, and it may come back.
func (c *config) open(ctx context.Context, log *slog.Logger) (throttler.Backend, func(), error) {
	if len(c.shards) == 0 {
		return memorybackend.New(nil), func() {}, nil
	}
	var shards []redisbackend.Shard
	var servers []server
	closeAll := func() {
		for _, s := range servers {
			_ = s.client.Close() // it has nothing left to send
		}
	}
	connect := func(shard, role, addr string) *redis.Client {
		s := server{shard, role, addr, redis.NewClient(c.clientOptions(addr))}
		servers = append(servers, s)
		return s.client
	}
	for _, s := range c.shards {
		shard := redisbackend.Shard{Name: s.name, Primary: connect(s.name, "primary", s.primary)}
		for _, addr := range s.replicas {
			shard.Replicas = append(shard.Replicas, connect(s.name, "replica", addr))
		}
		shards = append(shards, shard)
	}
	backend, err := redisbackend.New(shards, nil)
	if err != nil {
		closeAll()
		return nil, nil, err
	}

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	silent := warnAboutSilent(ctx, log, servers)
	if err := backend.Load(ctx); err != nil && !silent {
		log.Warn("a script was not loaded; it will be sent with the first decision", "error", err)
	}
	return backend, closeAll, nil
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

// server is one Redis server of a shard.
type server struct {
	shard, role, addr string
	client            *redis.Client
}

// warnAboutSilent asks all servers at once, and reports whether one of them
// did not answer.
func warnAboutSilent(ctx context.Context, log *slog.Logger, servers []server) bool {
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
