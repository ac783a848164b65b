package redisbackend_test

import (
	"testing"

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
	sentinels := testserver.Sentinel(t, "shard-a", primary, 1, testserver.Never)
	b := newBackend(t, []redisbackend.Shard{{
		Name:     "a",
		Primary:  connect(t, sentinelOptions(sentinels)),
		Replicas: []redis.UniversalClient{newClient(t, replica.Addr)},
	}}, nil)
	th := throttler.New(b, nil)
	p := policy("core", perHour(5))
	if d, err := th.Take(t.Context(), p.Charge("alice")); err != nil || !d.Allowed {
		t.Fatalf("take: allowed %v, error %v", d.Allowed, err)
	}
	direct := newClient(t, replica.Addr)
	eventually(t, "the replica to get the key", func() bool {
		return direct.Exists(t.Context(), b.Locate(p.Charge("alice")).Key).Val() == 1
	})
	if d, err := th.Peek(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != 1 {
		t.Errorf("peek: %+v, error %v", d, err)
	}
	if stats := commandStats(t, newClient(t, primary.Addr)); stats["evalsha"].calls+stats["eval"].calls == 0 {
		t.Error("the primary ran no script")
	}
	if stats := commandStats(t, newClient(t, replica.Addr)); stats["get"].calls == 0 {
		t.Error("the replica answered no peek")
	}
}

func sentinelOptions(s *testserver.Sentinels) *redis.UniversalOptions {
	o := patient(s.Addrs...)
	o.MasterName = s.Name
	return o
}
