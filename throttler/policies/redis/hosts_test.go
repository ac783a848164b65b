package redispolicies_test

import (
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

var overridden = flag.Int("overridden", 5000, "how many keys have overrides in TestABlockedKeyAtEveryHost")

// A key that is blocked once is blocked at every host after one look, also while a data centre
// is cut off: there when the link is back. How many overrides there are makes no difference.
func TestABlockedKeyAtEveryHost(t *testing.T) {
	const hosts = 300 // half of them in each data centre
	writer := testserver.Redis(t)
	replica := testserver.RedisReplica(t, writer)
	store, primary, _ := open(t, writer)
	local, nearby, traffic := open(t, replica)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 1)}})
	for i := 0; i < *overridden; i += redispolicies.MaxChange {
		var c redispolicies.Change
		for k := i; k < min(i+redispolicies.MaxChange, *overridden); k++ {
			c.Override = append(c.Override, policies.Override{Policy: "core", Key: fmt.Sprint("key-", k), Limits: limits(int64(2 + k))})
		}
		write(t, store, c)
	}
	caughtUp(t, primary, nearby)
	var all [hosts]*follower
	for i := range all {
		all[i] = follow(t, []*redispolicies.Store{store, local}[i%2])
	}
	// look makes every host look once, all at the same time, and returns how long that took.
	look := func() time.Duration {
		start := time.Now()
		var looking sync.WaitGroup
		for _, f := range all {
			looking.Go(func() {
				if err := f.Refresh(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		looking.Wait()
		return time.Since(start)
	}
	// check counts the hosts of each data centre where the key has a quota.
	check := func(when, key string, want [2]int64) {
		t.Helper()
		for i, f := range all {
			if n := f.quota("core", key); n != want[i%2] {
				t.Fatalf("%s: host %d has a quota of %d for %s; want %d", when, i, n, key, want[i%2])
			}
		}
	}
	block := func(key string) {
		t.Helper()
		write(t, store, redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: key, Blocked: true}}})
	}
	check("at first", "key-7", [2]int64{9, 9}) // all hosts remember it
	block("key-7")
	caughtUp(t, primary, nearby)
	before := traffic.n.Load()
	took := look()
	perHost := float64(traffic.n.Load()-before) / (hosts / 2)
	check("after a look", "key-7", [2]int64{0, 0})

	check("before the cut", "key-8", [2]int64{10, 10})
	nearby.SlaveOf(t.Context(), "127.0.0.1", "1") // cuts the link
	block("key-8")
	tookCut := look()
	check("in a cut", "key-8", [2]int64{0, 10})
	check("in a cut, blocked before", "key-7", [2]int64{0, 0})
	host, port, _ := strings.Cut(writer.Addr, ":")
	nearby.SlaveOf(t.Context(), host, port)
	caughtUp(t, primary, nearby)
	tookBack := look()
	check("after the cut", "key-8", [2]int64{0, 0})
	t.Logf("%d hosts, %d overrides: a look of all took %v, %v in the cut and %v after it, and moved %.0f bytes for a host", hosts, *overridden, took, tookCut, tookBack, perHost)
	if perHost > 2000 {
		t.Errorf("a look that brought one override moved %.0f bytes for a host", perHost)
	}
}
