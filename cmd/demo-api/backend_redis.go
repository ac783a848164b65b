package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/handoff"
)

func (b *backends) openRedis(ctx context.Context, configs []shardConfig, prefix string) (handoff.Store, error) {
	var shards []redisbackend.Shard
	var servers []redisServer
	var failed error
	connect := func(shard, role string, o redis.UniversalOptions) redis.UniversalClient {
		client, err := b.newRedisClient(o)
		if err != nil {
			failed = errors.Join(failed, err)
			return nil
		}
		servers = append(servers, redisServer{shard, role, strings.Join(o.Addrs, ","), client})
		b.closers = append(b.closers, func() { _ = client.Close() }) // it has nothing left to send
		return client
	}
	for _, s := range configs {
		s.primary.CredentialsProvider = s.credentials()
		shard := redisbackend.Shard{Name: s.name, Primary: connect(s.name, s.kind(), s.primary)}
		for _, addr := range s.replicas {
			o := s.primary
			o.Addrs, o.MasterName = []string{addr}, ""
			shard.Replicas = append(shard.Replicas, connect(s.name, "replica", o))
		}
		shards = append(shards, shard)
	}
	if failed != nil {
		return nil, failed
	}
	backend, err := redisbackend.New(shards, &redisbackend.Options{
		Prefix: prefix, Seed: b.config.backends.seed, Deadline: b.config.patience(),
		Observer: b.observed.observer, Log: b.log,
	})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, backend.Close) // before its clients
	b.redis = append(b.redis, backend)
	if b.offline {
		return backend, nil
	}
	silent := warnAboutSilent(ctx, b.log, servers)
	if err := backend.Load(ctx); err != nil && !silent {
		b.log.Warn("a script was not loaded; it will be sent with the first decision", "error", err)
	}
	return backend, nil
}

func (b *backends) newRedisClient(o redis.UniversalOptions) (redis.UniversalClient, error) {
	options := b.config.patient(o)
	if b.offline {
		options.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, errOffline }
	}
	return redisbackend.NewClient(options)
}

var errOffline = errors.New("a check dials nothing")

// patience is a timeout that ends no decision before the configured deadline does.
func (c *config) patience() time.Duration { return max(time.Second, c.deadline) }

func (c *config) patient(o redis.UniversalOptions) *redis.UniversalOptions {
	t := c.patience()
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = t, t, t, t
	return &o
}

// redisServer is one server of a shard, or what finds it: Sentinels, or the nodes of a
// Cluster.
type redisServer struct {
	shard, role, addr string
	client            redis.UniversalClient
}

// ping asks the server, or all primaries of a Cluster.
func (s redisServer) ping(ctx context.Context) error {
	if c, ok := s.client.(*redis.ClusterClient); ok {
		return c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return node.Ping(ctx).Err() })
	}
	return s.client.Ping(ctx).Err()
}

// warnAboutSilent asks all servers at once, and reports whether one of them
// did not answer.
func warnAboutSilent(ctx context.Context, log *slog.Logger, servers []redisServer) bool {
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = s.ping(ctx) })
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
