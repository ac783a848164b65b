package redisbackend_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// A shard may be the name of a master that Sentinel watches: decisions go to
// its primary, peeks to its replicas.
func TestSentinelShard(t *testing.T) {
	t.Parallel() // it waits most of the time
	primary := testserver.Redis(t)
	replica := testserver.RedisReplica(t, primary)
	sentinels := testserver.Sentinel(t, "shard-a", primary, 1, testserver.Never)
	b := newBackend(t, []redisbackend.Shard{{
		Name:     "a",
		Primary:  connect(t, sentinelOptions(sentinels)),
		Replicas: []redis.UniversalClient{newClient(t, replica.Addr)},
	}}, &redisbackend.Options{ReplicaTimeout: 20 * time.Second})
	th := throttler.New(b, nil)
	p := policy("core", perHour(5))
	if d, err := th.Take(t.Context(), p.Charge("alice")); err != nil || !d.Allowed {
		t.Fatalf("take: allowed %v, error %v", d.Allowed, err)
	}
	direct := newClient(t, replica.Addr)
	eventually(t, "the replica to get the key", func() bool {
		return direct.Exists(t.Context(), b.Locate(p.Charge("alice")).Key).Val() == 1
	})
	b.Check()
	if d, err := th.Peek(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != 1 {
		t.Errorf("peek: %+v, error %v", d, err)
	}
	if stats := commandStats(t, direct); stats["get"].calls == 0 {
		t.Errorf("the replica served no peek: %+v", b.Servers())
	}
	if stats := commandStats(t, newClient(t, primary.Addr)); stats["evalsha"].calls+stats["eval"].calls == 0 {
		t.Error("the primary ran no script")
	}
	if stats := commandStats(t, newClient(t, replica.Addr)); stats["get"].calls == 0 {
		t.Error("the replica answered no peek")
	}
}

// A client asks all Sentinels, and leaves no goroutines behind.
func TestSentinelClient(t *testing.T) {
	primary := testserver.Redis(t)
	sentinels := testserver.Sentinel(t, "shard-a", primary, 0, testserver.Never)
	for _, addr := range sentinels.Addrs { // docs/reference/operations.md lists these rules
		if err := newClient(t, addr).ACLSetUser(t.Context(), "weir", "on", ">secret", "resetchannels", "-@all",
			"+hello", "+sentinel|master", "+sentinel|get-master-addr-by-name", "+subscribe",
			"&+failover-state-wait-promotion", "&+switch-master").Err(); err != nil {
			t.Fatal(err)
		}
	}
	before := goleak.IgnoreCurrent()
	dead := "127.0.0.1:0" // no server can listen there
	for _, test := range []struct {
		name  string
		addrs []string
		want  string // in the error
	}{
		{"shard-a", sentinels.Addrs, ""},
		{"shard-a", append([]string{dead, dead}, sentinels.Addrs[:1]...), ""},
		{"shard-b", sentinels.Addrs, `no Sentinel says where the primary of "shard-b" is: ERR No such master with that name`},
		{"shard-a", []string{dead}, `no Sentinel says where the primary of "shard-a" is: dial tcp`},
		{"shard-a", []string{primary.Addr}, `no Sentinel says where the primary of "shard-a" is: failed to authenticate: WRONGPASS`},
	} {
		t.Run(test.want, func(t *testing.T) {
			o := patient(test.addrs...)
			o.MasterName, o.SentinelUsername, o.SentinelPassword = test.name, "weir", "secret"
			b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: connect(t, o)}}, nil)
			_, err := throttler.New(b, nil).Take(t.Context(), policy("core", perHour(5)).Charge("alice"))
			if test.want == "" && err != nil || test.want != "" && (!errors.Is(err, throttler.ErrUnavailable) || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s by %v: got %v, want %q", test.name, test.addrs, err, test.want)
			}
		})
	}
	if err := leftover(before); err != nil {
		t.Error(err)
	}
}

func sentinelOptions(s *testserver.Sentinels) *redis.UniversalOptions {
	o := patient(s.Addrs...)
	o.MasterName = s.Name
	return o
}
