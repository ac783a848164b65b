package redisbackend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// startCluster starts a Redis Cluster of n nodes that do not give up a node that hangs.
func startCluster(t *testing.T, n int) []*testserver.RedisServer {
	t.Helper()
	return testserver.Cluster(t, n, 0, "--cluster-node-timeout", "600000").Nodes
}

// newClusterClient returns a client as a user may make it, with go-redis's defaults.
func newClusterClient(t *testing.T, servers []*testserver.RedisServer, options redis.ClusterOptions) *redis.ClusterClient {
	for _, s := range servers {
		options.Addrs = append(options.Addrs, s.Addr)
	}
	c := redis.NewClusterClient(&options)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A cluster refuses a script whose keys lie in different slots.
func TestChainOnRedisCluster(t *testing.T) {
	t.Parallel() // it waits most of the time
	server := startCluster(t, 1)[0]
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr}})
	t.Cleanup(func() { _ = c.Close() })
	th := throttler.New(newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, nil), nil)
	org, team, user := policy("org", perHour(100)), policy("team", perHour(10)), policy("user", perHour(2))
	for i, want := range []bool{true, true, false} {
		d, err := th.Take(t.Context(), org.Charge("acme"), team.Charge("}{blue"), user.Charge("alice"))
		if err != nil || d.Allowed != want {
			t.Errorf("take %d: allowed %v, error %v; want %v", i, d.Allowed, err, want)
		}
	}
	d, err := th.Peek(t.Context(), org.Charge("acme"), team.Charge("}{blue"), user.Charge("alice"))
	if err != nil || d.Limit(0).Used != 2 || d.Limit(2).Used != 2 {
		t.Errorf("peek: %v, error %v", d, err)
	}
}

// Decisions of all slots share round trips to the nodes that serve them, even if the client
// believes that one node serves all slots.
func TestSharedRoundTripsOnRedisCluster(t *testing.T) {
	t.Parallel() // it waits most of the time
	servers := startCluster(t, 3)
	p := policy("core", perHour(1<<30))
	for name, slots := range map[string]func(context.Context) ([]redis.ClusterSlot, error){
		"known": nil,
		"moved": func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: servers[0].Addr}}}}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClusterClient(t, servers, redis.ClusterOptions{ClusterSlots: slots})
			b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, &redisbackend.Options{Prefix: name})
			th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
			y := newTally()
			y.load(t, th, p, 64, 20, within(time.Minute))
			y.check(t, th, p)
			if answered, unknown := y.sum(); answered != 64*20 || unknown > 0 {
				t.Errorf("%d takes were answered, %d are unknown, want all %d", answered, unknown, 64*20)
			}
		})
	}
}

// Like TestLostRepliesOfBatches: a cluster's client has a separate retry loop.
func TestLostRepliesOnRedisCluster(t *testing.T) {
	t.Parallel() // it waits most of the time
	servers := startCluster(t, 3)
	relays := make(map[string]string)
	var answers atomic.Int64
	var lossy atomic.Bool
	for _, s := range servers {
		relays[s.Addr] = testserver.Relay(t, s.Addr, func([]byte) bool { return lossy.Load() && answers.Add(1)%10 == 0 })
	}
	c := newClusterClient(t, servers, redis.ClusterOptions{
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, relays[addr])
		},
	})
	direct := newClusterClient(t, servers, redis.ClusterOptions{})
	shards := func(c redis.UniversalClient) []redisbackend.Shard {
		return []redisbackend.Shard{{Name: "a", Primary: c}}
	}
	th := throttler.New(newBackend(t, shards(c), nil), &throttler.Options{Clock: clock.NewManual(t0)})
	p := policy("core", perHour(1<<30))
	if _, err := th.Take(t.Context(), p.Charge("first")); err != nil {
		t.Fatal(err)
	}
	lossy.Store(true)
	y := newTally()
	y.load(t, th, p, 64, 20, unbounded)
	y.check(t, throttler.New(newBackend(t, shards(direct), nil), &throttler.Options{Clock: clock.NewManual(t0)}), p)
	if answered, unknown := y.sum(); unknown == 0 || answered == 0 {
		t.Errorf("%d takes were answered, %d are unknown; want some of each", answered, unknown)
	}
}

// A node that hangs fails its own decisions, and does not delay others.
func TestHungNodeOfRedisCluster(t *testing.T) {
	servers := startCluster(t, 3)
	c := newClusterClient(t, servers, redis.ClusterOptions{ContextTimeoutEnabled: true, MaxRetries: -1, ReadTimeout: time.Minute})
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, nil)
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	p := policy("core", perHour(1<<30))
	var hang, live []string
	for i := range 60 {
		key := fmt.Sprint("key", i)
		node, err := c.MasterForKey(t.Context(), b.Locate(p.Charge(key)).Key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := th.Take(t.Context(), p.Charge(key)); err != nil {
			t.Fatal(err)
		}
		if node.Options().Addr == servers[2].Addr {
			hang = append(hang, key)
		} else {
			live = append(live, key)
		}
	}
	servers[2].Pause()
	defer servers[2].Resume()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, len(hang))
	for _, key := range hang {
		go func() {
			_, err := th.Take(ctx, p.Charge(key))
			failed <- err
		}()
	}
	for _, key := range live {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if _, err := th.Take(ctx, p.Charge(key)); err != nil {
			t.Errorf("key %s, on a node that answers: %v", key, err)
		}
		cancel()
	}
	if len(failed) > 0 {
		t.Errorf("a decision of the node that hangs returned while it was to wait: %v", <-failed)
	}
	cancel()
	for range hang {
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("on the node that hangs: %v", err)
		}
	}
}

// A silentCommand is a connection that drops requests for COMMAND.
type silentCommand struct{ net.Conn }

func (c silentCommand) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("\r\ncommand\r\n")) {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// By itself, a cluster's client first asks a node for COMMAND, and waits 5 s for the reply,
// whatever the deadline.
func TestRedisClusterThatHangsAtCommand(t *testing.T) {
	servers := startCluster(t, 1)
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return silentCommand{c}, err
	}
	const far = time.Minute
	take := func(c redis.UniversalClient, deadline time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		th := throttler.New(newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, nil), nil)
		start := time.Now()
		_, err := th.Take(ctx, policy("core", perHour(10)).Charge("alice"))
		if took := time.Since(start); took > 4500*time.Millisecond { // it would wait 5 s
			t.Errorf("a decision with a deadline of %v took %v", deadline, took)
		}
		return err
	}
	_ = take(newClusterClient(t, servers, redis.ClusterOptions{ContextTimeoutEnabled: true, Dialer: dial, ReadTimeout: 6 * time.Second}), 100*time.Millisecond)
	c := connect(t, &redis.UniversalOptions{Addrs: []string{servers[0].Addr}, IsClusterMode: true, Dialer: dial, ReadTimeout: far})
	if err := c.(*redis.ClusterClient).ForEachMaster(t.Context(), func(context.Context, *redis.Client) error { return nil }); err != nil {
		t.Fatal(err) // it knows the nodes
	}
	if err := take(c, 4*time.Second); err != nil {
		t.Errorf("with a client of NewClient: %v", err)
	}
}
