package synced

import (
	"encoding/hex"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// hourAndBucket has counts that last for hours.
var hourAndBucket = &throttler.Policy{Name: "long", Limits: []throttler.Limit{
	{Quota: 100, Window: 10 * time.Hour, Aligned: true},
	{Quota: 100, Window: 10 * time.Hour, Algorithm: throttler.TokenBucket},
}}

// used returns the used units of hourAndBucket that processes report.
func (f *fleet) used(charge throttler.Charge) (items [][2]int64) {
	f.Helper()
	for round := range 2 {
		for _, p := range f.processes {
			d, err := p.throttler.Peek(f.Context(), charge)
			if err != nil {
				f.Fatal(err)
			}
			if round > 0 {
				items = append(items, [2]int64{d.Limit(0).Used, d.Limit(1).Used})
			}
		}
		f.advance(f.elapsed + 3*DefaultSync)
	}
	return items
}

// A root that loses some of its memory is right again within two syncs, however it loses
// it: also if it still knows the processes, because it evicted the counters alone, or
// because it was restored from an older copy of all.
func TestRootsLoseSomeOfTheirMemory(t *testing.T) {
	for name, fault := range map[string]func(root, older *modelRoot){
		"all":           func(root, _ *modelRoot) { root.flush() },
		"counters":      func(root, _ *modelRoot) { clear(root.counters) },
		"processes":     func(root, _ *modelRoot) { clear(root.numbers) },
		"since a while": func(root, older *modelRoot) { root.counters, root.numbers = older.counters, older.numbers },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 3, 1, Options{})
			charge := hourAndBucket.Charge("alice")
			charge.Cost = 15
			take := func(p *process) {
				t.Helper()
				if d, err := p.throttler.Take(t.Context(), charge); err != nil || !d.Allowed {
					t.Fatal(&d, err)
				}
			}
			for _, p := range f.processes {
				take(p)
			}
			f.advance(f.elapsed + 3*DefaultSync)
			f.used(charge)
			root := f.roots[0]
			older := &modelRoot{counters: maps.Clone(root.counters), numbers: maps.Clone(root.numbers)}
			take(f.processes[0])
			f.used(charge)
			fault(root, older)
			take(f.processes[1])
			f.advance(f.elapsed + 3*DefaultSync)
			for i, used := range f.used(charge) {
				if used[0] < 75 || used[1] < 75 { // more, if it expects others to continue
					t.Errorf("process %d: %v are used, want 75 and 75", i, used)
				}
			}
			for key, state := range root.counters {
				if isWindow(key) && state[1] != 75 {
					t.Errorf("the root has %v of %s, want 75 units", state, key)
				}
			}
		})
	}
}

// Units that were admitted while no root answered, and have drained, are no debt when roots
// answer again.
func TestDrainedUnitsAreNoDebt(t *testing.T) {
	f := newFleet(t, 8, 1, Options{})
	even := f.loads()["even"]
	offer := func(perSec float64, length time.Duration) int {
		return sum(f.offer(perSec, f.elapsed+length, time.Second, perSecond.Charge("alice"), even))
	}
	offer(500, 2*time.Second)
	f.roots[0].down = true
	offer(800, 20*time.Second)
	f.advance(f.elapsed + 3*time.Second) // all has drained
	f.roots[0].down = false
	f.advance(f.elapsed + 3*time.Second) // all have rejoined
	if n := offer(500, 5*time.Second); n < 2300 {
		t.Errorf("%d of some 2500 requests were admitted, of a quota of 5000", n)
	}
}

// A process counts its own units exactly, whatever their size.
func TestSmallUnits(t *testing.T) {
	policy := &throttler.Policy{Name: "bytes", Limits: []throttler.Limit{{Quota: 1 << 40, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 1000}}}
	f := newFleet(t, 1, 1, Options{})
	admitted := 0
	for range 2000 {
		d, err := f.processes[0].throttler.Take(t.Context(), policy.Charge("alice"))
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			admitted++
		}
	}
	if admitted != 1000 {
		t.Errorf("%d units were admitted at one instant; want 1000", admitted)
	}
}

// taking takes cost units for alice at process i.
func (f *fleet) taking(i int, policy *throttler.Policy, cost int64) throttler.Decision {
	f.Helper()
	charge := policy.Charge("alice")
	charge.Cost = cost
	d, err := f.processes[i].throttler.Take(f.Context(), charge)
	if err != nil {
		f.Fatal(err)
	}
	return d
}

// If the first process after an eviction knows less than another, the other process sends its
// units again.
func TestTheFirstAfterAnEvictionKnowsLittle(t *testing.T) {
	f := newFleet(t, 3, 1, Options{})
	f.taking(0, hourAndBucket, 10)
	f.advance(f.elapsed + 30*time.Second)
	f.taking(1, hourAndBucket, 70)
	f.advance(f.elapsed + time.Second)
	f.taking(1, hourAndBucket, 1)
	f.advance(f.elapsed + 30*time.Second)
	clear(f.roots[0].counters)
	f.taking(0, hourAndBucket, 1)
	f.advance(f.elapsed + 2*time.Second)
	f.taking(1, hourAndBucket, 1)
	f.advance(f.elapsed + 2*time.Second)
	for i, used := range f.used(hourAndBucket.Charge("alice")) {
		if used[0] < 72 || used[1] < 72 { // added by process 1 itself
			t.Errorf("process %d: %v are used, want 72 at least", i, used)
		}
	}
}

// An ADD that is sent again to a root counts, if the root has since evicted the counter.
func TestResendsAfterAnEviction(t *testing.T) {
	f := newFleet(t, 2, 1, Options{})
	b, other := f.processes[0].backend, f.processes[1]
	r := b.aggregators[0]
	f.taking(0, hourAndBucket, 10)
	b.syncOnce(t.Context(), r)
	f.taking(0, hourAndBucket, 50)
	r.nextSync = time.Time{}
	b.prepare(r, time.Now())
	if _, err := r.server.call(t.Context(), r.calls); err != nil {
		t.Fatal(err)
	}
	b.conclude(r, nil, errDown, time.Now()) // the reply is lost
	clear(f.roots[0].counters)
	b.syncOnce(t.Context(), r)
	f.taking(0, hourAndBucket, 1)
	b.syncOnce(t.Context(), r)
	for range 2 {
		if _, err := other.throttler.Peek(t.Context(), hourAndBucket.Charge("alice")); err != nil {
			t.Fatal(err)
		}
		other.backend.syncOnce(t.Context(), other.backend.aggregators[0])
	}
	d, err := other.throttler.Peek(t.Context(), hourAndBucket.Charge("alice"))
	if err != nil || d.Limit(0).Used < 61 || d.Limit(1).Used < 61 {
		t.Errorf("at the other process %v, %v; want 61 and 61 used", &d, err)
	}
}

// A call in the middle of a process's first batch that fails alone is sent again, and counts.
func TestFirstCallsThatFail(t *testing.T) {
	f := newFleet(t, 1, 1, Options{})
	b := f.processes[0].backend
	b.perCall = 1
	for _, key := range []string{"alice", "bob", "carol"} {
		if _, err := f.processes[0].throttler.Take(t.Context(), hourAndBucket.Charge(key)); err != nil {
			t.Fatal(err)
		}
	}
	r := b.aggregators[0]
	b.prepare(r, time.Now())
	if len(r.calls) != 6 {
		t.Fatalf("%d calls, want one for each limit of each key", len(r.calls))
	}
	var replies [][]byte
	for i := range r.calls {
		if i == 2 || i == 3 {
			continue
		}
		if reply := f.roots[0].run(&r.calls[i]); i < 2 {
			replies = append(replies, reply)
		}
	}
	b.conclude(r, replies, errDown, time.Now())
	if len(r.calls) != 4 {
		t.Fatalf("%d calls are to be sent again, want those without a reply, 4", len(r.calls))
	}
	for range 3 {
		b.syncOnce(t.Context(), r)
	}
	for key, state := range f.roots[0].counters {
		if state[1] != 1 && isWindow(key) {
			t.Errorf("the root has %v of %s, want 1 unit", state, key)
		}
	}
	if n := len(f.roots[0].counters); n != 6 {
		t.Errorf("the root has %d counters, want 6", n)
	}
}

// A refund to a counter that was removed to make room for others gives no second quota.
func TestRefundAfterRemoval(t *testing.T) {
	window := &throttler.Policy{Name: "window", Limits: hourAndBucket.Limits[:1]}
	f := newFleet(t, 1, 1, Options{})
	f.roots[0].down = true
	d := f.taking(0, window, 100)
	s := f.processes[0].backend.stripeOf("alice")
	s.Remove(s.Values()[0])
	if _, err := f.processes[0].throttler.Refund(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	admitted := 0
	for range 150 {
		if f.taking(0, window, 1).Allowed {
			admitted++
		}
	}
	if admitted != 100 {
		t.Errorf("%d were admitted of 100", admitted)
	}
}

// A key takes the same memory whatever its length: MaxKeys bounds bytes too.
func TestLongKeysAreNotKept(t *testing.T) {
	f := newFleet(t, 1, 1, Options{})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range 500 {
		if d, err := f.processes[0].throttler.Take(t.Context(), hourAndBucket.Charge(fmt.Sprint(strings.Repeat("k", 64<<10), i))); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if grown := heap() - before; grown > 2<<20 {
		t.Errorf("500 keys of 64 KiB take %d KiB", grown>>10)
	}
	runtime.KeepAlive(f)
}

// The names of counters at roots are the same in all processes, and in all versions.
func TestNames(t *testing.T) {
	core := &throttler.Policy{Name: "core"}
	for want, c := range map[string]throttler.Charge{
		"a5c41492e157759aa0540d42": {Policy: core, Key: "alice", Partition: "alice"},
		"b69844f440bbe26a7cb6e90d": {Policy: core, Key: "alice", Partition: "team"},
	} {
		if n := nameOf(&c); hex.EncodeToString(n[:]) != want {
			t.Errorf("%q of %q is %x at roots; want %s", c.Key, c.Partition, n, want)
		}
	}
	if n := pooledName("core", 7); hex.EncodeToString(n[:]) != "48df3bb4f33350b0bfb064ac" {
		t.Errorf("a pooled counter is %x at roots", n)
	}
}

// A debt of more units than an int64 holds remains one, with and without a root.
func TestDebtsAreBounded(t *testing.T) {
	for _, down := range []bool{false, true} {
		f := newFleet(t, 1, 1, Options{})
		f.roots[0].down = down
		charge := hourAndBucket.Charge("alice")
		charge.Cost, charge.Mode = quota.MaxQuota, quota.Record
		for i := range 1500 {
			d, err := f.processes[0].throttler.Take(t.Context(), charge)
			if err != nil {
				t.Fatal(err)
			}
			for k := range 2 {
				if used := d.Limit(k).Used; used != quota.MaxQuota {
					t.Fatalf("a root is down: %v; after %d charges of 2^53, %d are used of limit %d; want 2^53, the most that is reported", down, i+1, used, k)
				}
			}
			if i%100 == 0 {
				f.advance(f.elapsed + DefaultSync)
			}
		}
	}
}

// A refund returns units to a bucket in debt by more units than an int64 holds.
func TestRefundInDebt(t *testing.T) {
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota.MaxQuota, Window: time.Millisecond, Algorithm: throttler.TokenBucket}}}
	f := newFleet(t, 1, 1, Options{})
	charge := core.Charge("alice")
	charge.Cost, charge.Mode = quota.MaxQuota, quota.Record
	for i := range int64(1500) {
		d, err := f.processes[0].throttler.Take(t.Context(), charge)
		if err != nil {
			t.Fatal(err)
		}
		after, err := f.processes[0].throttler.Refund(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		if ms := after.Limit(0).ResetAt.Sub(d.At()).Milliseconds(); ms != i {
			t.Fatalf("after %d charges of a ms each and a refund, the bucket drains in %d ms; want %d", i+1, ms, i)
		}
		if _, err := f.processes[0].throttler.Take(t.Context(), charge); err != nil {
			t.Fatal(err)
		}
	}
}

// A single charge of more than the capacity, recorded or settled, is kept in full, also in a bucket
// that is in use.
func TestSequentialDebtOfABusyBucket(t *testing.T) {
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Second, Algorithm: throttler.TokenBucket}}}
	for _, load := range []float64{50, 160} {
		for _, mode := range []quota.Mode{quota.Enforce, quota.Record} {
			f := newFleet(t, 8, 1, Options{})
			offer := func(length time.Duration) []int {
				return f.offer(load, f.elapsed+length, time.Second, p.Charge("alice"), f.loads()["even"])
			}
			offer(time.Minute)
			c := p.Charge("alice")
			c.Mode = mode
			if mode == quota.Record {
				c.Cost = 1000
			}
			var d throttler.Decision
			var err error
			for ; err == nil && !d.Allowed; d, err = f.processes[0].throttler.Take(t.Context(), c) {
				f.advance(f.elapsed + time.Millisecond)
			}
			if err == nil && mode == quota.Enforce {
				_, err = f.processes[0].throttler.Settle(t.Context(), d, 1000)
			}
			if err != nil {
				t.Fatal(err)
			}
			if each := offer(12 * time.Second); sum(each[1:9]) > 50 {
				t.Errorf("load %v, mode %v: %v a second after a debt that drains in 10 s", load, mode, each)
			}
		}
	}
}

// A refund reaches a root that hangs meanwhile.
func TestRefundWhileARootHangs(t *testing.T) {
	for roots := 1; roots <= 2; roots++ {
		f := newFleet(t, 2, roots, Options{})
		d := f.taking(0, hourAndBucket, 90)
		f.settle()
		f.roots[roots-1].down = true
		f.advance(f.elapsed + time.Second)
		if _, err := f.processes[0].throttler.Settle(t.Context(), d, 10); err != nil {
			t.Fatal(err)
		}
		f.advance(f.elapsed + time.Second)
		f.roots[roots-1].down = false
		f.advance(f.elapsed + time.Minute)
		f.settle()
		for i := range f.processes {
			if used := f.bothUsed(i); used != [2]int64{10, 10} {
				t.Errorf("%d roots: process %d has used %v; want 10", roots, i, used)
			}
		}
	}
}
