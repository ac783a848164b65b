package redisbackend_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/testkit/skewed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// The script stores the same states as package algorithm, byte for byte when both are in the
// forms that the package writes.
func TestStoredBytes(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	policies := []*throttler.Policy{
		policy("all", perHour(1<<40)), policy("aligned", throttler.Limit{Quota: 9, Window: time.Minute, Aligned: true}),
		policy("long", throttler.Limit{Quota: 9, Window: 100 * time.Hour}),
	}
	for _, a := range quota.Algorithms() {
		l := throttler.Limit{Quota: 7, Window: 997 * time.Millisecond, Algorithm: a}
		policies = append(policies, policy(a.String(), l))
		policies[0].Limits = append(policies[0].Limits, l)
	}
	for _, p := range policies {
		c := p.Charge("alice")
		c.Partition = c.Key
		c.Cost = 2
		key, state := b.backend.Locate(c).Key, new(algorithm.State)
		for step := range 6 {
			b.clock.Advance(250 * time.Millisecond)
			d, err := b.Take(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			ours := algorithm.Take(driver.NewRequest(d.At().UnixMilli(), c), []*algorithm.State{state})
			if step == 3 {
				if _, err := b.Settle(t.Context(), d, 1); err != nil {
					t.Fatal(err)
				}
				algorithm.Settle(driver.Settlement{Now: d.At().UnixMilli(), Charged: ours, Costs: []int64{1}}, []*algorithm.State{state})
			}
			stored, err := algorithm.Parse([]byte(b.client.Get(t.Context(), key).Val()))
			if got, want := stored.Append(nil), state.Append(nil); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("policy %s, step %d: stored %x, %v; want %x", p.Name, step, got, err, want)
			}
		}
	}
}

// Doubles are exact up to 2^53, and so are buckets of that many units.
func TestFractionsOfLargeBuckets(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	for _, a := range []quota.Algorithm{throttler.TokenBucket, throttler.LeakyBucket} {
		c := policy(a.String(), throttler.Limit{Quota: 1<<53 - 1, Window: time.Second, Algorithm: a}).Charge("alice")
		c.Partition = c.Key
		state := new(algorithm.State)
		for step := range 40 {
			c.Cost = 1<<44 + 1234567*int64(step)
			got, err := b.backend.Take(t.Context(), driver.NewRequest(t0.UnixMilli(), c))
			if err != nil {
				t.Fatal(err)
			}
			want := algorithm.Take(driver.NewRequest(t0.UnixMilli(), c), []*algorithm.State{state})
			if g, w := got.Results()[0].Mark, want.Results()[0].Mark; g != w {
				t.Fatalf("%v, step %d: charged up to %+v, want %+v", a, step, g, w)
			}
		}
	}
}

// A kind that this version does not know is an error, and nothing is written.
func TestUnknownKinds(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	for name, p := range map[string]*throttler.Policy{
		"a fixed window": policy("core", perHour(10)),
		"a sliding log":  policy("core", throttler.Limit{Quota: 10, Window: time.Hour, Algorithm: throttler.SlidingLog}),
	} {
		t.Run(name, func(t *testing.T) { b.unknownKinds(t, p) })
	}
}

func (b *bench) unknownKinds(t *testing.T, p *throttler.Policy) {
	c := p.Charge("alice")
	c.Partition = c.Key
	key := b.backend.Locate(c).Key
	b.client.Del(t.Context(), key)
	r := driver.NewRequest(t0.UnixMilli(), c)
	taken, err := b.Take(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	settlement := driver.Settlement{Now: t0.UnixMilli(), Charged: *taken.Driver(), Costs: []int64{0}}
	placements := map[string]*handoff.Placement{
		"settled": {Backend: 1, Version: 1},
	}
	for name, value := range map[string]string{
		"a row of a kind to come":           "\x0d\x00\x00\x00\x00\x00\x01" + strings.Repeat("\x00", 13),
		"more records than a state has":     strings.Repeat("\x01\x00\x00\x00\x00\x03\xe8"+strings.Repeat("\x00", 13), 40),
		"three bytes":                       "abc",
		"a log that is cut short":           "\x0a\x00\x1a\x04\x00\x00\x00\x00\x03\xe8" + "\x00\x00\x00\x09" + strings.Repeat("\x00", 20),
		"digits of a code to come":          "9010000000000000001",
		"digits of no window":               "2000000000000000001",
		"digits that begin with 0":          "0600000000000000001",
		"almost digits":                     "1600000000000000.01",
		"letters":                           "1600000000000000abc",
		"a ring of too few slots":           "\x0a\x00\x1a\x04\x00\x00\x00\x00\x03\xe8" + "\x00\x00\x00\x02" + strings.Repeat("\x00", 7) + "\x00\x00\x00\x00\x00\x00\x00\x01" + strings.Repeat("\x01", 10),
		"a ring that is cut short":          "\x0a\x00\x1a\x04\x00\x00\x00\x00\x03\xe8" + "\x00\x00\x00\x02" + strings.Repeat("\x00", 7) + "\x00\x00\x00\x00\x00\x00\x01\x90" + strings.Repeat("\x01", 3990),
		"a ring and more":                   "\x0a\x00\x1a\x04\x00\x00\x00\x00\x03\xe8" + "\x00\x00\x00\x02" + strings.Repeat("\x00", 7) + "\x00\x00\x00\x00\x00\x00\x01\x90" + strings.Repeat("\x01", 4001),
		"a ring that begins behind its end": "\x0a\x00\x1a\x04\x00\x00\x00\x00\x03\xe8" + "\x00\x00\x00\x02" + strings.Repeat("\x00", 7) + "\x00\x00\x01\x90\x00\x00\x01\x90" + strings.Repeat("\x01", 4000),
		"rows that are longer than all":     "\x0a\xff\xff\x04\x00\x00\x00\x00\x03\xe8" + strings.Repeat("\x00", 3000),
		"a row of kind 0":                   strings.Repeat("\x00", 20),
		"a row of a kind to come, claimed":  "\x08" + strings.Repeat("\xff", 12) + "\x0d\x00\x00\x00\x00\x00\x01" + strings.Repeat("\x00", 13),
	} {
		b.client.Set(t.Context(), key, value, 0)
		b.checkForeign(t, name, c, settlement, placements)
		if got := b.client.Get(t.Context(), key).Val(); got != value {
			t.Errorf("%s: %x was stored, and has become %x", name, value, got)
		}
	}
	b.client.Del(t.Context(), key)
	b.client.RPush(t.Context(), key, "a", "b")
	b.checkForeign(t, "a list", c, settlement, placements)
	b.client.Del(t.Context(), key)
	b.client.HSet(t.Context(), key, "a", "b")
	b.checkForeign(t, "a hash", c, settlement, placements)
	b.client.Del(t.Context(), key)
	arrival := &handoff.Placement{Backend: 1, Version: 1, Keep: time.Minute, Arrivals: []handoff.Arrival{{Due: true, State: bytes.Repeat([]byte{13}, 20), ReleaseVersion: 1}}}
	if _, err := b.backend.TakeAt(t.Context(), r, arrival); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("an arrival of an unknown kind: %v", err)
	}
	if n := b.client.Exists(t.Context(), key).Val(); n != 0 {
		t.Error("an arrival of an unknown kind was stored")
	}
}

// checkForeign checks that every call about c fails, and says why.
func (b *bench) checkForeign(t *testing.T, name string, c throttler.Charge, settlement driver.Settlement, placements map[string]*handoff.Placement) {
	t.Helper()
	r := driver.NewRequest(t0.UnixMilli(), c)
	check := func(call string, err error) {
		t.Helper()
		if !errors.Is(err, throttler.ErrUnavailable) || !strings.Contains(err.Error(), "newer version") {
			t.Errorf("%s: %s: %v; want ErrUnavailable, and why", name, call, err)
		}
	}
	_, err := b.Take(t.Context(), c)
	check("Take", err)
	_, err = b.Peek(t.Context(), c)
	check("Peek", err)
	_, err = b.backend.Settle(t.Context(), settlement)
	check("Settle", err)
	for kind, p := range placements {
		_, err = b.backend.TakeAt(t.Context(), r, p)
		check("TakeAt, "+kind, err)
		_, err = b.backend.SettleAt(t.Context(), settlement, p)
		check("SettleAt, "+kind, err)
	}
	_, err = b.backend.Release(t.Context(), handoff.ReleaseRequest{Now: t0.UnixMilli(), Charges: r.Charges(), To: 2, Version: 1 << 47})
	check("Release", err) // even if a newer version has placed the count
}

// A reset replaces a value that is no count, whatever its type. Then its key counts and expires
// as any other, and a refund of a charge from before does nothing.
func TestResetOfUnreadableValues(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	window := throttler.Limit{Quota: 10, Window: time.Hour, Aligned: true}
	log := throttler.Limit{Quota: 10, Window: time.Hour, Algorithm: throttler.SlidingLog}
	for name, write := range map[string]func(key string) error{
		"text":   func(key string) error { return b.client.Set(t.Context(), key, "hello", 0).Err() },
		"digits": func(key string) error { return b.client.Set(t.Context(), key, "9010000000000000001", 0).Err() },
		"a claim and text": func(key string) error {
			return b.client.Set(t.Context(), key, "\x08"+strings.Repeat("\xff", 12)+"hello", 0).Err()
		},
		"half a claim": func(key string) error { return b.client.Set(t.Context(), key, "\x08", time.Hour).Err() },
		"a list":       func(key string) error { return b.client.RPush(t.Context(), key, "a").Err() },
		"a hash":       func(key string) error { return b.client.HSet(t.Context(), key, "a", "b").Err() },
	} {
		for _, limits := range [][]throttler.Limit{{window}, {log}, {window, log}} {
			for _, p := range []*handoff.Placement{nil, {Backend: 1, Version: 5, Keep: time.Minute}} {
				c, good := policy("core", limits...).Charge("alice"), policy("good", limits...).Charge("alice")
				c.Partition, good.Partition = c.Key, good.Key
				key := b.backend.Locate(c).Key
				b.client.FlushAll(t.Context())
				before, err := b.Take(t.Context(), c, good)
				if err != nil {
					t.Fatal(err)
				}
				b.client.Del(t.Context(), key)
				if err := write(key); err != nil {
					t.Fatal(err)
				}
				if err := b.backend.ResetAt(t.Context(), driver.NewRequest(b.clock.Now().UnixMilli(), c, good), p); err != nil {
					t.Errorf("%s under %v, placed by %v: %v", name, limits, p, err)
					continue
				}
				for want := int64(1); want <= 2; want++ {
					if d, err := b.Take(t.Context(), c, good); err != nil || d.Limit(0).Used != want || d.Limit(len(limits)).Used != want {
						t.Errorf("%s under %v: after the reset, take %d: %v, %v", name, limits, want, d, err)
					}
				}
				if _, err := b.Refund(t.Context(), before); err != nil {
					t.Error(err)
				}
				if d, err := b.Peek(t.Context(), c); err != nil || d.Limit(0).Used != 2 {
					t.Errorf("%s under %v: after a refund of a take from before the reset, %v, %v; want 2 used", name, limits, d, err)
				}
				if ttl := b.client.PTTL(t.Context(), key).Val(); ttl < 0 || ttl > 2*time.Hour {
					t.Errorf("%s under %v: the key lives for %v", name, limits, ttl)
				}
			}
		}
	}
}

// An arriving count written by processes with clocks that are years off lives no longer than
// its limits allow, even if a settlement here adds to it.
func TestArrivalFromStrayClocks(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	now := b.clock.Now()
	for i, s := range skewed.Counts(now) {
		c := s.Charge
		c.Key = fmt.Sprint("alice", i)
		c.Partition = c.Key
		lives := func(what string, most time.Duration) {
			t.Helper()
			if got := b.client.PTTL(t.Context(), b.backend.Locate(c).Key).Val(); got < 0 || got > most+2*algorithm.Margin {
				t.Errorf("%s, %s: the key lives for %v, want at most %v", s.Name, what, got, most)
			}
		}
		arrive := &handoff.Placement{Backend: 1, Version: 5, Keep: time.Minute, Arrivals: []handoff.Arrival{{Due: true, State: s.State, ReleaseVersion: 4}}}
		d, err := b.backend.TakeAt(t.Context(), driver.NewRequest(now.UnixMilli(), c), arrive)
		if err != nil {
			t.Fatal(err)
		}
		lives("arrived", s.Most+time.Hour) // with one more charge
		if !d.Allowed {
			continue
		}
		more := driver.Settlement{Now: now.UnixMilli(), Charged: d, Costs: []int64{11}}
		if _, err := b.backend.SettleAt(t.Context(), more, &handoff.Placement{Backend: 1, Version: 5}); err != nil {
			t.Fatal(err)
		}
		lives("settled", s.Most+2*time.Hour)
		if _, err := b.backend.Release(t.Context(), handoff.ReleaseRequest{Now: now.UnixMilli(), Charges: []quota.Charge{c}, To: 2, Version: 6, Keep: time.Minute}); err != nil {
			t.Fatal(err)
		}
		lives("released", s.Most+2*time.Hour)
	}
}

// After rollout is removed, counts that moved continue, wherever they are.
func TestPlainDecisionsContinueBehindClaims(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	core := policy("core", throttler.Limit{Quota: 10, Window: time.Minute})
	mixed := policy("mixed", perHour(10), throttler.Limit{Quota: 10, Window: time.Minute, Algorithm: throttler.TokenBucket})
	for _, p := range []*throttler.Policy{core, mixed} {
		c := p.Charge("alice")
		c.Partition = c.Key
		r := driver.NewRequest(b.clock.Now().UnixMilli(), c)
		key := b.backend.Locate(c).Key
		arrive := &handoff.Placement{Backend: 1, Version: 5, Keep: time.Hour, Arrivals: []handoff.Arrival{{Due: true}}}
		if _, err := b.backend.TakeAt(t.Context(), r, arrive); err != nil {
			t.Fatal(err)
		}
		ttl := b.client.PTTL(t.Context(), key).Val()
		b.clock.Advance(2 * time.Minute) // core's window has ended, and the claim has not
		want := int64(2)
		if p == core {
			want = 1
		}
		if d, err := b.Take(t.Context(), c); err != nil || d.Limit(0).Used != want {
			t.Errorf("policy %s: used %d, %v; want %d", p.Name, d.Limit(0).Used, err, want)
		}
		if value := b.client.Get(t.Context(), key).Val(); value[0] != 8 {
			t.Errorf("policy %s: the claim is gone: %x", p.Name, value)
		}
		if got := b.client.PTTL(t.Context(), key).Val(); got < ttl-time.Minute {
			t.Errorf("policy %s: the key has %v to live, less than its claim's %v", p.Name, got, ttl)
		}
		release := handoff.ReleaseRequest{Now: b.clock.Now().UnixMilli(), Charges: r.Charges(), To: 2, Version: 6, Keep: time.Hour}
		if _, err := b.backend.Release(t.Context(), release); err != nil {
			t.Fatal(err)
		}
		var elsewhere *handoff.ElsewhereError
		if _, err := b.backend.TakeAt(t.Context(), r, &handoff.Placement{Backend: 1, Version: 5}); !errors.As(err, &elsewhere) || elsewhere.Counts[0].Owner != 2 {
			t.Errorf("policy %s: %v, want a count elsewhere", p.Name, err)
		}
		if d, err := b.Take(t.Context(), c); err != nil || d.Limit(0).Used != want+1 {
			t.Errorf("policy %s: used %d, %v; want %d", p.Name, d.Limit(0).Used, err, want+1)
		}
	}
}
