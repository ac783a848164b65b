package synced

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A single process decides as the algorithms do. Doubles round, so the used units of a bucket
// may be one off, and an instant a millisecond.
func TestSequentialOneProcessIsExact(t *testing.T) {
	policy := &throttler.Policy{Name: "both", Limits: []throttler.Limit{
		{Quota: 7, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 20},
		{Quota: 30, Window: 5 * time.Second, Aligned: true},
	}}
	f := newFleet(t, 1, 1, Options{})
	th, elapsed, state := f.processes[0].throttler, time.Duration(0), new(algorithm.State)
	for step := range 5000 {
		elapsed += time.Duration(f.random.IntN(400)) * time.Millisecond
		f.advance(elapsed)
		charge := policy.Charge("alice")
		charge.Cost, charge.Partition = 1+f.random.Int64N(4), charge.Key
		if f.random.IntN(4) == 0 {
			charge.Mode = []quota.Mode{quota.Record, quota.Check, quota.AtMost}[f.random.IntN(3)]
		}
		d, err := th.Take(t.Context(), charge)
		if err != nil {
			t.Fatal(err)
		}
		want := decision.FromDriver(algorithm.Take(driver.NewRequest(d.At().UnixMilli(), charge), []*algorithm.State{state}))
		if d.Allowed != want.Allowed || d.Charges()[0].Cost != want.Charges()[0].Cost {
			t.Fatalf("step %d, %v: %v at %d, the algorithms say %v at %d", step, charge.Mode, d, d.Charges()[0].Cost, want, want.Charges()[0].Cost)
		}
		for i, s := range d.Limits() {
			w := want.Limit(i)
			if s.Used-w.Used > 1 || w.Used-s.Used > 1 || s.Refused != w.Refused || apart(s.RetryAt, w.RetryAt) > time.Millisecond || apart(s.ResetAt, w.ResetAt) > time.Millisecond {
				t.Fatalf("step %d, limit %d:\n%+v, the algorithms say\n%+v", step, i, s, w)
			}
			if s.Used == w.Used && apart(s.NextAt, w.NextAt) > time.Millisecond || s.Refused && s.Cost == 1 && !s.NextAt.Equal(s.RetryAt) {
				t.Fatalf("step %d, limit %d: next at %v of\n%+v, the algorithms say %v", step, i, s.NextAt, s, w.NextAt)
			}
		}
	}
}

// A bucket with a thousandth of a unit more than 14 in use reports 15.
func TestAThousandthOfAUnit(t *testing.T) {
	policy := &throttler.Policy{Name: "bucket", Limits: []throttler.Limit{
		{Quota: 7, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 20},
	}}
	f := newFleet(t, 1, 1, Options{})
	charge := policy.Charge("alice")
	charge.Cost = 20
	if d, err := f.processes[0].throttler.Take(t.Context(), charge); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	f.advance(857 * time.Millisecond) // 5.999 drain
	charge.Cost = 6
	if d, err := f.processes[0].throttler.Take(t.Context(), charge); err != nil || d.Allowed || d.Limit(0).Used != 15 {
		t.Errorf("a take of 6: %v, %v; want a refusal with 15 used", d, err)
	}
}

func apart(a, b time.Time) time.Duration { return a.Sub(b).Abs() }

// Refunds return units to the window or the bucket that was charged, and to no other, at
// every process.
func TestRefunds(t *testing.T) {
	policy := &throttler.Policy{Name: "both", Limits: []throttler.Limit{
		{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 100},
		{Quota: 1000, Window: 10 * time.Second, Aligned: true},
	}}
	f := newFleet(t, 2, 1, Options{})
	first, second := f.processes[0].throttler, f.processes[1].throttler
	used := func(th *throttler.Throttler) string {
		d, err := th.Peek(t.Context(), policy.Charge("alice"))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(d.Limit(0).Used, " ", d.Limit(1).Used)
	}
	check := func(when string, want string) {
		t.Helper()
		for range 20 {
			used(first)
			used(second)
			f.advance(f.elapsed + DefaultSync/2)
		}
		if a, b := used(first), used(second); a != want || b != want {
			t.Errorf("%s, %s and %s are used; want %s", when, a, b, want)
		}
	}
	charge := policy.Charge("alice")
	charge.Cost = 50
	d, err := first.Take(t.Context(), charge)
	if err != nil {
		t.Fatal(err)
	}
	check("a second after a take of 50", "40 50")
	if _, err := first.Settle(t.Context(), d, 30); err != nil {
		t.Fatal(err)
	}
	check("a second after its settlement at 30", "10 30")
	if d, err = second.Take(t.Context(), charge); err != nil {
		t.Fatal(err)
	}
	f.advance(10 * time.Second) // a new window
	if _, err := second.Refund(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	check("a second after a refund of 50, when they had drained and their window was over", "0 0")
}

// Units that have drained are not refunded: whichever process refunds late, a bucket admits no
// more than exact counts do.
func TestRefundsOfWhatDrained(t *testing.T) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket}}}
	f := newFleet(t, 2, 1, Options{})
	take := func(i int, cost int64) *throttler.Decision {
		t.Helper()
		charge := policy.Charge("alice")
		charge.Cost = cost
		d, err := f.processes[i].throttler.Take(t.Context(), charge)
		if err != nil {
			t.Fatal(err)
		}
		return &d
	}
	used := func(d throttler.Decision, err error) int64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return d.Limit(0).Used
	}
	first, second := f.processes[0].throttler, f.processes[1].throttler
	var old []*throttler.Decision
	for range 10 {
		d := take(0, 10)
		if !d.Allowed {
			t.Fatal("a full bucket refused")
		}
		old = append(old, d)
		f.advance(f.elapsed + 2*time.Second)
	}
	last := take(0, 10)
	for i, d := range old {
		if n := used(first.Refund(t.Context(), *d)); n != 10 {
			t.Errorf("%d are used after the refund of charge %d, which had drained; want 10", n, i)
		}
	}
	f.advance(f.elapsed + 600*time.Millisecond)
	used(second.Peek(t.Context(), policy.Charge("alice")))
	f.advance(f.elapsed + DefaultSync)
	if n := used(second.Settle(t.Context(), *last, 0)); n != 0 {
		t.Errorf("%d are used after a refund of 10, of which 3 had not drained; want 0", n)
	}

	f.advance(f.elapsed + 10*time.Second)
	early := take(0, 5)
	take(0, 5)
	f.advance(f.elapsed + 300*time.Millisecond)
	if n := used(first.Refund(t.Context(), *early)); n != 5 {
		t.Errorf("%d are used after the refund of 5, of which 3 had drained, and 5 more; want 5", n)
	}

	f.advance(f.elapsed + 10*time.Second)
	d := take(0, 7)
	if n := used(first.Refund(t.Context(), *d)); n != 0 {
		t.Errorf("%d are used after a refund at once; want 0", n)
	}
}

// A decision charges the whole chain or nothing, also with units taken by other processes.
func TestChains(t *testing.T) {
	org := &throttler.Policy{Name: "org", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour, Aligned: true}}}
	user := &throttler.Policy{Name: "user", Limits: []throttler.Limit{{Quota: 8, Window: time.Hour, Aligned: true}}}
	f := newFleet(t, 2, 1, Options{})
	allowed := map[string]int{}
	for i := range 20 {
		name := []string{"alice", "bob"}[i%2]
		_, _ = f.processes[i%2].throttler.Peek(t.Context(), org.Charge("acme"), user.Charge(name).Within("acme")) // to learn of the others
		f.advance(f.elapsed + 3*DefaultSync)
		d, err := f.processes[i%2].throttler.Take(t.Context(), org.Charge("acme"), user.Charge(name).Within("acme"))
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			allowed[name]++
		}
	}
	if allowed["alice"]+allowed["bob"] != 10 {
		t.Errorf("%v were allowed; want 10 in all", allowed)
	}
	d, err := f.processes[0].throttler.Peek(t.Context(), throttler.Charge{Policy: user, Key: "alice", Partition: "acme"})
	if err != nil || d.Limit(0).Used != int64(allowed["alice"]) {
		t.Errorf("Peek: %v, %v; want %d used", &d, err, allowed["alice"])
	}
}

// A peek charges nothing and, from the second sync on, knows the units of other processes.
func TestPeekKnowsTheTotals(t *testing.T) {
	f := newFleet(t, 2, 1, Options{})
	f.offer(1600, 2*time.Second, time.Second, perSecond.Charge("alice"), func(time.Duration) int { return 0 })
	for range 5 {
		_, _ = f.processes[1].throttler.Peek(t.Context(), perSecond.Charge("alice"))
		f.offer(1600, f.elapsed+DefaultSync, time.Second, perSecond.Charge("alice"), func(time.Duration) int { return 0 })
	}
	first, _ := f.processes[0].throttler.Peek(t.Context(), perSecond.Charge("alice"))
	second, err := f.processes[1].throttler.Peek(t.Context(), perSecond.Charge("alice"))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := first.Limit(0).Used, second.Limit(0).Used; a < 300 || b < a-200 || b > a+200 {
		t.Errorf("the process that takes sees %d used, the one that peeks %d", a, b)
	}
}

// A million keys of an attacker neither grow the table without bound nor push out keys
// that have used up their quotas.
func TestSequentialKeysAreBounded(t *testing.T) {
	policy := &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour, Aligned: true}}}
	f := newFleet(t, 1, 1, Options{MaxKeys: 1 << 12})
	p := f.processes[0]
	take := func(key string) bool {
		d, err := p.throttler.Take(t.Context(), policy.Charge(key))
		if err != nil {
			t.Fatal(err)
		}
		return d.Allowed
	}
	for range 20 {
		take("victim")
	}
	for i := range 20_000 {
		take("attacker-" + strconv.Itoa(i))
		if i%1000 == 0 {
			f.advance(f.elapsed + DefaultSync)
		}
	}
	if n := p.backend.Stats().Keys; n > 1<<12 {
		t.Errorf("%d keys are kept; want at most %d", n, 1<<12)
	}
	if take("victim") {
		t.Error("the victim's count was dropped")
	}
	f.advance(f.elapsed + 2*time.Hour)
	for range keyed.Stripes {
		p.backend.sweep()
		f.advance(f.elapsed + time.Second)
	}
	if n := p.backend.Stats().Keys; n != 0 {
		t.Errorf("%d keys are kept that count nothing", n)
	}
}

// While keys that have used up their quotas fill the table, new keys are pooled. Processes
// agree on these counts, and refunds return to them. A chain with more keys than there is room
// for is decided, too.
func TestSequentialNewKeysArePooled(t *testing.T) {
	var policies []*throttler.Policy
	for _, name := range []string{"org", "user"} {
		policies = append(policies, &throttler.Policy{Name: name, Limits: []throttler.Limit{{Quota: 10, Window: time.Hour, Aligned: true}}})
	}
	f := newFleet(t, 2, 1, Options{MaxKeys: 64})
	take := func(p *process, key string) throttler.Decision {
		t.Helper()
		d, err := p.throttler.Take(t.Context(), policies[0].Charge(key), policies[1].Charge(key))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for i := range 1000 { // each stripe has one spent key, and spent counts for others
		for _, p := range f.processes {
			for range 11 {
				take(p, "attacker-"+strconv.Itoa(i))
			}
		}
		if i%100 == 99 {
			f.advance(f.elapsed + DefaultSync)
		}
	}
	for i := range 100 {
		for k, p := range f.processes {
			if d := take(p, "newcomer-"+strconv.Itoa(i)); d.Allowed {
				t.Fatalf("process %d: newcomer %d is allowed: %v", k, i, &d)
			}
		}
	}
	pooled := 0
	for _, policy := range policies {
		for number := range 2*keyed.Stripes + 1 {
			n := pooledName(policy.Name, number)
			if _, ok := f.roots[0].counters[string(n[:])+"w3600000"]; ok {
				pooled++
			}
		}
	}
	if pooled == 0 || pooled > 64*2 {
		t.Errorf("the root has %d pooled counts; want up to one for each policy and stripe", pooled)
	}

	f.clock.Set(t0.Add(time.Hour))                                      // a new window
	late := &throttler.Policy{Name: "late", Limits: policies[0].Limits} // its pooled counts expect nothing of the other process
	first, charge := f.processes[0], late.Charge("newcomer")
	for _, c := range first.backend.stripeOf(charge.Key).Values() {
		if !c.pooled { // as if it had been refused a moment ago
			c.counts[0].roll(&c.limits[0], f.clock.Now().UnixMilli())
			c.counts[0].add(&c.limits[0], 10, f.clock.Now().UnixMilli())
		}
	}
	charge.Cost = 6
	for range 3 {
		d, err := first.throttler.Take(t.Context(), charge)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			t.Fatalf("a newcomer is refused, whose charges were refunded: %v", &d)
		}
		if d, err = first.throttler.Refund(t.Context(), d); err != nil || d.Limit(0).Used != 0 {
			t.Fatalf("after a refund: %v, %v", &d, err)
		}
	}
}

// Processes agree on real servers, with real clocks, under the race detector.
func TestRedis(t *testing.T) {
	servers := []*testserver.RedisServer{testserver.Redis(t), testserver.Redis(t)}
	policy := &throttler.Policy{Name: "window", Limits: []throttler.Limit{{Quota: 2000, Window: time.Hour, Aligned: true}}}
	var admitted atomic.Int64
	var takers sync.WaitGroup
	ends := make(chan struct{})
	for range 4 {
		var roots []Root
		for i, s := range servers {
			roots = append(roots, Root{Name: fmt.Sprint("root-", i), Client: redisClient(t, s.Addr)})
		}
		b, err := New(roots, &Options{Sync: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		th := throttler.New(b, nil)
		for range 2 {
			takers.Go(func() {
				for {
					select {
					case <-ends:
						return
					case <-time.After(500 * time.Microsecond):
					}
					d, err := th.Take(context.Background(), policy.Charge("alice"))
					if err != nil {
						t.Error(err)
						return
					}
					if d.Allowed {
						admitted.Add(1)
					} else if d.Limit(0).Used < 1900 {
						t.Errorf("a refusal with %d of 2000 used", d.Limit(0).Used)
					}
				}
			})
		}
	}
	time.Sleep(200 * time.Millisecond)
	servers[0].Pause() // one root hangs, and no request notices
	for start := time.Now(); admitted.Load() < 1900 && time.Since(start) < 20*time.Second; {
		time.Sleep(10 * time.Millisecond)
	}
	servers[0].Resume()
	time.Sleep(300 * time.Millisecond)
	close(ends)
	takers.Wait()
	// The excess depends on the machine, but it must end.
	if n := admitted.Load(); n < 1900 || n > 2600 {
		t.Errorf("%d of 2000 were admitted", n)
	}
}

func TestBadArguments(t *testing.T) {
	client := redisClient(t, "127.0.0.1:1")
	root := []Root{{Name: "a", Client: client}}
	many := make([]Root, MaxRoots+2)
	for i := range many {
		many[i] = Root{Name: fmt.Sprint(i), Client: client, Group: "g"}
	}
	many[0].Group = "h"
	for _, c := range []struct {
		roots   []Root
		options *Options
		text    string
	}{
		{nil, nil, "roots is empty"},
		{many, nil, "roots has 65 of the group \"g\"; a group has at most 64"},
		{[]Root{{Name: "a"}}, nil, "roots[0].Client is nil"},
		{[]Root{{Client: client}}, nil, "roots[0].Name is empty"},
		{append(root, root...), nil, "names must differ"},
		{root, &Options{Sync: time.Millisecond}, "Sync is 1ms"},
		{root, &Options{Low: 2}, "Low is 2"},
		{root, &Options{Low: -1}, "Low is -1"},
		{root, &Options{MaxKeys: 1}, "MaxKeys is 1"},
		{root, &Options{Prefix: "{"}, "Prefix is"},
	} {
		b, err := New(c.roots, c.options)
		if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("New: %v; want an error that wraps ErrInvalid and says %q", err, c.text)
		}
		if err == nil {
			b.Close()
		}
	}
}

// Units that two processes admit before their first syncs add up.
func TestFirstSyncsAddUp(t *testing.T) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour, Aligned: true}}}
	f := newFleet(t, 2, 2, Options{})
	charge := policy.Charge("alice")
	charge.Cost = 30
	for _, p := range f.processes {
		if _, err := p.throttler.Take(t.Context(), charge); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		for _, p := range f.processes {
			_, _ = p.throttler.Peek(t.Context(), charge)
		}
		f.advance(f.elapsed + DefaultSync)
	}
	for i, p := range f.processes {
		if d, err := p.throttler.Peek(t.Context(), charge); err != nil || d.Limit(0).Used != 60 {
			t.Errorf("process %d: %v, %v; want 60 used", i, &d, err)
		}
	}
}

// With the longest time between two syncs, roots still know each process from one to the
// next: totals are sums, and a first sync that is sent again counts once.
func TestLongestSync(t *testing.T) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100_000, Window: 24 * time.Hour, Aligned: true}}}
	f := newFleet(t, 4, 1, Options{Sync: time.Minute})
	f.roots[0].deaf = true
	for minute := range 30 {
		for _, p := range f.processes {
			if _, err := p.throttler.Take(t.Context(), policy.Charge("alice")); err != nil {
				t.Fatal(err)
			}
		}
		f.advance(f.elapsed + time.Minute)
		f.roots[0].deaf = minute < 2
	}
	f.advance(f.elapsed + time.Minute) // the last syncs arrive
	if n := len(f.roots[0].counters); n != 1 {
		t.Errorf("the root has %d counters, want 1", n)
	}
	for key, state := range f.roots[0].counters {
		if state[1] != 120 {
			t.Errorf("the root has %v of %s; want 120 units, of 4 processes and 30 takes", state, key)
		}
	}
}

// A decision about a known key makes no allocation.
func TestAllocations(t *testing.T) {
	f := newFleet(t, 1, 1, Options{})
	charge := perSecond.Charge("alice")
	charge.Cost, charge.Partition = 1, charge.Key
	b, r := f.processes[0].backend, driver.NewRequest(t0.UnixMilli(), charge)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := b.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a decision makes %v allocations", n)
	}
}

// A refund goes to the window that the charge is in, or to none, whatever the time of the
// settlement is, and under other limits, too.
func TestARefundOfAWindowThatHasEnded(t *testing.T) {
	minute := &throttler.Policy{Name: "core", Limits: []throttler.Limit{perWindow(100, time.Minute)}}
	hour := &throttler.Policy{Name: "core", Limits: []throttler.Limit{perWindow(1000, time.Hour)}}
	for _, charged := range []*throttler.Policy{minute, hour} {
		f := newFleet(t, 1, 1, Options{})
		b := f.processes[0].backend
		start := f.clock.Now().Truncate(time.Hour).UnixMilli()
		take := func(p *throttler.Policy, elapsed, cost int64) driver.Decision {
			t.Helper()
			d, err := b.Take(t.Context(), driver.NewRequest(start+elapsed, throttler.Charge{Policy: p, Key: "k", Partition: "k", Cost: cost}))
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		take(minute, 59_800, 1)
		first := take(charged, 59_900, 10)
		if d := take(minute, 60_000, 100); !d.Allowed {
			t.Fatalf("%+v; want 100 allowed in the second minute", d.Results())
		}
		if _, err := b.Settle(t.Context(), driver.Settlement{Now: start + 59_900, Charged: first, Costs: []int64{0}}); err != nil {
			t.Fatal(err)
		}
		if d := take(minute, 60_001, 10); d.Allowed {
			t.Errorf("after a refund under %v: %+v; want 10 beyond the quota refused", charged.Limits[0], d.Results())
		}
	}
}
