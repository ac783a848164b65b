package synced

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// hourAndBucket has counts that last for hours.
var hourAndBucket = &throttler.Policy{Name: "long", Limits: []throttler.Limit{
	{Quota: 100, Window: 10 * time.Hour, Aligned: true},
	{Quota: 100, Window: 10 * time.Hour, Algorithm: throttler.TokenBucket},
}}

// used returns what processes say is used of hourAndBucket.
func (f *fleet) used(charge throttler.Charge) (all [][2]int64) {
	f.Helper()
	for round := range 2 {
		for _, p := range f.processes {
			d, err := p.throttler.Peek(f.Context(), charge)
			if err != nil {
				f.Fatal(err)
			}
			if round > 0 {
				all = append(all, [2]int64{d.Limit(0).Used, d.Limit(1).Used})
			}
		}
		f.advance(f.at + 3*DefaultSync)
	}
	return all
}

// A root that loses some of its memory is right again within two syncs, however it loses
// it: also if it still knows the processes, because it evicted the counters alone, or
// because it was restored from an older copy of all.
func TestRootsLoseSomeOfTheirMemory(t *testing.T) {
	for name, fault := range map[string]func(root, older *modelRoot){
		"all":           func(root, _ *modelRoot) { root.flush() },
		"counters":      func(root, _ *modelRoot) { clear(root.counters) },
		"processes":     func(root, _ *modelRoot) { clear(root.processes) },
		"since a while": func(root, older *modelRoot) { root.counters, root.processes = older.counters, older.processes },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 3, 1, Options{}, hourAndBucket)
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
			f.advance(f.at + 3*DefaultSync)
			f.used(charge)
			root := f.roots[0]
			older := &modelRoot{counters: maps.Clone(root.counters), processes: maps.Clone(root.processes)}
			take(f.processes[0])
			f.used(charge)
			fault(root, older)
			take(f.processes[1])
			f.advance(f.at + 3*DefaultSync)
			for i, used := range f.used(charge) {
				if used[0] < 75 || used[1] < 75 { // more, if it thinks that others go on
					t.Errorf("process %d: %v are used, want 75 and 75", i, used)
				}
			}
			for key, state := range root.counters {
				if strings.HasSuffix(key, "a") && state[1] != 75 {
					t.Errorf("the root has %v of %s, want 75 units", state, key)
				}
			}
		})
	}
}

// Units that were admitted while no root answered, and have drained, are no debt when
// roots are back.
func TestDrainedUnitsAreNoDebt(t *testing.T) {
	f := newFleet(t, 8, 1, Options{}, perSecond)
	even := f.loads()["even"]
	offer := func(perSec float64, length time.Duration) int {
		return sum(f.offer(perSec, f.at+length, time.Second, perSecond.Charge("alice"), even))
	}
	offer(500, 2*time.Second)
	f.roots[0].down = true
	offer(800, 20*time.Second)
	f.advance(f.at + 3*time.Second) // all has drained
	f.roots[0].down = false
	f.advance(f.at + 3*time.Second) // all have rejoined
	if n := offer(500, 5*time.Second); n < 2300 {
		t.Errorf("%d of some 2500 requests were admitted, of a quota of 5000", n)
	}
}

// A process counts its own units to the last, of whatever size.
func TestSmallUnits(t *testing.T) {
	policy := &throttler.Policy{Name: "bytes", Limits: []throttler.Limit{{Quota: 1 << 40, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 1000}}}
	f := newFleet(t, 1, 1, Options{}, policy)
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
