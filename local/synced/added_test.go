package synced

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// A root that is added as a replica of another one, and is promoted when all processes know it, has
// all counters: those that are charged meanwhile, and those that no process has in memory.
func TestRealRootAddedAsAReplica(t *testing.T) {
	first := testserver.Redis(t)
	start := func(addrs ...string) (*Backend, *throttler.Throttler) {
		t.Helper()
		var roots []Root
		for _, addr := range addrs {
			roots = append(roots, Root{Name: addr, Client: redisClient(t, addr)})
		}
		b, err := New(roots, &Options{Sync: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b, throttler.New(b, nil)
	}
	take := func(th *throttler.Throttler, key string, cost int64) {
		t.Helper()
		c := hourAndBucket.Charge(key)
		c.Cost = cost
		if d, err := th.Take(t.Context(), c); err != nil || !d.Allowed {
			t.Fatal(&d, err)
		}
	}
	old, th := start(first.Addr)
	for i := range 50 {
		take(th, fmt.Sprint("quiet-", i), 40)
	}
	take(th, "hot", 40)
	old.Close()

	added := testserver.RedisReplica(t, first)
	var throttlers [2]*throttler.Throttler
	var backends [2]*Backend
	for i := range throttlers {
		backends[i], throttlers[i] = start(first.Addr, added.Addr)
		take(throttlers[i], "hot", 5)
	}
	eventually := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	for _, b := range backends {
		eventually("the added root answers", func() bool { return b.Stats().Lag[added.Addr] > 1000 && b.Stats().Syncs > 3 })
	}
	if err := redisClient(t, added.Addr).Do(t.Context(), "replicaof", "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	for _, b := range backends {
		eventually("the added root does not answer", func() bool { return b.Stats().Answers[added.Addr] })
	}
	take(throttlers[0], "hot", 5)
	_, alone := start(added.Addr)
	used := func(key string) (used [2]int64) {
		d, err := alone.Peek(t.Context(), hourAndBucket.Charge(key))
		if err != nil {
			t.Fatal(err)
		}
		return [2]int64{d.Limit(0).Used, d.Limit(1).Used}
	}
	var hot [2]int64
	eventually("the added root does not have 55 units of the hot key", func() bool {
		hot = used("hot")
		return hot[0] >= 55 && hot[1] >= 55
	})
	if hot[0] > 75 || hot[1] > 75 { // its first units may count twice
		t.Errorf("the added root has %v units of the hot key", hot)
	}
	for i := range 50 {
		key := fmt.Sprint("quiet-", i)
		eventually("the added root does not have 40 units of "+key, func() bool { return used(key) == [2]int64{40, 40} })
	}
}
