package redisbackend_test

import (
	"fmt"
	"testing"
	"time"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// Down reports on the shard of a partition, and on no other.
func TestDown(t *testing.T) {
	servers := []*testserver.RedisServer{testserver.Redis(t), testserver.Redis(t)}
	b := newBackend(t, []redisbackend.Shard{
		{Name: "a", Primary: newClient(t, servers[0].Addr)}, {Name: "b", Primary: newClient(t, servers[1].Addr)},
	}, nil)
	th := throttler.New(b, nil)
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5, Window: time.Hour}}}
	on := make(map[string]string)
	for i := 0; len(on) < 2; i++ {
		key := fmt.Sprint("key", i)
		on[b.Locate(policy.Charge(key)).Shard] = key
	}
	down := func(shard string) bool {
		since, down := b.Down(on[shard])
		if down != !since.IsZero() {
			t.Errorf("shard %s: down %t since %v", shard, down, since)
		}
		return down
	}
	servers[0].Kill()
	for deadline := time.Now().Add(time.Minute); !down("a"); {
		_, _ = th.Take(t.Context(), policy.Charge(on["a"]))
		if time.Now().After(deadline) {
			t.Fatal("a shard whose server is dead is not down")
		}
	}
	if _, err := th.Take(t.Context(), policy.Charge(on["b"])); err != nil || down("b") {
		t.Errorf("the other shard: down %t, %v", down("b"), err)
	}
	if err := servers[0].Restart(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); down("a"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a shard whose server is back is down")
		}
	}
}
