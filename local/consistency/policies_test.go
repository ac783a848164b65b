package consistency_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
)

// edit changes the processes' tables of policies, like a source that all of them have.
func (f *fleet) edit(change func(*policies.Edit), processes ...*process) {
	f.Helper()
	for _, p := range processes {
		if err := p.policies.Source("test").Edit(change); err != nil {
			f.Fatal(err)
		}
	}
}

// A limit of the table is in force in every level, also after the policy changes its level. Used
// units still count.
func TestTheTableIsInForceInAllLevels(t *testing.T) {
	for _, policy := range []*throttler.Policy{window, bucket} {
		changed := policy.Limits[0]
		changed.Quota = 30
		if changed.Burst > 0 {
			changed.Burst = 30
		}
		for _, from := range []consistency.Level{consistency.Exact, consistency.Leased, consistency.Synced} {
			for _, to := range []consistency.Level{consistency.Exact, consistency.Leased, consistency.Synced} {
				t.Run(policy.Name+" "+from.String()+" to "+to.String(), func(t *testing.T) {
					f := newFleet(t)
					p := f.start()
					f.begin(p, policy, from)
					f.take(p, costing(policy, 15))
					f.edit(func(e *policies.Edit) {
						e.Set(&throttler.Policy{Name: policy.Name, Limits: []throttler.Limit{changed}})
					}, p)
					check := func(when string) {
						t.Helper()
						d := f.take(p, costing(policy, 30))
						if s := d.Limit(0); d.Allowed || s.Limit != changed || s.Used == 0 {
							t.Errorf("%s, a take of 30: %v; want a refusal by %v", when, &d, changed)
						}
						if d = f.take(p, costing(policy, 1)); !d.Allowed || d.Limit(0).Limit != changed {
							t.Errorf("%s, a take of 1: %v; want it allowed by %v", when, &d, changed)
						}
					}
					check("after the change")
					if from != to {
						f.set(p, policy, to)
						check("in the new level")
					}
				})
			}
		}
	}
}

// A policy changes from or to Synced together with limits that only the store supports: takes
// and peeks are decided at once, and so are settlements of charges under the limits before.
func TestAChangeFromOrToLimitsThatAreNotSynced(t *testing.T) {
	log := &throttler.Policy{Name: bucket.Name, Limits: []throttler.Limit{{Quota: 60, Window: time.Minute, Algorithm: throttler.SlidingLog}}}
	for _, c := range []struct {
		from, to *throttler.Policy
		level    [2]consistency.Level
	}{
		{bucket, log, [2]consistency.Level{consistency.Synced, consistency.Exact}},
		{log, bucket, [2]consistency.Level{consistency.Exact, consistency.Synced}},
	} {
		t.Run(fmt.Sprint(c.level[0], " to ", c.level[1]), func(t *testing.T) {
			f := newFleet(t)
			p := f.start()
			f.begin(p, c.from, c.level[0])
			first := f.take(p, costing(c.from, 5))
			f.edit(func(e *policies.Edit) { e.Set(c.to) }, p)
			f.set(p, c.to, c.level[1])
			if d := f.take(p, costing(bucket, 5)); !d.Allowed || d.Limit(0).Limit != c.to.Limits[0] {
				t.Errorf("%v; want it allowed by %v", &d, c.to.Limits[0])
			}
			f.peek(p, costing(bucket, 5))
			for _, cost := range []int64{8, 2} {
				if _, err := p.throttler.Settle(t.Context(), first, cost); err != nil {
					t.Errorf("a settlement of 5 to %d: %v", cost, err)
				}
			}
			if err := p.throttler.Reset(t.Context(), costing(bucket, 1)); err != nil {
				t.Errorf("a reset: %v", err)
			}
		})
	}
}

// An override written to Redis limits one client, in every level, from the first decision after
// a process has read it, which it does once a second. Other clients are unaffected, and so is
// the client after the override.
func TestOverridesInAllLevels(t *testing.T) {
	few := window.Limits[0]
	few.Quota = 10
	for _, level := range []consistency.Level{consistency.Exact, consistency.Leased, consistency.Synced} {
		for name, o := range map[string]policies.Override{
			"limits":  {Limits: []throttler.Limit{few}},
			"blocked": {Blocked: true},
		} {
			t.Run(level.String()+" "+name, func(t *testing.T) {
				f := newFleet(t)
				client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{f.root.Addr}, DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				store := redispolicies.NewStore(client, "")
				first, second := f.start(), f.start()
				watches := map[*process]*redispolicies.Watch{}
				for _, p := range []*process{first, second} {
					watches[p] = redispolicies.NewWatch(t.Context(), p.policies, "redis", store, &redispolicies.Options{Timeout: 10 * time.Second})
					defer watches[p].Close()
					f.begin(p, window, level)
				}
				write := func(c redispolicies.Change) {
					t.Helper()
					if _, err := store.Write(t.Context(), c); err != nil {
						t.Fatal(err)
					}
					for _, w := range watches {
						if err := w.Refresh(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, p := range []*process{first, second} {
					for range 20 {
						f.take(p, costing(window, 1))
					}
				}
				if exact := f.store.takes == 40; exact != (level == consistency.Exact) {
					t.Fatalf("the store decided %d of 40 takes that are %v", f.store.takes, level)
				}
				o.Policy, o.Key = window.Name, "alice"
				write(redispolicies.Change{Override: []policies.Override{o}})
				for i, p := range []*process{first, second} {
					d := f.take(p, costing(window, 1))
					if d.Allowed || d.Blocked != o.Blocked || !o.Blocked && d.Limit(0).Limit.Quota != 10 {
						t.Errorf("process %d: %v; want a refusal by the override", i, &d)
					}
					if d := f.take(p, throttler.Charge{Policy: window, Key: "bob", Cost: 1}); !d.Allowed || d.Limit(0).Limit.Quota != 100 {
						t.Errorf("process %d, another client: %v; want it allowed by the policy", i, &d)
					}
				}
				write(redispolicies.Change{RemoveOverrides: []policies.Override{o}})
				d := f.take(first, costing(window, 1))
				if s := d.Limit(0); !d.Allowed || s.Limit.Quota != 100 || s.Used < 21 {
					t.Errorf("after the override: %v; want it allowed by the policy, and what was used counted", &d)
				}
			})
		}
	}
}

// A change of level lasts for as long as a charge counts under the limits in force, also if the
// limits given to Set are shorter.
func TestChangeOfLevelUnderLongerLimits(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	long := &throttler.Policy{Name: window.Name, Limits: []throttler.Limit{{Quota: 100, Window: time.Hour, Aligned: true}}}
	f.edit(func(e *policies.Edit) { e.Set(long) }, p)
	f.begin(p, window, consistency.Synced)
	f.take(p, costing(window, 60))
	f.set(p, window, consistency.Exact)
	f.clock.Advance(consistency.DefaultAgree + 2*time.Minute)
	if d := f.take(p, costing(window, 60)); d.Allowed {
		t.Errorf("60 more of 100 in the hour: %v", &d)
	}
}
