package shares

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/local/shares/internal/division"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// one returns a group of a single backend that has the whole quota.
func one(t *testing.T, policy *throttler.Policy, o Options) (*group, *Backend) {
	g := newGroup(t, policy, 1, o)
	g.divide([]division.Share{{Units: policy.Limits[0].Quota}})
	return g, g.backends[0]
}

func (g *group) request(cost int64, keys ...string) driver.Request {
	charges := make([]throttler.Charge, len(keys))
	for i, key := range keys {
		charges[i] = throttler.Charge{Policy: g.policy, Key: key, Cost: cost, Partition: "all"}
	}
	return driver.NewRequest(g.clock.Now().UnixMilli(), charges...)
}

// A decision about many keys in a small table does not evict its own keys.
func TestManyKeysInASmallTable(t *testing.T) {
	g, b := one(t, tokens("core", 10, time.Hour, 0), Options{MaxKeys: 64})
	for round := range 100 {
		var keys []string
		for i := range quota.MaxCharges {
			keys = append(keys, fmt.Sprint("key-", round, "-", i))
		}
		if d, err := b.Take(t.Context(), g.request(1, keys...)); err != nil || !d.Allowed {
			t.Fatalf("Take: %v, %v; want an allowed one", &d, err)
		}
	}
	if n := len(b.stripeOf("all").Values()); n > quota.MaxCharges {
		t.Errorf("%d keys are kept; want the keys of one decision", n)
	}
}

// Charges that no process can admit are no demand: they would move the shares to the processes
// that refuse them. Charges refused for now are demand, and so are units added by settlements.
func TestDemand(t *testing.T) {
	g, b := one(t, tokens("core", 100, time.Hour, 50), Options{})
	check := func(when string, want float64) { // in 2 s
		t.Helper()
		if got := b.policies[0].sampler.Demand(g.clock.Now(), 0).Units * 2; got != want {
			t.Errorf("the demand %s is %v; want %v", when, got, want)
		}
	}
	take := func(cost int64, keys ...string) driver.Decision {
		t.Helper()
		d, err := b.Take(t.Context(), g.request(cost, keys...))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for range 2 {
		take(51, "alice")
		take(1_000_000, "alice", "bob")
	}
	check("of charges above the burst", 0)
	charged := take(40, "alice")
	check("of a charge", 40)
	take(40, "alice")
	check("of a refused one", 80)
	if _, err := b.Settle(t.Context(), driver.Settlement{Now: g.clock.Now().UnixMilli(), Charged: charged, Costs: []int64{45}}); err != nil {
		t.Fatal(err)
	}
	check("with a settlement of 5 more", 85)
}

// A charge that fits is no demand either, if another charge of the decision never fits.
func TestDemandOfSeveralPolicies(t *testing.T) {
	small, large := tokens("small", 100, time.Hour, 50), tokens("large", 1000, time.Hour, 500)
	b, err := newBackend("member", 1, []*throttler.Policy{small, large}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.apply(division.Shares{Valid: true, First: true, Quotas: []division.Share{{Units: 100}, {Units: 1000}}})
	now := time.Now()
	charges := []throttler.Charge{{Policy: large, Key: "alice", Cost: 100, Partition: "alice"}, {Policy: small, Key: "alice", Cost: 100, Partition: "alice"}}
	d, err := b.Take(t.Context(), driver.NewRequest(now.UnixMilli(), charges...))
	if err != nil || d.Allowed {
		t.Fatalf("Take: %v, %v; want a refusal", &d, err)
	}
	for _, p := range b.policies {
		if got := p.sampler.Demand(now, 0).Units; got != 0 {
			t.Errorf("the demand of %s is %v; want none", p.Name, got)
		}
	}
}

// A process that loses its shares while it decides is unavailable. It does not refuse,
// and has charged nothing.
func TestSharesAreDroppedUnderTakes(t *testing.T) {
	g, b := one(t, tokens("core", 100, time.Hour, 0), Options{})
	r := g.request(1, "alice")
	d, err := b.Take(t.Context(), r)
	if err != nil || !d.Allowed {
		t.Fatalf("Take: %v, %v; want an allowed one", &d, err)
	}
	b.holds.Store(false) // after ready has looked, and before the shares are gone
	s := b.stripeOf("all")
	at := moment{r.Now - b.epoch.Load(), b.epoch.Load()}
	if err := b.find(s, r.Charges(), at, true); !errors.Is(err, driver.ErrUnavailable) || driver.MayHaveCharged(err) {
		t.Errorf("find: %v; want an unavailability, with nothing charged", err)
	}
	if _, err := b.Take(t.Context(), r); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, driver.ErrFailClosed) || driver.MayHaveCharged(err) {
		t.Errorf("Take: %v; want an unavailability, with nothing charged", err)
	}
}

// When the clock is set back, a new key has the units that it had before, also after the next
// division.
func TestClockIsSetBack(t *testing.T) {
	policy := tokens("core", 100, time.Hour, 0)
	g := newGroup(t, policy, 2, Options{})
	g.divide([]division.Share{{Units: 50}, {Units: 50}})
	g.divide([]division.Share{{Units: 40}, {Units: 60}})
	g.clock.Set(g.clock.Now().Add(-10 * time.Hour))
	if !g.take(0, "alice", 40).Allowed {
		t.Error("a new key is refused after the clock was set back")
	}
	g.divide([]division.Share{{Units: 30}, {Units: 70}})
	if !g.take(0, "bob", 30).Allowed {
		t.Error("a new key is refused after a division with the clock set back")
	}
}

// A refund after the clock was set back gives no tokens back that time has restored.
func TestRefundWhenTheClockIsSetBack(t *testing.T) {
	g, b := one(t, tokens("core", 60, time.Minute, 0), Options{})
	first, err := b.Take(t.Context(), g.request(30, "alice"))
	if err != nil || !first.Allowed {
		t.Fatalf("Take: %v, %v; want an allowed one", &first, err)
	}
	for i, cost := range []int64{30, 60} {
		g.clock.Advance(time.Duration(i) * time.Minute) // it restores all
		if d, err := b.Take(t.Context(), g.request(cost, "alice")); err != nil || !d.Allowed {
			t.Fatalf("Take of %d: %v, %v; want an allowed one", cost, &d, err)
		}
	}
	g.divide([]division.Share{{Units: 60}})
	g.clock.Set(g.clock.Now().Add(-time.Hour))
	g.divide([]division.Share{{Units: 60}}) // it notices
	g.clock.Advance(time.Second)
	d, err := b.Settle(t.Context(), driver.Settlement{Now: g.clock.Now().UnixMilli(), Charged: first, Costs: []int64{0}})
	if err != nil || d.Results()[0].Used != 59 {
		t.Errorf("Settle: %v, %v; want 59 used: a second has restored one", &d, err)
	}
}

// After the clock is set back, a busy key is admitted, whether a sweep or a division notices.
func TestBusyKeysWhenTheClockIsSetBack(t *testing.T) {
	for name, notice := range map[string]func(*group){
		"sweep":    func(g *group) { g.backends[0].sweep() },
		"division": func(g *group) { g.divide([]division.Share{{Units: 10}}) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, tokens("core", 10, time.Second, 10), 1, Options{})
			g.divide([]division.Share{{Units: 10}})
			all := func() (n int) {
				for g.take(0, "alice", 1).Allowed {
					n++
				}
				return n
			}
			for range 10 {
				g.clock.Advance(100 * time.Millisecond)
				all()
			}
			g.divide([]division.Share{{Units: 10}})
			all()
			g.clock.Set(g.clock.Now().Add(-time.Minute))
			notice(g)
			if n := all(); n > 0 {
				t.Errorf("%d were admitted as the clock was set back, want 0: all was used", n)
			}
			g.clock.Advance(time.Second)
			g.divide([]division.Share{{Units: 10}})
			if n := all(); n != 10 {
				t.Errorf("%d were admitted in the second after it, want 10", n)
			}
		})
	}
}

// A sweep that is under way when the clock is set back forgets no key with used units.
func TestSweepWhileTheClockIsSetBack(t *testing.T) {
	g := newGroup(t, tokens("core", 100, time.Minute, 10), 1, Options{})
	g.divide([]division.Share{{Units: 100}})
	b := g.backends[0]
	for round := range 200 {
		key := fmt.Sprint("key-", round)
		for g.take(0, key, 1).Allowed {
		}
		g.clock.Advance(3 * time.Second) // half full
		var swept sync.WaitGroup
		swept.Go(func() {
			for range 3 {
				b.sweep()
			}
		})
		g.clock.Set(g.clock.Now().Add(-time.Minute))
		g.divide([]division.Share{{Units: 100}})
		swept.Wait()
		n := 0
		for g.take(0, key, 1).Allowed {
			n++
		}
		if n > 6 {
			t.Fatalf("round %d: %d were admitted half a window after all was used; want 5", round, n)
		}
		g.clock.Advance(time.Minute)
		b.sweep()
	}
}
