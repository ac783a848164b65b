package policies_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/shares"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// stores keep the counts: each returns a backend for each of two processes.
var stores = map[string]func(t *testing.T) [2]driver.Backend{
	"memory": func(*testing.T) [2]driver.Backend {
		b := memorybackend.NewDefault()
		return [2]driver.Backend{b, b}
	},
	"redis": func(t *testing.T) (both [2]driver.Backend) {
		server := testserver.Redis(t)
		for i := range both {
			b, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: newClient(t, server)}}, nil)
			both[i] = must(t, b, err)
		}
		return both
	},
	"memcached": func(t *testing.T) (both [2]driver.Backend) {
		server := testserver.Memcached(t)
		for i := range both {
			client := memcachedbackend.NewClient(server.Addr)
			t.Cleanup(func() { _ = client.Close() })
			b, err := memcachedbackend.New([]memcachedbackend.Server{{Name: "a", Client: client}}, nil)
			both[i] = must(t, b, err)
		}
		return both
	},
}

// modes returns the ways for two processes to decide, by the names of the mode and the store.
func modes() map[string]func(t *testing.T, c clock.Clock) [2]driver.Backend {
	all := map[string]func(t *testing.T, c clock.Clock) [2]driver.Backend{
		"synced": syncedPair,
		"shares": func(t *testing.T, _ clock.Clock) [2]driver.Backend { return sharesPair(t) },
	}
	for name, open := range stores {
		all["exact "+name] = func(t *testing.T, _ clock.Clock) [2]driver.Backend { return open(t) }
		all["leased "+name] = func(t *testing.T, c clock.Clock) (both [2]driver.Backend) {
			for i, store := range open(t) {
				b, err := leased.New(store, &leased.Options{Busy: 1, Clock: c})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = b.Close(context.Background()) })
				both[i] = b
			}
			return both
		}
	}
	return all
}

func syncedPair(t *testing.T, c clock.Clock) (both [2]driver.Backend) {
	root := testserver.Redis(t)
	for i := range both {
		b, err := synced.New([]synced.Root{{Name: "root", Client: newClient(t, root)}}, &synced.Options{Sync: 10 * time.Millisecond, Clock: c})
		both[i] = must(t, b, err)
	}
	return both
}

func sharesPair(t *testing.T) (both [2]driver.Backend) {
	list, listeners := shares.List{Epoch: 1}, [2]net.Listener{}
	for i := range both {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i], list.Members = l, append(list.Members, l.Addr().String())
	}
	var all [2]*shares.Backend
	for i, self := range list.Members {
		transport, err := shares.NewHTTP(self, []byte("32 random bytes, or more than that"), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(transport.Close)
		b, err := shares.New(self, list, transport, []*quota.Policy{cutPolicy(true)}, &shares.Options{Refresh: 500 * time.Millisecond}) // a member has a fifth to answer
		all[i], both[i] = b, must(t, b, err)
		transport.Serve(listeners[i], b.Receive)
	}
	for deadline := time.Now().Add(time.Minute); !all[0].Status().Valid || !all[1].Status().Valid; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no shares in a minute")
		}
	}
	return both
}

// cutPolicy returns the policy that clients are charged under: a bucket, or a window.
func cutPolicy(bucket bool) *quota.Policy {
	l := quota.Limit{Quota: 1000, Window: time.Hour, Aligned: true}
	if bucket {
		l.Aligned, l.Algorithm, l.Burst = false, quota.TokenBucket, 1000
	}
	return &quota.Policy{Name: "core", Limits: []quota.Limit{l}}
}

// cut is two processes, each with a table of the policies in Redis.
type cut struct {
	*testing.T
	store      *redispolicies.Store
	watches    [2]*redispolicies.Watch
	throttlers [2]*throttler.Throttler
	policy     *quota.Policy
}

func newCut(t *testing.T, bucket bool, both [2]driver.Backend, c clock.Clock) *cut {
	f := &cut{T: t, store: redispolicies.NewStore(newClient(t, testserver.Redis(t)), ""), policy: cutPolicy(bucket)}
	f.write(redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "other", Blocked: true}}})
	for i, b := range both {
		var table policies.Table
		f.watches[i] = redispolicies.NewWatch(t.Context(), &table, "redis", f.store, &redispolicies.Options{Every: time.Hour, Timeout: 10 * time.Second, Observer: observe.Nothing{}})
		t.Cleanup(f.watches[i].Close)
		f.throttlers[i] = throttler.New(b, &throttler.Options{Clock: c, Policies: &table})
	}
	return f
}

// write makes a change, and look makes both processes look once.
func (f *cut) write(c redispolicies.Change) {
	f.Helper()
	if _, err := f.store.Write(f.Context(), c); err != nil {
		f.Fatal(err)
	}
}

func (f *cut) look() {
	f.Helper()
	for _, w := range f.watches {
		if err := w.Refresh(f.Context()); err != nil {
			f.Fatal(err)
		}
	}
}

func (f *cut) take(process int, key string, cost int64) (throttler.Decision, error) {
	return f.throttlers[process].Take(f.Context(), throttler.Charge{Policy: f.policy, Key: key, Cost: cost})
}

// An override limits one client, or frees it, from the first decision after a process has
// looked, in each mode and with each store. For a client that the process has not met, it does
// so before. Other clients are unaffected, and so is the client after the override, with its
// used units. An override that a mode cannot enforce is an error, and never another limit.
func TestOverridesCutInAllModes(t *testing.T) {
	few := []quota.Limit{{Quota: 5, Window: time.Hour, Aligned: true}}
	for mode, open := range modes() {
		for kind, o := range map[string]policies.Override{"limits": {Limits: few}, "blocked": {Blocked: true}, "unlimited": {Unlimited: true}} {
			t.Run(mode+" "+kind, func(t *testing.T) {
				t.Parallel()
				c, divided := clock.Clock(clock.NewManual(t0)), mode == "shares"
				if divided {
					c = clock.System{}
				}
				f := newCut(t, divided, open(t, c), c)
				for i := range f.throttlers {
					for range 10 {
						if d, err := f.take(i, "alice", 1); err != nil || !d.Allowed {
							t.Fatalf("process %d: %v, %v", i, d, err)
						}
					}
				}
				o.Policy, o.Key = "core", "alice"
				carols := o
				carols.Key = "carol"
				f.write(redispolicies.Change{Override: []policies.Override{o, carols}})
				f.check(0, "carol", o, divided, 0)
				f.look()
				for i := range f.throttlers {
					f.check(i, "alice", o, divided, 10)
					if d, err := f.take(i, "bob", 1); err != nil || !d.Allowed || d.Limit(0).Limit != f.policy.Limits[0] {
						t.Errorf("process %d, another client: %v, %v", i, d, err)
					}
				}
				f.write(redispolicies.Change{RemoveOverrides: []policies.Override{o}})
				f.look()
				for i := range f.throttlers {
					d, err := f.take(i, "alice", 1)
					over := o.Unlimited && !divided // the window has continued to count
					if s := d.Limit(0); err != nil || d.Allowed == over || s.Limit != f.policy.Limits[0] || s.Used < 10 && !divided {
						t.Errorf("process %d, without the override: %v, %v; want the policy's limits, and what was used", i, d, err)
					}
				}
			})
		}
	}
}

// check checks a process's decision about a key with an override, and with used units.
func (f *cut) check(process int, key string, o policies.Override, divided bool, used int64) {
	f.Helper()
	d, err := f.take(process, key, 1)
	switch {
	case divided && len(o.Limits) > 0:
		if !errors.Is(err, quota.ErrInvalid) {
			f.Errorf("process %d, %s: %v, %v; want an ErrInvalid, because shares are of other limits", process, key, d, err)
		}
	case err != nil || d.Blocked != o.Blocked:
		f.Errorf("process %d, %s: %v, %v", process, key, d, err)
	case o.Unlimited:
		if d, err = f.take(process, key, 5000); err != nil || !d.Allowed {
			f.Errorf("process %d, %s: %v, %v; want it allowed", process, key, d, err)
		}
	case d.Allowed != (len(o.Limits) > 0 && used < o.Limits[0].Quota) || len(o.Limits) > 0 && d.Limit(0).Limit != o.Limits[0]:
		f.Errorf("process %d, %s: %v; want the override", process, key, d)
	}
}

// When a policy ends, the program's limits hold in each mode, from that instant and without a
// look, also for a client with a remembered refusal. Used units stay.
func TestPoliciesEndInAllModes(t *testing.T) {
	all := modes()
	delete(all, "shares") // other limits are an error there
	all["refusals"] = func(t *testing.T, c clock.Clock) (both [2]driver.Backend) {
		for i, store := range stores["memory"](t) {
			b, err := refusals.New(store, &refusals.Options{MaxAge: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			both[i] = b
		}
		return both
	}
	for mode, open := range all {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := clock.NewManual(t0)
			f := newCut(t, false, open(t, c), c)
			ends := &quota.Policy{Name: "core", Limits: []quota.Limit{{Quota: 5, Window: time.Hour, Aligned: true}}, Until: t0.Add(time.Minute)}
			f.write(redispolicies.Change{Set: []*quota.Policy{ends}})
			f.look()
			for i := range f.throttlers {
				if d, err := f.take(i, "alice", 5); i == 0 && (err != nil || !d.Allowed || d.Limit(0).Limit != ends.Limits[0]) {
					t.Fatalf("%v, %v; want an allowed one, of 5", d, err)
				}
				for range 2 {
					if d, err := f.take(i, "alice", 6); err != nil || d.Allowed {
						t.Fatalf("process %d: %v, %v; want a refusal", i, d, err)
					}
				}
			}
			c.Set(ends.Until)
			for i := range f.throttlers {
				d, err := f.take(i, "alice", 6)
				if s := d.Limit(0); err != nil || !d.Allowed || s.Limit != f.policy.Limits[0] || i == 0 && s.Used < 11 {
					t.Errorf("process %d, after the end: %v, %v; want the program's limits, and what was used", i, d, err)
				}
			}
		})
	}
}
