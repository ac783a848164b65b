package memorybackend_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

var t0 = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// bounded returns a throttler over a backend with options o, which logs nothing.
func bounded(o memorybackend.Options) (*throttler.Throttler, *memorybackend.Backend, *clock.Manual) {
	if o.Observer == nil {
		o.Observer = observe.Nothing{}
	}
	b, err := memorybackend.New(&o)
	if err != nil {
		panic(err)
	}
	c := clock.NewManual(t0)
	return throttler.New(b, &throttler.Options{Clock: c}), b, c
}

func hourly(name string, quota int64) *throttler.Policy {
	return &throttler.Policy{Name: name, Limits: []throttler.Limit{{Quota: quota, Window: time.Hour}}}
}

// exhaust takes the quota of p for new keys, from many goroutines, until 1000 takes are pooled.
func exhaust(t *testing.T, th *throttler.Throttler, b *memorybackend.Backend, p *throttler.Policy) {
	t.Helper()
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := 0; b.Stats().PooledTakes < 1000; i++ {
				if i == 100_000 {
					t.Error("nothing is pooled, so exhausted keys must have lost their counts")
					return
				}
				if _, err := th.Take(t.Context(), throttler.Charge{Policy: p, Key: fmt.Sprint("flood", g, " ", i), Cost: p.Limits[0].Quota}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// A flood of new keys, however large, never gives a fresh window to a key that has used up its
// quota.
func TestFloodNeverFreesAnExhaustedKey(t *testing.T) {
	th, b, _ := bounded(memorybackend.Options{MaxKeys: 4096})
	p := hourly("core", 2)
	const exhausted = 64
	for i := range 2 * exhausted {
		if d, err := th.Take(t.Context(), p.Charge("victim"+strconv.Itoa(i/2))); err != nil || !d.Allowed {
			t.Fatalf("allowed %v, error %v", d.Allowed, err)
		}
	}
	for i := range 12_000 {
		if _, err := th.Take(t.Context(), p.Charge("flood"+strconv.Itoa(i))); err != nil {
			t.Fatalf("key %d of the flood: %v; keys that used half of their quota should have made room", i, err)
		}
	}
	for i := range exhausted {
		if d, err := th.Take(t.Context(), p.Charge("victim"+strconv.Itoa(i))); err != nil || d.Allowed {
			t.Errorf("exhausted key %d: allowed %v, error %v after the flood", i, d.Allowed, err)
		}
	}
	if s := b.Stats(); s.PooledTakes != 0 || s.Evicted < 7_500 {
		t.Errorf("%+v; want evictions, and nothing pooled", s)
	}
}

// Nor does it free a key whose charge was refused with some units left.
func TestFloodNeverFreesARefusedKey(t *testing.T) {
	two := hourly("two", 100)
	two.Limits = append(two.Limits, throttler.Limit{Quota: 1000, Window: 24 * time.Hour})
	for _, p := range []*throttler.Policy{hourly("one", 100), two} {
		th, _, _ := bounded(memorybackend.Options{MaxKeys: 1024})
		take := func(key string, cost int64) throttler.Decision {
			d, err := th.Take(t.Context(), throttler.Charge{Policy: p, Key: key, Cost: cost})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		take("victim", 30)
		if take("victim", 80).Allowed {
			t.Fatal("80 of the 70 that are left were allowed")
		}
		for i := range 11_000 {
			take("flood"+strconv.Itoa(i), 60)
		}
		if take("victim", 80).Allowed {
			t.Errorf("%s: the flood freed the refused client", p.Name)
		}
	}
}

// A count that was reset makes room, like a count that was never charged.
func TestResetMakesRoom(t *testing.T) {
	th, b, _ := bounded(memorybackend.Options{MaxKeys: 64})
	p := hourly("core", 1)
	for i := range 64 {
		if _, err := th.Take(t.Context(), p.Charge(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := th.Reset(t.Context(), p.Charge("7")); err != nil {
		t.Fatal(err)
	}
	if _, err := th.Take(t.Context(), p.Charge("new")); err != nil {
		t.Fatal(err)
	}
	if s := b.Stats(); s.PooledTakes != 0 || s.Evicted != 1 {
		t.Errorf("%+v; want that the new key has the place of the one that was reset", s)
	}
}

// Keys that came one after the other, and have used most of their quotas, are not each other's
// only candidates to make room.
func TestSequentialFloodNeverFreesNeighbours(t *testing.T) {
	th, _, _ := bounded(memorybackend.Options{MaxKeys: 20_000})
	core := hourly("core", 60)
	take := func(key string, cost int64) throttler.Decision {
		d, err := th.Take(t.Context(), throttler.Charge{Policy: core, Key: key, Cost: cost})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	const clients = 5000
	for i := range clients {
		take(fmt.Sprint("client ", i), 50)
	}
	for i := range 60_000 {
		take(fmt.Sprint("flood ", i), 1)
	}
	lost := 0
	for i := range clients {
		d := take(fmt.Sprint("client ", i), 1)
		if d.Limit(0).Used != 51 {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d clients that had used 50 of 60 lost their counts", lost, clients)
	}
}

// If all keys have used up their quotas, new keys are pooled: each is limited, some are
// served, and there are no errors.
func TestNewKeysShareCountsWhenFull(t *testing.T) {
	th, b, c := bounded(memorybackend.Options{MaxKeys: 4096})
	p, other := hourly("core", 5), hourly("other", 3)
	exhaust(t, th, b, other)
	newcomer := func(p *throttler.Policy, key string) bool {
		peek, err := th.Peek(t.Context(), p.Charge(key))
		if err != nil {
			t.Fatal(err)
		}
		d, err := th.Take(t.Context(), p.Charge(key))
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed != peek.Allowed {
			t.Fatalf("%s was allowed: %v; a peek just before said %v", key, d.Allowed, peek.Allowed)
		}
		return d.Allowed
	}
	served := 0
	for range 1000 {
		if newcomer(p, "newcomer") {
			served++
		}
	}
	if served != 5 {
		t.Errorf("a newcomer was served %d times of 1000; the quota is 5", served)
	}
	for _, p := range []*throttler.Policy{p, other} {
		served = 0
		for i := range 2000 {
			if newcomer(p, "newcomer"+strconv.Itoa(i)) {
				served++
			}
		}
		if most := 64 * int(p.Limits[0].Quota); served > most || p.Name == "core" && served < most/2 {
			t.Errorf("%d newcomers were served under %q, want up to the quota of 64 pooled counts, %d", served, p.Name, most)
		}
	}
	if s := b.Stats(); s.Keys > 4096 || s.PooledCounts > 2*64 || s.PooledTakes < 5000 {
		t.Errorf("%+v", s)
	}
	c.Advance(time.Hour)
	pooled := b.Stats().PooledTakes
	for i := range 1000 {
		if !newcomer(p, "later"+strconv.Itoa(i)) {
			t.Fatal("a newcomer was refused though the exhausted keys' windows are over")
		}
	}
	if now := b.Stats().PooledTakes; now != pooled {
		t.Errorf("%d takes were pooled though there was room", now-pooled)
	}
}

// isPooled reports whether the charge of d went to a pooled count.
func isPooled(d *throttler.Decision) bool { return d.Driver().Results()[0].Mark.Note != 0 }

func TestFullOfOneExhaustedKey(t *testing.T) {
	th, _, c := bounded(memorybackend.Options{MaxKeys: 1})
	p := hourly("core", 1)
	for _, step := range []struct {
		key     string
		allowed bool
	}{{"a", true}, {"b", true}, {"b", false}, {"a", false}} {
		if d, err := th.Take(t.Context(), p.Charge(step.key)); err != nil || d.Allowed != step.allowed {
			t.Errorf("%s: allowed %v, error %v", step.key, d.Allowed, err)
		}
	}
	c.Advance(time.Hour)
	d, err := th.Take(t.Context(), p.Charge("b"))
	if err != nil || !d.Allowed || isPooled(&d) {
		t.Errorf("after the window: allowed %v, pooled %v, error %v; the dead key should have made room", d.Allowed, isPooled(&d), err)
	}
}

// A chain without room for its keys is all or nothing on pooled counts, and no two of its keys
// are counted in the same one.
func TestChainOfNewKeysWhenFull(t *testing.T) {
	th, _, _ := bounded(memorybackend.Options{MaxKeys: 1})
	full, p := hourly("full", 1), hourly("user", 10)
	if _, err := th.Take(t.Context(), full.Charge("a")); err != nil {
		t.Fatal(err)
	}
	charges := make([]throttler.Charge, quota.MaxCharges)
	for i := range charges {
		charges[i] = throttler.Charge{Policy: p, Key: strconv.Itoa(i), Partition: "acme", Cost: 6}
	}
	charges[3].Cost = 4
	for n, want := range []struct {
		allowed bool
		used    int64 // of charge 3
	}{{true, 4}, {false, 4}, {false, 4}} {
		d, err := th.Take(t.Context(), charges...)
		if err != nil || d.Allowed != want.allowed || d.Limit(3).Used != want.used || d.Limit(0).Used != 6 {
			t.Fatalf("take %d: allowed %v, used %d and %d, error %v; want %+v", n, d.Allowed, d.Limit(3).Used, d.Limit(0).Used, err, want)
		}
	}
}

// A refund goes to the pooled count that was charged, not to a count that the key got later.
func TestRefundOfPooledTake(t *testing.T) {
	for a := throttler.FixedWindow; a <= throttler.LeakyBucket; a++ {
		t.Run(a.String(), func(t *testing.T) {
			th, _, c := bounded(memorybackend.Options{MaxKeys: 1})
			full := &throttler.Policy{Name: "full", Limits: []throttler.Limit{{Quota: 1, Window: time.Minute}}}
			p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour, Algorithm: a}}}
			take := func(p *throttler.Policy, key string, used int64) throttler.Decision {
				t.Helper()
				d, err := th.Take(t.Context(), p.Charge(key))
				if err != nil || !d.Allowed || d.Limit(0).Used != used {
					t.Fatalf("%+v, %v; want used %d", d, err, used)
				}
				return d
			}
			take(full, "a", 1)
			first, second := take(p, "b", 1), take(p, "b", 2)
			if after, err := th.Refund(t.Context(), second); err != nil || after.Limit(0).Used != 1 {
				t.Fatalf("%+v, %v; want used 1", after, err)
			}
			c.Advance(time.Minute)
			take(p, "b", 1)
			if _, err := th.Refund(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			take(p, "b", 2)
		})
	}
}

// A settlement about a part of a decision's charges finds their pooled counts.
func TestRefundOfAPartOfPooledTakes(t *testing.T) {
	th, b, _ := bounded(memorybackend.Options{MaxKeys: 1})
	if _, err := th.Take(t.Context(), hourly("full", 1).Charge("a")); err != nil {
		t.Fatal(err)
	}
	both := []throttler.Charge{hourly("other", 10).Charge("b"), {Policy: hourly("core", 10), Key: "b", Cost: 10}}
	taken, err := th.Take(t.Context(), both...)
	if err != nil || !taken.Allowed || !isPooled(&taken) {
		t.Fatalf("%+v, %v; want that it is allowed, and pooled", taken, err)
	}
	whole := taken.Driver()
	part := driver.NewDecision(whole.Request.Part([]int{1}).Request)
	copy(part.Results(), whole.ResultsOf(1))
	if _, err := b.Settle(t.Context(), driver.Settlement{Now: whole.Request.Now, Charged: part, Costs: []int64{0}}); err != nil {
		t.Fatal(err)
	}
	if d, err := th.Take(t.Context(), both...); err != nil || !d.Allowed {
		t.Errorf("after a refund of 10 of 10: %+v, %v", d, err)
	}
}

// Random takes of many keys with a small MaxKeys, while clocks step back: there are no errors,
// no key that has used up its own count is served before its window ends, and at most MaxKeys
// keys are kept.
func TestSequentialRandomTakesOnFewPlaces(t *testing.T) {
	rng := testseed.Rand(t, 0)
	for range 10 {
		maxKeys := 1 + rng.IntN(40)
		th, b, c := bounded(memorybackend.Options{MaxKeys: maxKeys})
		policies := []*throttler.Policy{hourly("a", 2), hourly("b", 3), {Name: "c", Limits: []throttler.Limit{
			{Quota: 5, Window: time.Minute}, {Quota: 9, Window: time.Hour}, {Quota: 20, Window: 24 * time.Hour},
		}}}
		type id struct{ policy, key string }
		until := make(map[id]time.Time)
		var latest time.Time // a count may be dropped once its window has ended
		for range 5000 {
			p := policies[rng.IntN(len(policies))]
			charge := p.Charge("key" + strconv.Itoa(rng.IntN(3*maxKeys)))
			d, err := th.Take(t.Context(), charge)
			if err != nil {
				t.Fatal(err)
			}
			client := id{p.Name, charge.Key}
			if d.At().After(latest) {
				latest = d.At()
			}
			if d.Allowed && latest.Before(until[client]) && !isPooled(&d) {
				t.Fatalf("%v was served at %v with a count of its own, which is used up until %v", client, d.At(), until[client])
			}
			if d.Allowed && !isPooled(&d) {
				for _, l := range d.Limits() {
					if l.Remaining == 0 && l.ResetAt.After(until[client]) {
						until[client] = l.ResetAt
					}
				}
			}
			if s := b.Stats(); s.Keys > maxKeys {
				t.Fatalf("%d keys are kept, MaxKeys is %d", s.Keys, maxKeys)
			}
			c.Advance(time.Duration(rng.Int64N(int64(2*time.Minute))) - 50*time.Second)
		}
	}
}

// The bounds hold for bytes of the heap.
func TestSequentialHeapIsBounded(t *testing.T) {
	for _, test := range []struct {
		name    string
		options memorybackend.Options
		limits  []throttler.Limit
		keys    int
		takes   int // of each key
		key     func(i int) string
		most    int64 // bytes of the heap
		kept    int   // keys, at least
	}{
		{
			name: "many keys", options: memorybackend.Options{MaxKeys: 60_000}, keys: 50_000, takes: 1,
			limits: []throttler.Limit{{Quota: 60, Window: time.Hour}},
			key:    func(i int) string { return "user:" + strconv.Itoa(i) }, most: 8 << 20, kept: 50_000,
		},
		{
			name: "long keys", options: memorybackend.Options{}, keys: 4000, takes: 1,
			limits: []throttler.Limit{{Quota: 60, Window: time.Hour}},
			key:    func(i int) string { return strings.Repeat("k", 10_000) + strconv.Itoa(i) }, most: 840 << 10, kept: 4000,
		},
		{
			name: "bytes before keys", options: memorybackend.Options{MaxBytes: 4 << 20}, keys: 50_000, takes: 1,
			limits: []throttler.Limit{{Quota: 60, Window: time.Hour}},
			key:    func(i int) string { return "user:" + strconv.Itoa(i) }, most: 4 << 20, kept: 20_000,
		},
		{
			name: "many limits", options: memorybackend.Options{MaxBytes: 4 << 20}, keys: 20_000, takes: 1,
			limits: []throttler.Limit{
				{Quota: 60, Window: time.Hour}, {Quota: 60, Window: time.Minute}, {Quota: 60, Window: time.Second},
				{Quota: 60, Window: time.Hour, Algorithm: throttler.TokenBucket}, {Quota: 60, Window: time.Hour, Algorithm: throttler.SlidingWindow},
			},
			key: func(i int) string { return "user:" + strconv.Itoa(i) }, most: 4 << 20, kept: 2_000,
		},
		{
			name: "exhausted logs", options: memorybackend.Options{MaxBytes: 2 << 20}, keys: 100, takes: 1000,
			limits: []throttler.Limit{{Quota: 1000, Window: time.Hour, Algorithm: throttler.SlidingLog}},
			key:    func(i int) string { return "user:" + strconv.Itoa(i) }, most: 2 << 20, kept: 25,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := heap()
			th, b, c := bounded(test.options)
			p := &throttler.Policy{Name: "core", Limits: test.limits}
			for i := range test.keys {
				charge := p.Charge(test.key(i))
				for range test.takes {
					if _, err := th.Take(context.Background(), charge); err != nil {
						t.Fatal(err)
					}
					if test.takes > 1 {
						c.Advance(time.Millisecond)
					}
				}
			}
			used := heap() - before
			s := b.Stats()
			t.Logf("%.1f MB of the heap, %d bytes a key; %+v", float64(used)/(1<<20), used/int64(s.Keys), s)
			if used > test.most {
				t.Errorf("%d bytes of the heap, want at most %d", used, test.most)
			}
			if s.Keys < test.kept {
				t.Errorf("%d keys are kept, want at least %d", s.Keys, test.kept)
			}
			runtime.KeepAlive(b)
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The memory of charges that have left a log is freed.
func TestSequentialLogsThatShrink(t *testing.T) {
	before := heap()
	th, b, c := bounded(memorybackend.Options{})
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1000, Window: time.Minute, Algorithm: throttler.SlidingLog}}}
	const keys = 200
	for range 1000 {
		for i := range keys {
			if _, err := th.Take(t.Context(), p.Charge(strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
		c.Advance(time.Millisecond)
	}
	full := heap() - before
	c.Advance(time.Minute)
	for i := range keys {
		if d, err := th.Take(t.Context(), p.Charge(strconv.Itoa(i))); err != nil || d.Limit(0).Used != 1 {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	if used := heap() - before; used > full/10 {
		t.Errorf("%d bytes of the heap after the charges left the logs, %d before", used, full)
	}
	runtime.KeepAlive(b)
}

// A log without room to grow continues to count in coarser steps, and never allows more than
// the quota in a window.
func TestSequentialLogsWithoutRoom(t *testing.T) {
	th, b, c := bounded(memorybackend.Options{MaxBytes: memorybackend.MinMaxBytes})
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5000, Window: time.Hour, Algorithm: throttler.SlidingLog}}}
	allowed := make(map[string]int)
	for i := range 20 * 6000 {
		key := strconv.Itoa(i % 20)
		d, err := th.Take(t.Context(), p.Charge(key))
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			allowed[key]++
		}
		if i%20 == 0 {
			c.Advance(time.Millisecond)
		}
	}
	for key, n := range allowed {
		if n != 5000 {
			t.Errorf("key %s was served %d times in a window; the quota is 5000", key, n)
		}
	}
	if s := b.Stats(); s.Bytes > memorybackend.MinMaxBytes || s.Keys != 20 {
		t.Errorf("%+v", s)
	}
}

func TestOptions(t *testing.T) {
	for _, bad := range []*memorybackend.Options{{MaxKeys: -1}, {MaxBytes: -1}, {MaxBytes: memorybackend.MinMaxBytes - 1}} {
		if _, err := memorybackend.New(bad); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", bad, err)
		}
	}
	for _, good := range []*memorybackend.Options{nil, {}, {MaxKeys: 1, MaxBytes: memorybackend.MinMaxBytes}} {
		if _, err := memorybackend.New(good); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
}
