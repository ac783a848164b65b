package redisbackend_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func log(quota int64, window time.Duration) throttler.Limit {
	return throttler.Limit{Quota: quota, Window: window, Algorithm: throttler.SlidingLog}
}

// Long logs decide like package algorithm while they fill, turn over, are refunded in the
// middle, and empty: one log, two logs of one policy, one log among other limits.
func TestSequentialLongLogs(t *testing.T) {
	seed := testseed.Of(t)
	for name, limits := range map[string][]throttler.Limit{
		"one":   {log(3000, time.Second)},
		"two":   {log(2000, time.Second), log(400, 100*time.Millisecond)},
		"mixed": {perHour(1 << 40), log(1500, time.Second), {Quota: 1 << 30, Window: time.Second, Algorithm: throttler.TokenBucket}},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(len(name))))
			b := newBench(t, newClient(t, testserver.Redis(t).Addr))
			// A key outlives a slow test, during which the manual clock does not move.
			b.backend = newBackend(t, []redisbackend.Shard{{Name: "a", Primary: b.client}}, &redisbackend.Options{Margin: time.Hour})
			c := policy("core", limits...).Charge("alice")
			c.Partition = c.Key
			state := new(algorithm.State)
			key := b.backend.Locate(c).Key
			var taken [][2]driver.Decision
			for step := range 4000 {
				pause := 3 // ms, at most
				if step > 3000 {
					pause = 200 // the log empties
				}
				b.clock.Advance(time.Duration(rng.IntN(pause)) * time.Millisecond / 2)
				c.Cost = 1 + rng.Int64N(3)
				if rng.IntN(40) == 0 {
					c.Cost = 1 + rng.Int64N(limits[len(limits)-1].Quota)
				}
				r := driver.NewRequest(b.clock.Now().Truncate(time.Millisecond).UnixMilli(), c)
				want := algorithm.Take(r, []*algorithm.State{state})
				got, err := b.backend.Take(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				if want.Allowed {
					taken = append(taken, [2]driver.Decision{got, want})
				}
				compareDecisions(t, step, got, want)
				if len(taken) > 0 && rng.IntN(8) == 0 {
					d := taken[max(len(taken)-1-rng.IntN(1000), 0)]
					costs := []int64{rng.Int64N(d[0].Charges()[0].Cost + 1)}
					want = algorithm.Settle(driver.Settlement{Now: r.Now, Charged: d[1], Costs: costs}, []*algorithm.State{state})
					if got, err = b.backend.Settle(t.Context(), driver.Settlement{Now: r.Now, Charged: d[0], Costs: costs}); err != nil {
						t.Fatal(err)
					}
					compareDecisions(t, step, got, want)
				}
				if step%1000 == 0 {
					stored, err := algorithm.Parse([]byte(b.client.Get(t.Context(), key).Val()))
					if err != nil {
						t.Fatal(err)
					}
					got, want := algorithm.Evaluate(r, []*algorithm.State{&stored}), algorithm.Evaluate(r, []*algorithm.State{state})
					compareDecisions(t, step, got, want)
				}
			}
			if n := b.client.StrLen(t.Context(), key).Val(); n > 3000 {
				t.Errorf("a log that has emptied takes %d bytes", n)
			}
		})
	}
}

func compareDecisions(t *testing.T, step int, got, want driver.Decision) {
	t.Helper()
	for i, w := range want.Results() {
		g := got.Results()[i]
		if got.Allowed != want.Allowed || g.Used != w.Used || g.ResetAt != w.ResetAt || g.RetryAt != w.RetryAt {
			t.Fatalf("step %d, limit %d: got  %+v\nthe model says %+v", step, i, g, w)
		}
	}
}

// A short log is charged in one pass. Its key's expiry moves only when its reset time does: if
// a process with a stopped clock extended it, the log would be kept forever.
func TestExpiryOfShortLogs(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	p := policy("core", perHour(1000), log(1000, 2*time.Hour))
	key := b.backend.Locate(p.Charge("alice")).Key
	life := func() time.Duration {
		if _, err := b.Take(t.Context(), p.Charge("alice")); err != nil {
			t.Fatal(err)
		}
		return b.client.PTTL(t.Context(), key).Val()
	}
	if got := life(); got < 119*time.Minute {
		t.Errorf("a charge that counts for two hours is in a key that lives for %v", got)
	}
	b.client.PExpire(t.Context(), key, time.Minute)
	if got := life(); got > time.Minute {
		t.Errorf("a charge in the same ms has made the key live for %v", got)
	}
	b.clock.Advance(time.Millisecond)
	if got := life(); got < 119*time.Minute {
		t.Errorf("a charge a ms later is in a key that lives for %v", got)
	}
	b.clock.Advance(-time.Hour)
	b.client.PExpire(t.Context(), key, time.Minute)
	if got := life(); got > time.Minute {
		t.Errorf("a charge of a clock that stepped back has made the key live for %v", got)
	}
}

// A charge of a long log leaves the key at least the life of the claim in front of it.
func TestClaimOfALongLogLives(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	c := policy("core", log(10_000, time.Minute)).Charge("alice")
	c.Partition = c.Key
	arrive := &handoff.Placement{Backend: 1, Version: 5, Keep: time.Hour, Arrivals: []handoff.Arrival{{Due: true}}}
	if _, err := b.backend.TakeAt(t.Context(), driver.NewRequest(b.clock.Now().UnixMilli(), c), arrive); err != nil {
		t.Fatal(err)
	}
	key := b.backend.Locate(c).Key
	for range 400 { // more than fit in one read
		b.clock.Advance(time.Millisecond)
		if _, err := b.Take(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if value := b.client.Get(t.Context(), key).Val(); value[0] != 8 {
		t.Errorf("the claim is gone: %x", value[:16])
	}
	if got := b.client.PTTL(t.Context(), key).Val(); got < 30*time.Minute {
		t.Errorf("the key lives for %v, and its claim for an hour", got)
	}
}

// The cost of a take does not grow with the log: GET and SET move the whole log only when its
// ring is full.
func TestSequentialTakesOfLongLogsAreFlat(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	p := policy("core", log(quota.MaxLogQuota, time.Hour))
	key := b.backend.Locate(p.Charge("alice")).Key
	take := func() throttler.Decision {
		b.clock.Advance(time.Millisecond)
		d, err := b.Take(t.Context(), p.Charge("alice"))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for range 8000 / 100 {
		var all []driver.Request
		for range 100 {
			b.clock.Advance(time.Millisecond)
			c := p.Charge("alice")
			c.Partition, c.Cost = c.Key, 1
			all = append(all, driver.NewRequest(b.clock.Now().UnixMilli(), c))
		}
		if _, errs := b.backend.TakeTogether(t.Context(), all...); errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
	}
	if err := b.client.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	const takes = 1000
	for range takes {
		take()
	}
	stats := commandStats(t, b.client)
	if n := stats["get"].calls + stats["set"].calls; n > 2 {
		t.Errorf("%d takes of a log of 8,000 charges read or wrote the whole of it %d times", takes, n)
	}
	b.client.PExpire(t.Context(), key, time.Minute)
	take()
	if life := b.client.PTTL(t.Context(), key).Val(); life < 59*time.Minute {
		t.Errorf("a charge that counts for an hour is in a key that lives for %v", life)
	}
	taken := take()
	b.client.PExpire(t.Context(), key, time.Minute)
	if _, err := b.Refund(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	if life := b.client.PTTL(t.Context(), key).Val(); life > time.Minute {
		t.Errorf("a refund has made the key live for %v", life)
	}
	if n := stats["getrange"].calls + stats["setrange"].calls; n > 6*takes {
		t.Errorf("%d GETRANGE and SETRANGE for %d takes", n, takes)
	}
}
