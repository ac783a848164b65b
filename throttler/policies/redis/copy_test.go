package redispolicies_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// caughtUp waits until a replica follows its primary and has its version.
func caughtUp(t *testing.T, primary, replica redis.UniversalClient) {
	t.Helper()
	const key = "{weir:policies}:version"
	for deadline := time.Now().Add(20 * time.Second); primary.Get(t.Context(), key).Val() != replica.Get(t.Context(), key).Val() || !strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the replica is behind after 20 s")
		}
	}
}

// A process that reads from a replica keeps its policies and overrides while the replica is cut
// off from the writer, and while the replica is down. Once it is back, what was written in the
// meantime is in force after one look. A replica takes no changes.
func TestACopy(t *testing.T) {
	writer := testserver.Redis(t)
	replica := testserver.RedisReplica(t, writer)
	store, primary, _ := open(t, writer)
	local, nearby, _ := open(t, replica)
	core := func(n int64) redispolicies.Change {
		return redispolicies.Change{Set: []*quota.Policy{hourly("core", n)}, Override: []policies.Override{{Policy: "core", Key: "bob", Limits: limits(10 * n)}, {Policy: "core", Key: fmt.Sprint("only-", n), Blocked: true}}}
	}
	write(t, store, core(1))
	caughtUp(t, primary, nearby)
	f := follow(t, local)
	check := func(when string, n int64) {
		t.Helper()
		if p, o := f.quota("core", "k"), f.quota("core", "bob"); p != n || o != 10*n {
			t.Errorf("%s: quotas %d and %d; want %d and %d", when, p, o, n, 10*n)
		}
	}
	check("at first", 1)
	if _, err := local.Write(t.Context(), core(7)); err == nil || !strings.Contains(err.Error(), "write to its primary") {
		t.Errorf("a change at the replica: %v", err)
	}

	write(t, store, core(2))
	caughtUp(t, primary, nearby)
	refresh(t, f)
	check("after a change", 2)

	nearby.SlaveOf(t.Context(), "127.0.0.1", "1") // the link is cut
	write(t, store, core(3))
	refresh(t, f)
	check("cut off", 2)
	if n := f.quota("core", "only-2"); n != 0 {
		t.Errorf("cut off: the quota of a blocked key that was not charged before is %d", n)
	}
	host, port, _ := strings.Cut(writer.Addr, ":")
	nearby.SlaveOf(t.Context(), host, port)
	caughtUp(t, primary, nearby)
	refresh(t, f)
	check("linked again", 3)
	if n := f.quota("core", "only-3"); n != 0 {
		t.Errorf("linked again: the quota of a key that was blocked meanwhile is %d", n)
	}

	replica.Stop()
	if err := f.Refresh(t.Context()); err == nil {
		t.Error("a replica that is down answered")
	}
	write(t, store, core(4))
	check("down", 3)
	if err := replica.Restart(); err != nil {
		t.Fatal(err)
	}
	caughtUp(t, primary, nearby)
	refresh(t, f)
	check("back", 4)

	writer.Stop()
	if _, err := store.Write(t.Context(), core(5)); err == nil || !strings.Contains(err.Error(), "did not confirm the change") {
		t.Errorf("a change while the writer is down: %v", err)
	}
	refresh(t, f)
	check("without the writer", 4)
	if n := f.quota("core", "only-4"); n != 0 {
		t.Errorf("without the writer: the quota of a blocked key is %d", n)
	}
}

// backup saves the contents of a server, and returns a function that restores them.
func backup(t *testing.T, c redis.UniversalClient) (restore func()) {
	t.Helper()
	was := map[string]string{}
	for _, key := range c.Keys(t.Context(), "*").Val() {
		text, err := c.Dump(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		was[key] = text
	}
	return func() {
		t.Helper()
		c.FlushDB(t.Context())
		for key, text := range was {
			if err := c.Restore(t.Context(), key, 0, text).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Concurrent writers make one change after the other.
func TestWritersAtOnce(t *testing.T) {
	server := testserver.Redis(t)
	store, _, _ := open(t, server)
	const writers, each = 6, 8
	var versions sync.Map
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				name := fmt.Sprintf("w%d-%d", w, i)
				n, err := store.Write(t.Context(), redispolicies.Change{Set: []*quota.Policy{hourly(name, 5)}})
				if err != nil {
					t.Error(err)
				} else if other, again := versions.LoadOrStore(n, name); again {
					t.Errorf("%v and %s are both version %d", other, name, n)
				}
			}
		})
	}
	all.Wait()
	f := follow(t, store)
	if s := f.status(); s.Policies != writers*each {
		t.Errorf("%+v; want %d policies", s, writers*each)
	}
}

// An override that a server lost in a failover, with its change, does not stay.
func TestAnOverrideThatAServerLost(t *testing.T) {
	server := testserver.Redis(t)
	store, client, _ := open(t, server)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}, Override: []policies.Override{{Policy: "core", Key: "bob", Limits: limits(70)}}})
	f := follow(t, store)
	lost := backup(t, client)
	write(t, store, redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "mallory", Blocked: true}}})
	if n := f.quota("core", "mallory"); n != 0 {
		t.Fatalf("quota %d; want the override, which is new", n)
	}
	server.Kill()
	if err := f.Refresh(t.Context()); err == nil {
		t.Error("a server that is away answered")
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	lost()
	refresh(t, f)
	if m, b := f.quota("core", "mallory"), f.quota("core", "bob"); m != 10 || b != 70 {
		t.Errorf("quotas %d and %d; want the policy's and the override's", m, b)
	}
}

// An override of a wrong version, which does not come into force, does not stay when a server
// has lost that version.
func TestAnOverrideOfAWrongVersion(t *testing.T) {
	store, client, _ := open(t, testserver.Redis(t))
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}, Override: []policies.Override{{Policy: "core", Key: "bob", Limits: limits(70)}}})
	f := follow(t, store)
	lost := backup(t, client)
	write(t, store, redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "mallory", Blocked: true}}})
	if _, err := store.WriteText(t.Context(), "core", "{"); err != nil {
		t.Fatal(err)
	}
	if err := f.Refresh(t.Context()); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("a version that is wrong: %v", err)
	}
	if n := f.quota("core", "mallory"); n != 0 {
		t.Fatalf("quota %d; want what the server has", n)
	}
	lost()
	refresh(t, f)
	if m, b := f.quota("core", "mallory"), f.quota("core", "bob"); m != 10 || b != 70 {
		t.Errorf("quotas %d and %d; want the policy's and the override's", m, b)
	}
}
