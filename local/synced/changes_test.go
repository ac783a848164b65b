package synced

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/policies"
)

// perWindow returns a limit of aligned windows.
func perWindow(quota int64, window time.Duration) throttler.Limit {
	return throttler.Limit{Quota: quota, Window: window, Aligned: true}
}

// rate returns how many of perSec requests a second are admitted for charge, over some seconds.
func (f *fleet) rate(perSec float64, seconds int, charge throttler.Charge) int {
	n := sum(f.offer(perSec, f.elapsed+time.Duration(seconds)*time.Second, time.Second, charge, f.loads()["even"]))
	return n / seconds
}

// peek returns the status of a charge's first limit at process i.
func (f *fleet) peek(i int, charge throttler.Charge) decision.Status {
	f.Helper()
	d, err := f.processes[i].throttler.Peek(f.Context(), charge)
	if err != nil {
		f.Fatal(err)
	}
	return d.Limit(0)
}

// settled lets the processes learn each other's counts of a charge.
func (f *fleet) settled(charge throttler.Charge) {
	f.Helper()
	for range 12 { // until no process is expected to continue
		for i := range f.processes {
			f.peek(i, charge)
		}
		f.advance(f.elapsed + DefaultSync)
	}
}

// A new quota, in the table of one process and a second later in the other's, is in force at
// each from its next decision, and together they admit the quota.
func TestSequentialChangedQuota(t *testing.T) {
	for _, limits := range [][2]throttler.Limit{
		{perSecond.Limits[0], {Quota: 100, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 50}},
		{perWindow(1000, time.Second), perWindow(100, time.Second)},
	} {
		t.Run(limits[0].String(), func(t *testing.T) {
			f := newFleet(t, 2, 2, Options{})
			core := &throttler.Policy{Name: "core", Limits: limits[:1]}
			alice := core.Charge("alice")
			f.rate(5000, 3, alice)
			for i, p := range f.processes {
				p.setLimits(t, "core", limits[1])
				if got := f.peek(i, alice).Limit; got != limits[1] {
					t.Errorf("process %d goes by %v, want %v", i, got, limits[1])
				}
				if n := f.rate(5000, 1, alice); i == 0 && n > 1200 {
					t.Errorf("%d were admitted in the second in which one process has a quota of 1000 a second, and the other 100", n)
				}
			}
			f.rate(160, 4, alice)
			if n := f.rate(160, 10, alice); n < 95 || n > 105 {
				t.Errorf("%d a second were admitted; want 100", n)
			}
			for _, p := range f.processes {
				p.setLimits(t, "core", limits[0])
			}
			f.rate(1600, 2, alice)
			if n := f.rate(1600, 10, alice); n < 950 || n > 1050 {
				t.Errorf("%d a second were admitted; want 1000 again", n)
			}
		})
	}
}

// Two syncs after the tables of all processes changed, all admit and report the new quota, and
// no unit is admitted a second time.
func TestChangedQuotaInTwoSyncs(t *testing.T) {
	f := newFleet(t, 2, 1, Options{})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{perWindow(1000, time.Hour)}}
	alice := core.Charge("alice")
	take := func(i int, cost int64) bool {
		t.Helper()
		return f.taking(i, core, cost).Allowed
	}
	if !take(0, 50) || !take(1, 40) {
		t.Fatal("the first 90 of 1000 are refused")
	}
	f.settled(alice)
	for _, p := range f.processes {
		p.setLimits(t, "core", perWindow(100, time.Hour))
	}
	f.advance(f.elapsed + DefaultSync)
	for i := range f.processes {
		f.peek(i, alice)
	}
	f.advance(f.elapsed + DefaultSync + DefaultSync/2)
	for i := range f.processes {
		if s := f.peek(i, alice); s.Limit.Quota != 100 || s.Used != 90 {
			t.Errorf("process %d: %d of %d are used; want 90 of 100", i, s.Used, s.Limit.Quota)
		}
	}
	if take(0, 11) || !take(1, 10) {
		t.Error("a charge of 11 or one of 10 is not decided by the 10 that are left")
	}
	if len(f.roots[0].counters) != 1 {
		t.Errorf("the root has %v; want one counter for all quotas", f.roots[0].counters)
	}
}

// A paid plan coexists with others, as a policy and as an override. Processes agree on one that
// is added while requests run, as on any other.
func TestSequentialPlans(t *testing.T) {
	bucket := func(perSec int64) throttler.Limit {
		return throttler.Limit{Quota: perSec, Window: time.Second, Algorithm: throttler.TokenBucket}
	}
	f := newFleet(t, 2, 1, Options{})
	free := &throttler.Policy{Name: "free", Limits: []throttler.Limit{bucket(60)}}
	paid := &throttler.Policy{Name: "paid", Limits: []throttler.Limit{bucket(5000)}}
	for _, p := range f.processes {
		p.edit(t, func(e *policies.Edit) {
			e.Override(policies.Override{Policy: "free", Key: "acme", Limits: []throttler.Limit{bucket(5000)}})
		})
	}
	check := func(charge throttler.Charge, want int) {
		t.Helper()
		f.rate(1.6*float64(want), 5, charge)
		if n := f.rate(1.6*float64(want), 10, charge); n < want*98/100 || n > want*102/100 {
			t.Errorf("%s of %s: %d a second were admitted; want %d", charge.Key, charge.Policy.Name, n, want)
		}
	}
	check(free.Charge("alice"), 60)
	check(paid.Charge("alice"), 5000)
	check(free.Charge("acme"), 5000)
	check(free.Charge("bob"), 60)
	for _, p := range f.processes {
		p.setLimits(t, "added", bucket(300))
	}
	check((&throttler.Policy{Name: "added"}).Charge("alice"), 300)
}

// A limit of another window continues from the used units, at processes that counted them and
// at processes that learn of them. No unit is admitted again when the old window comes back.
func TestChangedWindow(t *testing.T) {
	for _, c := range []struct{ from, to throttler.Limit }{
		{perWindow(1000, time.Hour), perWindow(1000, 2*time.Hour)},
		{perWindow(1000, time.Hour), perWindow(1000, time.Minute)},
		{
			throttler.Limit{Quota: 1000, Window: time.Hour, Algorithm: throttler.TokenBucket},
			throttler.Limit{Quota: 2000, Window: 2 * time.Hour, Algorithm: throttler.TokenBucket, Burst: 1000},
		},
	} {
		t.Run(c.from.String()+" to "+c.to.String(), func(t *testing.T) {
			f := newFleet(t, 3, 1, Options{})
			core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{c.from}}
			alice := core.Charge("alice")
			f.taking(0, core, 400)
			f.taking(1, core, 300) // not nearly full, or others would be expected to fill it
			f.settled(alice)
			check := func(when string, l throttler.Limit) {
				t.Helper()
				for i := range f.processes {
					if s := f.peek(i, alice); s.Limit != l || s.Used < 695 || s.Used > 705 {
						t.Errorf("%s, process %d: %d are used of %v; want 700 of %v", when, i, s.Used, s.Limit, l)
					}
				}
			}
			for i, p := range f.processes {
				if p.setLimits(t, "core", c.to); i == 0 {
					f.settled(alice) // the others still have the old limit
				}
			}
			check("at once", c.to)
			f.settled(alice)
			check("later", c.to)
			f.replace(2, 0) // a new process learns of the new window alone
			f.processes[2].setLimits(t, "core", c.to)
			f.settled(alice)
			check("after a start", c.to)
			for _, p := range f.processes {
				p.setLimits(t, "core", c.from)
			}
			check("back", c.from)
			f.settled(alice)
			check("back for a while", c.from)
		})
	}
}

// Two versions of a policy side by side, in each process, admit no more than one does: each
// counts the units that the other admits, for as long as its window lasts.
func TestSequentialTwoVersionsSideBySide(t *testing.T) {
	drains := func(window time.Duration) throttler.Limit {
		return throttler.Limit{Quota: 1000 * int64(window/time.Hour), Window: window, Algorithm: throttler.TokenBucket, Burst: 1000}
	}
	for _, limits := range [][2]throttler.Limit{
		{perWindow(1000, time.Hour), perWindow(1000, 2*time.Hour)},
		{drains(time.Hour), drains(2 * time.Hour)},
	} {
		t.Run(limits[0].String(), func(t *testing.T) {
			f := newFleet(t, 3, 1, Options{})
			versions := []*throttler.Policy{{Name: "core", Limits: limits[:1]}, {Name: "core", Limits: limits[1:]}}
			admitted := 0
			for range 3000 {
				f.advance(f.elapsed + 5*time.Millisecond)
				if f.taking(f.random.IntN(3), versions[f.random.IntN(2)], 1).Allowed {
					admitted++
				}
			}
			if admitted < 900 || admitted > 1050 {
				t.Errorf("%d were admitted of 1000", admitted)
			}
			f.advance(f.elapsed + 3*time.Hour)
			for i := range f.processes {
				f.taking(i, versions[0], 1)
				for _, c := range f.processes[i].backend.stripeOf("alice").Values() {
					if f.advance(f.elapsed + 2*DefaultSync); len(c.counts) != 1 {
						t.Errorf("process %d has %d counts of one limit", i, len(c.counts))
					}
				}
			}
		})
	}
}

// If a process that knows nothing of a key is asked first after its window changed, the
// processes that know the key tell the root.
func TestChangedWindowIsToldToRoots(t *testing.T) {
	f := newFleet(t, 2, 1, Options{})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{perWindow(1000, time.Hour)}}
	alice := core.Charge("alice")
	f.taking(0, core, 900)
	f.settled(alice)
	f.replace(1, 0)
	for _, p := range f.processes {
		p.setLimits(t, "core", perWindow(1000, 2*time.Hour))
	}
	f.taking(1, core, 30)
	f.advance(f.elapsed + 2*DefaultSync) // the root has 30
	f.settled(alice)
	for i := range f.processes {
		if s := f.peek(i, alice); s.Used < 900 {
			t.Errorf("process %d: %d are used, want 900 at least", i, s.Used)
		}
	}
}

// A reply about a window that the policy no longer has, or has again, belongs to another count.
func TestRepliesAfterAChange(t *testing.T) {
	f := newFleet(t, 1, 1, Options{})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{perWindow(1000, time.Hour)}}
	p := f.processes[0]
	root := p.backend.aggregators[0]
	f.taking(0, core, 7)
	root.server = &meanwhile{root.server, func() {
		p.setLimits(t, "core", perWindow(1000, time.Minute))
		f.taking(0, core, 1)
		p.setLimits(t, "core", perWindow(1000, time.Hour), perWindow(100, time.Minute))
		f.taking(0, core, 1)
	}}
	for range 5 {
		f.advance(f.elapsed + DefaultSync)
		if s := f.peek(0, core.Charge("alice")); s.Used != 9 {
			t.Fatalf("%d are used, want 9", s.Used)
		}
	}
	for key, c := range f.roots[0].counters {
		if c[1] != 9 {
			t.Errorf("the root has %v units of %s, want 9", c[1], key)
		}
	}
}

// Charges under earlier limits are settled, and the limits in force decide from then on.
func TestSettlementsAfterAChange(t *testing.T) {
	f := newFleet(t, 1, 1, Options{})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{perWindow(1000, time.Hour)}}
	old := f.taking(0, core, 100)
	f.processes[0].setLimits(t, "core", perWindow(200, time.Hour), perWindow(50, time.Minute))
	if s := f.peek(0, core.Charge("alice")); s.Used != 100 || s.Limit.Quota != 200 {
		t.Errorf("%d of %d are used, want 100 of 200", s.Used, s.Limit.Quota)
	}
	if _, err := f.processes[0].throttler.Settle(t.Context(), old, 30); err != nil {
		t.Fatal(err)
	}
	d := f.taking(0, core, 1)
	if hour, minute := d.Limit(0), d.Limit(1); !d.Allowed || hour.Used != 31 || hour.Limit.Quota != 200 || minute.Used != 31 {
		t.Errorf("after 100 was settled at 30, and a take of 1: %v", &d)
	}
}

// Limits that cannot be synced are an error of the decision, which charges nothing. An override
// with such limits is an error for its key alone.
func TestUnsupportedLimits(t *testing.T) {
	f := newFleet(t, 1, 1, Options{})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{perWindow(10, time.Hour)}}
	th := f.processes[0].throttler
	for text, l := range map[string]throttler.Limit{
		"must be aligned": {Quota: 1, Window: time.Second},
		"not a sum":       {Quota: 1, Window: time.Second, Algorithm: throttler.SlidingLog},
		"one order":       {Quota: 1, Window: time.Second, Algorithm: throttler.LeakyBucket},
	} {
		f.processes[0].edit(t, func(e *policies.Edit) {
			e.Override(policies.Override{Policy: "core", Key: "acme", Limits: []throttler.Limit{l}})
		})
		for name, decide := range map[string]func(context.Context, ...throttler.Charge) (throttler.Decision, error){"Take": th.Take, "Peek": th.Peek} {
			_, err := decide(t.Context(), core.Charge("alice"), core.Charge("acme"))
			if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), `"core"`) {
				t.Errorf("%s under %v: %v; want an error that wraps ErrInvalid, names the policy and says %q", name, l, err, text)
			}
		}
	}
	if s := f.peek(0, core.Charge("alice")); s.Used != 0 {
		t.Errorf("%d are used after errors, want 0", s.Used)
	}
}

// A sync at rest carries no policies, however many are known: only the header of a call about
// no counter, and its reply.
func TestSequentialSyncAtRest(t *testing.T) {
	const counted = 10_000
	addr := testserver.Redis(t).Addr
	servers, err := dial([]Root{{Name: "root", Client: redisClient(t, addr)}}, "weir-sync:", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, 0, 1, Options{})
	o := f.options
	b := newBackend(servers, &o)
	th := throttler.New(b, &throttler.Options{Clock: f.clock})
	for i := range counted {
		p := &throttler.Policy{Name: "plan-" + strconv.Itoa(i), Limits: []throttler.Limit{perWindow(int64(i+1), time.Duration(i+1)*time.Hour/1000)}}
		if _, err := th.Take(t.Context(), p.Charge("alice")); err != nil {
			t.Fatal(err)
		}
	}
	syncs := func(n int) {
		for range n {
			b.syncOnce(t.Context(), b.aggregators[0])
			f.advance(f.elapsed + DefaultSync)
		}
	}
	syncs(200) // the counters asked for are no longer watched
	info := infoOf(t, addr)
	before := info()
	syncs(100)
	after := info()
	in := (after["total_net_input_bytes"] - before["total_net_input_bytes"]) / 100
	out := (after["total_net_output_bytes"] - before["total_net_output_bytes"]) / 100
	t.Logf("a sync at rest, with %d policies known: %.0f bytes to a root and %.0f back, INFO included", counted, in, out)
	if in > 200 || out > 200 {
		t.Errorf("a sync at rest has %.0f bytes to a root and %.0f back", in, out)
	}
	b.aggregators[0].nextSync = time.Time{}
	b.prepare(b.aggregators[0], time.Now())
	if c := b.aggregators[0].calls; len(c) != 1 || len(c[0].header)+len(c[0].entries) != 16 {
		t.Errorf("at rest the calls are %v; want one with 16 bytes of this package", c)
	}
}
