package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/local/shares"
	"github.com/weir-go/weir/throttler/driver"
)

var errOffline = errors.New("a check dials nothing")

func (s *Stack) openRedis(name string, shards []shard, prefix string) (handoff.Store, error) {
	var opened []redisbackend.Shard
	var failed error
	connect := func(shard, role string, o redis.UniversalOptions) redis.UniversalClient {
		client, err := s.newClient(o)
		if err != nil {
			failed = errors.Join(failed, err)
			return nil
		}
		s.greeted = append(s.greeted, greeting{[]any{"shard", shard, "role", role, "addr", strings.Join(o.Addrs, ",")}, func(ctx context.Context) error { return ping(ctx, client) }})
		return client
	}
	for _, c := range shards {
		o := c.options
		o.CredentialsProvider = c.credentials()
		shard := redisbackend.Shard{Name: c.Name, Primary: connect(c.Name, c.role(), o)}
		for _, addr := range c.Replicas {
			o.Addrs, o.MasterName = []string{string(addr)}, ""
			shard.Replicas = append(shard.Replicas, connect(c.Name, "replica", o))
		}
		opened = append(opened, shard)
	}
	if failed != nil {
		return nil, failed
	}
	backend, err := redisbackend.New(opened, &redisbackend.Options{
		Prefix: s.Config.prefixed(cmp.Or(prefix, "weir:")), Seed: uint64(s.Config.keys.Seed), Deadline: s.Config.clientTimeout(),
		Observer: s.Config.options.Observer,
	})
	if err != nil {
		return nil, err
	}
	s.onClose(backend.Close) // before its clients
	if prefix != "" {
		name = "shadow"
	}
	s.Redis[name] = backend
	return backend, nil
}

// prefixed returns the prefix of some stored keys in the namespace of the file.
func (c *Config) prefixed(name string) string { return string(c.keys.Prefix) + name }

// clientTimeout is at least the deadline, so that the deadline ends a decision first.
func (c *Config) clientTimeout() time.Duration { return max(time.Second, c.Deadline) }

func (s *Stack) newClient(o redis.UniversalOptions) (redis.UniversalClient, error) {
	t := s.Config.clientTimeout()
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = t, t, t, t
	if s.offline {
		o.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, errOffline }
	}
	client, err := redisbackend.NewClient(&o)
	if err == nil {
		s.onClose(func() { _ = client.Close() }) // it has nothing left to send
	}
	return client, err
}

// connect returns a client of a server.
func (s *Stack) connect(to *server) (redis.UniversalClient, error) {
	o := to.options
	o.CredentialsProvider = to.credentials()
	return s.newClient(o)
}

// ping asks a server, or all primaries of a Cluster.
func ping(ctx context.Context, client redis.UniversalClient) error {
	if c, ok := client.(*redis.ClusterClient); ok {
		return c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return node.Ping(ctx).Err() })
	}
	return client.Ping(ctx).Err()
}

func (s *Stack) openMemcached(prefix string) (handoff.Store, error) {
	c := s.Config
	var servers []memcachedbackend.Server
	for _, m := range c.keys.Memcached.Servers {
		client := memcachedbackend.NewClient(string(m.Address))
		s.onClose(func() { _ = client.Close() })
		s.greeted = append(s.greeted, greeting{[]any{"server", m.Name, "addr", m.Address}, client.Ping})
		servers = append(servers, memcachedbackend.Server{Name: m.Name, Client: client})
	}
	backend, err := memcachedbackend.New(servers, &memcachedbackend.Options{
		Prefix: c.prefixed(cmp.Or(prefix, "weir:")), Seed: uint64(c.keys.Seed),
		Deadline: max(memcachedbackend.DefaultDeadline, c.Deadline), Observer: c.options.Observer,
	})
	if err != nil {
		return nil, err
	}
	s.onClose(backend.Close)
	return backend, nil
}

func (s *Stack) openShares() (driver.Backend, error) {
	c, k := s.Config, s.Config.keys.Shares
	transport, err := shares.NewHTTP(string(k.Self), k.key, &shares.HTTPOptions{Observer: c.options.Observer})
	if err != nil {
		return nil, err
	}
	var sender shares.Transport = transport
	var listener net.Listener
	if s.offline {
		sender = silent{}
	} else if listener, err = net.Listen("tcp", string(k.Listen)); err != nil {
		return nil, fmt.Errorf("shares cannot listen; set shares.listen if self is where others reach it but not an address of this machine: %w", err)
	}
	policies := slices.AppendSeq(slices.Collect(maps.Values(c.Policies)), maps.Values(c.DryRuns))
	b, err := shares.New(string(k.Self), k.list(), sender, policies, &shares.Options{
		Refresh: time.Duration(k.Refresh), Observer: c.options.Observer,
		ListChanged: func(list shares.List) {
			c.options.Log.Info("the members that divide the quotas have changed", "epoch", list.Epoch, "members", strings.Join(list.Members, ", "))
		},
	})
	if err != nil {
		if listener != nil {
			_ = listener.Close()
		}
		return nil, err
	}
	if listener != nil {
		transport.Serve(listener, b.Receive)
	}
	s.onClose(transport.Close)
	s.onClose(b.Close)
	s.Shares = b
	return b, nil
}

// silent is the transport of a check.
type silent struct{}

func (silent) Send(context.Context, string, []byte) ([]byte, error) { return nil, errOffline }

// credentials returns a function that reads the password file for each new connection, so
// that the password may change while the program runs. If the file can't be read, the
// function returns the last password. Without a file, credentials returns nil.
func (s *server) credentials() func() (user, password string) {
	if s.PasswordFile.name == "" {
		return nil
	}
	var last atomic.Value
	last.Store(s.options.Password)
	return func() (user, password string) {
		content, err := os.ReadFile(s.PasswordFile.name)
		if password := strings.TrimRight(string(content), "\r\n"); err == nil && password != "" {
			last.Store(password)
		}
		return s.options.Username, last.Load().(string)
	}
}
