package synced

import (
	"container/heap"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// Eight processes are offered 1.6 times the quota of 1,000 a second. What happens to them changes
// what is admitted in each ten seconds from then on by no more than the bound.
func TestSequentialChangesUnderLoad(t *testing.T) {
	const quota, offered = 1000, 1600
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 300}}}
	charge := policy.Charge("alice")
	for _, c := range []struct {
		name        string
		roots       int
		over, under float64 // percent
		happens     func(f *fleet, second int)
	}{
		{"a root is flushed every ten seconds", 1, 2, 3, func(f *fleet, second int) {
			if second%10 == 0 {
				f.roots[0].flush()
			}
		}},
		{"one of two roots is flushed every ten seconds", 2, 1, 2, func(f *fleet, second int) {
			if second%10 == 0 {
				f.roots[0].flush()
			}
		}},
		{"a root is added, as processes restart one by one", 1, 2, 3, func(f *fleet, second int) {
			if second == 0 {
				f.roots = append(f.roots, newModelRoot("added"))
			}
			if second < len(f.processes) {
				f.replace(second, 0)
			}
		}},
		{"a process stops for a minute", 1, 2, 3, func(f *fleet, second int) {
			if second == 0 {
				f.stop(0, time.Minute)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(t, 8, c.roots, Options{})
			choose := func(elapsed time.Duration) int {
				for {
					if i := f.random.IntN(len(f.processes)); !f.isStopped(i) {
						return i
					}
				}
			}
			f.offer(offered, 4*time.Second, time.Second, charge, choose)
			var each []int
			for second := range 80 {
				c.happens(f, second)
				each = append(each, sum(f.offer(offered, f.elapsed+time.Second, time.Second, charge, choose)))
			}
			for i := 0; i+10 <= len(each); i += 10 {
				if off := 100 * (float64(sum(each[i:i+10]))/(10*quota) - 1); off > c.over || off < -c.under {
					t.Errorf("%+.1f %% of the quota in the seconds from %d on; want from %v to %v", off, i, -c.under, c.over)
				}
			}
			t.Logf("%+.2f %%; %v", 100*(float64(sum(each))/float64(quota*len(each))-1), each)
		})
	}
}

// stop makes the syncs of process i wait: its host has stopped.
func (f *fleet) stop(i int, length time.Duration) {
	for k, s := range f.syncs {
		if s.process == f.processes[i] {
			s.due = f.elapsed + length
			heap.Fix(&f.syncs, k)
		}
	}
}

// isStopped reports whether the syncs of process i wait for long.
func (f *fleet) isStopped(i int) bool {
	for _, s := range f.syncs {
		if s.process == f.processes[i] && s.due > f.elapsed+2*f.options.Sync {
			return true
		}
	}
	return false
}

// If the clocks of half of the processes are a second ahead, the quota is admitted, of a bucket that
// takes longer than that to drain, and of a window that is longer.
func TestSequentialClocksApart(t *testing.T) {
	for _, limit := range []throttler.Limit{
		{Quota: 1000, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 3000},
		perWindow(10_000, 10*time.Second),
	} {
		policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{limit}}
		f := newFleet(t, 8, 1, Options{})
		for i := range 4 {
			f.replace(i, time.Second)
		}
		f.rate(1600, 10, policy.Charge("alice"))
		if n := f.rate(1600, 60, policy.Charge("alice")); n < 980 || n > 1010 {
			t.Errorf("%v: %d a second were admitted, of a quota of 1000", limit, n)
		}
	}
}

// A quota that is edited while the link between two regions is cut, in both or in one of them, is
// what is admitted from the sixth second after the cut on.
func TestSequentialEditedInACut(t *testing.T) {
	policyOf := func(quota int64) *throttler.Policy {
		return &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 10 * quota}}}
	}
	const before, processes = 1000, 50
	for _, edited := range []int64{500, 2000} {
		for _, far := range []int64{edited, before} { // of the other region, while the link is cut
			f := regions(t, 1, processes, 2, 20*time.Second, 40*time.Second, Options{Sync: time.Second, Low: 0.5})
			offer := func(quota int64, until time.Duration, from, to int) []int {
				return f.offer(4000*float64(to-from)/processes, until, time.Second, policyOf(quota).Charge("alice"), func(time.Duration) int { return from + f.random.IntN(to-from) })
			}
			offer(before, 30*time.Second, 0, processes)
			for f.elapsed < 40*time.Second {
				offer(edited, f.elapsed+500*time.Millisecond, 0, processes/2)
				offer(far, f.elapsed+500*time.Millisecond, processes/2, processes)
			}
			after := offer(edited, 70*time.Second, 0, processes)
			n := sum(after[6:]) / len(after[6:])
			t.Logf("from 1000 to %d, and %d in the other region: %d a second; %v", edited, far, n, after)
			if float64(n) < 0.85*float64(edited) || float64(n) > 1.1*float64(edited) {
				t.Errorf("from 1000 to %d, and %d in the other region until the end of the cut: %d a second were admitted from the sixth second after it on", edited, far, n)
			}
		}
	}
}

// A load of many times the quota is admitted as the quota if the capacity is ten syncs.
func TestSequentialManyTimesTheQuota(t *testing.T) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 1000}}}
	for _, times := range []float64{1.6, 3, 10, 30} {
		f := newFleetOf(t, 1, 50, 1, Options{Sync: time.Second, Low: 0.5})
		f.rate(100*times, 30, policy.Charge("alice"))
		n := f.rate(100*times, 60, policy.Charge("alice"))
		t.Logf("%v times the quota: %d a second", times, n)
		if n < 95 || n > 110 {
			t.Errorf("of %v times the quota of 100 a second, %d were admitted", times, n)
		}
	}
}
