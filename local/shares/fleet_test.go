package shares

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/local/shares/internal/division"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// counted counts messages.
type counted struct {
	observe.Nothing
	sent, failed atomic.Int64
}

func (c *counted) Sent(e observe.Sent) {
	if e.Backend != "shares" || e.Shard == "" {
		panic("a message of nowhere")
	}
	c.sent.Add(1)
	if e.Err != nil {
		c.failed.Add(1)
	}
}

// fleet starts n backends that know each other over HTTP, except the last missing ones.
func fleet(t *testing.T, policy *throttler.Policy, n, missing int, observer observe.Observer) []*Backend {
	t.Helper()
	list := division.List{Epoch: 1}
	listeners := make([]net.Listener, n)
	for i := range n {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listeners[i].Close() })
		list.Members = append(list.Members, listeners[i].Addr().String())
	}
	var all []*Backend
	for i := range n - missing {
		h, err := NewHTTP(list.Members[i], testKey, nil)
		if err != nil {
			t.Fatal(err)
		}
		// A round waits half a refresh for reports: they take some time on a busy machine.
		b, err := New(list.Members[i], list, h, []*throttler.Policy{policy}, &Options{Refresh: 200 * time.Millisecond, Observer: observer})
		if err != nil {
			t.Fatal(err)
		}
		h.Serve(listeners[i], b.Receive)
		t.Cleanup(h.Close)
		t.Cleanup(b.Close)
		all = append(all, b)
	}
	return all
}

// await returns once right returns true.
func await(t *testing.T, what string, right func() bool) {
	t.Helper()
	for begin := time.Now(); !right(); {
		if time.Since(begin) > 2*time.Minute {
			t.Fatalf("after 2m, not yet: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Backends that talk over HTTP give their shares to the backend with the demand, and together
// admit no more than one bucket would.
func TestFleet(t *testing.T) {
	const quota, window, burst = 300, time.Second, 60
	policy, observer := tokens("core", quota, window, burst), new(counted)
	all := fleet(t, policy, 3, 0, observer)
	for _, b := range all {
		await(t, "it holds shares", b.holds.Load)
	}
	charge := policy.Charge("alice")
	charge.Partition = charge.Key
	begin := time.Now()
	var admitted atomic.Int64
	var busy sync.WaitGroup
	var asked atomic.Int64
	for i, b := range all {
		busy.Go(func() {
			for time.Since(begin) < 2*window {
				if int(asked.Load()) != i {
					time.Sleep(time.Millisecond)
					continue
				}
				d, err := b.Take(t.Context(), driver.NewRequest(time.Now().UnixMilli(), charge))
				if err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					admitted.Add(1)
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	for i := range all {
		asked.Store(int64(i))
		await(t, "the one that is asked has most units", func() bool {
			return time.Since(begin) > 2*window || all[i].Status().Quotas[0].Keys[hashed("alice")] > quota*8/10
		})
	}
	busy.Wait()
	took := time.Since(begin)
	if n, most := admitted.Load(), burst+int64(math.Ceil(quota*took.Seconds()/window.Seconds())); n > most || n == 0 {
		t.Errorf("%d were admitted in %v; want at most %d, and not none", n, took, most)
	}
	if n, failed := observer.sent.Load(), observer.failed.Load(); n == 0 || failed == n {
		t.Errorf("the observer saw %d messages, of which %d failed", n, failed)
	}
}

// Before its first shares a process decides nothing. That is an error, not a refusal, so that a
// fallback can decide.
func TestUnavailableWithoutShares(t *testing.T) {
	policy := tokens("core", 300, time.Second, 0)
	b := fleet(t, policy, 2, 1, nil)[0]
	th := throttler.New(b, nil)
	var unavailable *driver.UnavailableError
	if _, err := th.Take(t.Context(), policy.Charge("alice")); !errors.As(err, &unavailable) || unavailable.Backend != "shares" {
		t.Errorf("Take: %v; want an UnavailableError", err)
	}
	if _, err := th.Peek(t.Context(), policy.Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("Peek: %v; want an error that wraps ErrUnavailable", err)
	}
	// An operator leaves out the missing member.
	s := b.Status()
	if err := b.SetList(division.List{Epoch: 2, Members: []string{s.Self}}); err != nil {
		t.Fatal(err)
	}
	await(t, "it holds all shares", func() bool { return b.Status().Quotas[0].Units == 300 })
	if d, err := th.Take(t.Context(), policy.Charge("alice")); err != nil || !d.Allowed {
		t.Errorf("Take: %v, %v; want an allowed one", &d, err)
	}
	if err := b.SetList(division.List{Epoch: 3, Members: []string{"127.0.0.1:1"}}); err != nil {
		t.Fatal(err)
	}
	await(t, "it holds nothing when it is left out", func() bool { return !b.holds.Load() })
	if _, err := th.Take(t.Context(), policy.Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("Take: %v; want an error that wraps ErrUnavailable", err)
	}
	if err := b.SetList(division.List{Epoch: 3, Members: []string{s.Self}}); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("SetList of the same epoch: %v; want an error that wraps ErrInvalid", err)
	}
}

// Many keys of an attacker neither grow the table without bound nor push out keys that have
// used up their shares. While there is room, no key with used units is forgotten.
func TestSequentialKeysAreBounded(t *testing.T) {
	g := newGroup(t, tokens("hour", 10, time.Hour, 0), 1, Options{MaxKeys: 1 << 12})
	g.divide([]division.Share{{Units: 10}})
	b := g.backends[0]
	for range 10 {
		g.take(0, "victim", 1)
	}
	for i := range 50_000 {
		g.take(0, "attacker-"+strconv.Itoa(i), 1)
	}
	keys, evicted := 0, int64(0)
	for i := range b.stripes {
		keys += len(b.stripes[i].Values())
		evicted += b.stripes[i].evicted
	}
	if keys > 1<<12 || evicted == 0 {
		t.Errorf("%d keys are kept, and %d were evicted; want at most %d", keys, evicted, 1<<12)
	}
	if g.take(0, "victim", 1).Allowed {
		t.Error("the victim's bucket is fresh")
	}
	g.clock.Advance(59 * time.Minute)
	b.sweep()
	if g.take(0, "victim", 10).Allowed {
		t.Error("the victim's bucket is full after 59 of 60 minutes")
	}
	g.clock.Advance(2 * time.Hour)
	b.sweep()
	for i := range b.stripes {
		if n := len(b.stripes[i].Values()); n != 0 {
			t.Fatalf("%d keys are kept whose buckets are full", n)
		}
	}
}

// Old shares are not kept for keys without requests.
func TestOldSharesAreForgotten(t *testing.T) {
	g := newGroup(t, tokens("hour", 10, time.Hour, 0), 1, Options{})
	g.divide([]division.Share{{Units: 10}})
	g.take(0, "alice", 5)
	b := g.backends[0]
	e := b.stripeOf("alice").Values()[0]
	for i := range int64(20) {
		g.divide([]division.Share{{Units: 1 + i%10}})
	}
	b.sweep()
	if e.shares != b.policies[0].shares.Load() || e.shares.next.Load() != nil {
		t.Error("after a sweep, a key keeps the shares that it was last asked under")
	}
}

func TestBadArguments(t *testing.T) {
	ok := []*throttler.Policy{tokens("core", 100, time.Second, 0)}
	list := division.List{Epoch: 1, Members: []string{"127.0.0.1:1", "127.0.0.1:2"}}
	with := func(l throttler.Limit) []*throttler.Policy {
		return []*throttler.Policy{{Name: "p", Limits: []throttler.Limit{l}}}
	}
	h, err := NewHTTP("127.0.0.1:1", testKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		list     division.List
		policies []*throttler.Policy
		options  *Options
		text     string
	}{
		{list, nil, nil, "policies is empty"},
		{list, []*throttler.Policy{nil}, nil, "policies[0] is nil"},
		{list, with(throttler.Limit{}), nil, "policies[0]"},
		{list, append(ok, ok...), nil, "names must differ"},
		{list, with(throttler.Limit{Quota: 10, Window: time.Second}), nil, "it must be a token-bucket"},
		{list, with(throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.SlidingLog}), nil, "it must be a token-bucket"},
		{list, with(throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket}), nil, "one order"},
		{list, with(throttler.Limit{Quota: 1 << 22, Window: time.Second, Algorithm: throttler.TokenBucket}), nil, "the quota must be at most 4194303, because a bucket counts no further"},
		{list, with(throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 1 << 22}), nil, "the burst must be at most 4194303"},
		{list, with(throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 1}), nil, "at least 2, a unit for each member"},
		{division.List{Epoch: 1}, ok, nil, ""},
		{division.List{Members: list.Members}, ok, nil, ""},
		{list, ok, &Options{Refresh: time.Millisecond}, "Refresh is 1ms"},
		{list, ok, &Options{HotKeys: 1000}, "Keys is 1000"},
		{list, ok, &Options{MaxKeys: 1}, "MaxKeys is 1"},
	} {
		b, err := New("127.0.0.1:1", c.list, h, c.policies, c.options)
		if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("New: %v; want an error that wraps ErrInvalid and says %q", err, c.text)
		}
		if err == nil {
			b.Close()
		}
	}
	g := newGroup(t, ok[0], 1, Options{})
	g.divide([]division.Share{{Units: 100}})
	var many division.List
	for i := range 101 {
		many.Members = append(many.Members, strconv.Itoa(i))
	}
	if err := g.backends[0].SetList(many); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "at least 101, a unit for each member") {
		t.Errorf("SetList of 101 members for a quota of 100: %v; want an error that says so", err)
	}
	other := tokens("other", 1, time.Second, 0).Charge("a")
	if _, err := g.backends[0].Take(t.Context(), driver.NewRequest(g.clock.Now().UnixMilli(), other)); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("Take of an unknown policy: %v; want an error that wraps ErrInvalid", err)
	}
	for _, l := range []throttler.Limit{
		{Quota: 5000, Window: time.Second, Algorithm: throttler.TokenBucket},
		{Quota: 100, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 10},
	} {
		paid := with(l)[0]
		paid.Name = "core"
		r := driver.NewRequest(g.clock.Now().UnixMilli(), ok[0].Charge("a"), paid.Charge("a"))
		if d, err := g.backends[0].Take(t.Context(), r); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "charge 1 is of policy") {
			t.Errorf("Take of other limits, %v: %v, %v; want an error that wraps ErrInvalid", l, &d, err)
		}
	}
	if d, err := g.backends[0].Take(t.Context(), driver.NewRequest(g.clock.Now().UnixMilli(), tokens("core", 100, time.Second, 0).Charge("a"))); err != nil || !d.Allowed {
		t.Errorf("Take of a copy of the policy: %v, %v; want an allowed one", &d, err)
	}
	for _, now := range []int64{math.MinInt64, 0, driver.NeverFits, math.MaxInt64} {
		if d, err := g.backends[0].Take(t.Context(), driver.NewRequest(now, ok[0].Charge(fmt.Sprint("at ", now)))); err != nil || !d.Allowed || d.Results()[0].Used < 1 {
			t.Errorf("Take at %d ms: %v, %v; want an allowed one", now, &d, err)
		}
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.backends[0].Take(done, driver.NewRequest(g.clock.Now().UnixMilli(), ok[0].Charge("a"))); !errors.Is(err, context.Canceled) {
		t.Errorf("Take with a done context: %v", err)
	}
}
