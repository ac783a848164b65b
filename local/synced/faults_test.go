package synced

import (
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// perSecond is a bucket of 1,000 a second, with half a second's burst.
var perSecond = &throttler.Policy{Name: "core", Limits: []throttler.Limit{{
	Quota: 1000, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 500,
}}}

// Whatever happens to the roots, the admitted rate stays the quota's, as long as one of
// them works.
func TestSequentialRootsFail(t *testing.T) {
	for _, fault := range []struct {
		name     string
		begin    func(f *fleet)
		end      func(f *fleet)
		over     float64 // percent, while it lasts
		under    float64
		overNext float64 // in the second after it
	}{
		{"one loses its memory", func(f *fleet) { f.roots[0].flush() }, func(*fleet) {}, 5, 5, 10},
		{"all lose their memory", func(f *fleet) { f.roots[0].flush(); f.roots[1].flush() }, func(*fleet) {}, 5, 5, 10},
		{"one hangs", func(f *fleet) { f.roots[0].down = true }, func(f *fleet) { f.roots[0].down = false }, 5, 5, 10},
		{"one hangs, and has lost its memory", func(f *fleet) { f.roots[0].down = true },
			func(f *fleet) { f.roots[0].down = false; f.roots[0].flush() }, 5, 5, 10},
		{"replies of one are lost", func(f *fleet) { f.roots[0].deaf = true }, func(f *fleet) { f.roots[0].deaf = false }, 5, 5, 10},
		{"replies of all are lost", func(f *fleet) { f.roots[0].deaf, f.roots[1].deaf = true, true },
			func(f *fleet) { f.roots[0].deaf, f.roots[1].deaf = false, false }, 30, 30, 10},
		{"all hang", func(f *fleet) { f.roots[0].down, f.roots[1].down = true, true },
			func(f *fleet) { f.roots[0].down, f.roots[1].down = false, false }, 30, 30, 10},
		{"all restart empty", func(f *fleet) { f.roots[0].down, f.roots[1].down = true, true },
			func(f *fleet) {
				for _, r := range f.roots {
					r.down = false
					r.flush()
				}
			}, 30, 30, 10},
	} {
		t.Run(fault.name, func(t *testing.T) {
			f := newFleet(t, 8, 2, Options{})
			choose := f.loads()["even"]
			offer := func(seconds int) float64 {
				n := sum(f.offer(1600, f.elapsed+time.Duration(seconds)*time.Second, time.Second, perSecond.Charge("alice"), choose))
				return 100 * (float64(n)/float64(1000*seconds) - 1)
			}
			offer(5)
			fault.begin(f)
			during := offer(10)
			fault.end(f)
			after, later := offer(2), offer(10)
			t.Logf("%+.1f %% during, %+.1f %% in two seconds after, %+.1f %% later", during, after, later)
			if during > fault.over || during < -fault.under {
				t.Errorf("%+.1f %% of the quota during the fault", during)
			}
			if after > fault.overNext || after < -fault.overNext {
				t.Errorf("%+.1f %% of the quota in the two seconds after the fault", after)
			}
			if later > 2 || later < -2 {
				t.Errorf("%+.1f %% of the quota after the fault", later)
			}
		})
	}
}

// A root that loses its memory every ten seconds, the only one, costs little: each process sends
// what it last heard of a counter, and its units after that.
func TestSequentialFlushes(t *testing.T) {
	for _, limit := range []throttler.Limit{
		{Quota: 100, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 300},
		perWindow(1000, 10*time.Second),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{limit}}
			f := newFleet(t, 50, 1, Options{Sync: time.Second})
			f.rate(200, 20, policy.Charge("alice"))
			n := 0
			for range 10 {
				f.roots[0].flush()
				n += f.rate(200, 10, policy.Charge("alice"))
			}
			if n /= 10; n < 97 || n > 103 {
				t.Errorf("%d a second were admitted; the quota is 100", n)
			}
		})
	}
}

// While no root answers, each process fills its last known part of a quota that was used up before,
// of windows, too.
func TestSequentialWindowsWithoutRoots(t *testing.T) {
	for _, length := range []time.Duration{time.Second, 10 * time.Second} {
		for _, times := range []float64{1.6, 5} {
			p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{perWindow(1000*int64(length/time.Second), length)}}
			f := newFleet(t, 8, 1, Options{})
			offer := func(windows int) int {
				return sum(f.offer(1000*times, f.elapsed+time.Duration(windows)*length, time.Second, p.Charge("alice"), f.loads()["even"]))
			}
			offer(3)
			f.roots[0].down = true
			offer(1)
			if off := 100 * (float64(offer(6))/float64(6*p.Limits[0].Quota) - 1); off > 15 || off < -10 {
				t.Errorf("%v, %v times the quota: %+.1f %% in six windows", length, times, off)
			}
		}
	}
}

// Roots that hang for less than a call, or lose one call in twenty, cost little: the units go with the
// next call.
func TestSequentialLostCalls(t *testing.T) {
	hangs := func(f *fleet, r *modelRoot) bool {
		return f.elapsed%time.Second < 150*time.Millisecond && r == f.roots[int(f.elapsed/time.Second)%len(f.roots)]
	}
	loses := func(f *fleet, _ *modelRoot) bool { return f.random.Float64() < 0.05 }
	for _, c := range []struct {
		name  string
		roots int
		cut   func(f *fleet, r *modelRoot) bool
	}{{"one root hangs", 1, hangs}, {"two hang in turn", 2, hangs}, {"one root loses calls", 1, loses}, {"two lose calls", 2, loses}} {
		for _, low := range []float64{0.5, 1} {
			p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1000, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 1000}}}
			f := newFleet(t, 8, c.roots, Options{Low: low})
			offer := func(length time.Duration) int {
				return sum(f.offer(1600, f.elapsed+length, time.Second, p.Charge("alice"), f.loads()["even"]))
			}
			offer(10 * time.Second)
			f.cut = func(_ int, r *modelRoot) bool { return c.cut(f, r) }
			if off := 100 * (float64(offer(time.Minute))/60_000 - 1); off > 5 || off < -5 {
				t.Errorf("%s, Low %v: %+.1f %% of the quota", c.name, low, off)
			}
		}
	}
}
