package redisbackend_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testserver"
	"github.com/weir-go/weir/throttler"
)

// A shard may be the name of a master that Sentinel watches: decisions go to
// its primary, peeks to its replicas.
func TestSentinelShard(t *testing.T) {
	primary := testserver.Redis(t)
	replica := testserver.RedisReplica(t, primary)
	sentinel := startSentinel(t, primary.Addr)
	options := func(replicaOnly bool) *redis.FailoverOptions {
		return &redis.FailoverOptions{
			MasterName: "shard-a", SentinelAddrs: []string{sentinel},
			ContextTimeoutEnabled: true, MaxRetries: -1, ReplicaOnly: replicaOnly,
		}
	}
	writes, reads := redis.NewFailoverClient(options(false)), redis.NewFailoverClient(options(true))
	t.Cleanup(func() { _, _ = writes.Close(), reads.Close() })

	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: writes, Replicas: []redis.UniversalClient{reads}}}, nil)
	th := throttler.New(b, nil)
	p := policy("core", perHour(5))
	if d, err := th.Take(t.Context(), p.Charge("alice")); err != nil || !d.Allowed {
		t.Fatalf("take: allowed %v, error %v", d.Allowed, err)
	}
	direct := newClient(t, replica.Addr)
	for direct.Exists(t.Context(), b.Locate(p.Charge("alice")).Key).Val() == 0 {
		if t.Context().Err() != nil {
			t.Fatal("the replica never got the key")
		}
	}
	b.Check()
	if d, err := th.Peek(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != 1 {
		t.Errorf("peek: %+v, error %v", d, err)
	}
	if stats := commandStats(t, direct); stats["get"].calls == 0 {
		t.Error("the replica served no peek")
	}
	if stats := commandStats(t, newClient(t, primary.Addr)); stats["evalsha"].calls+stats["eval"].calls == 0 {
		t.Error("the primary ran no script")
	}
}

// startSentinel starts a Sentinel that watches the primary at addr as
// "shard-a", and returns its address once it knows a replica.
func startSentinel(t *testing.T, addr string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own := listener.Addr().(*net.TCPAddr)
	_ = listener.Close()
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\nsentinel monitor shard-a %s %s 1\n", own.Port, host, port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("redis-server", config, "--sentinel")
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; install it by: apt-get install redis-server", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	c := redis.NewSentinelClient(&redis.Options{Addr: own.String()})
	t.Cleanup(func() { _ = c.Close() })
	for {
		if replicas, err := c.Replicas(t.Context(), "shard-a").Result(); err == nil && len(replicas) > 0 {
			return own.String()
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the sentinel does not find the replica")
		case <-time.After(50 * time.Millisecond): // it asks the primary every ten seconds at most
		}
	}
}
