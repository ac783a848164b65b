package synced

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// regions has a root in each of two regions, or in the first alone, and half of the processes in each.
// Between two instants, the regions are cut off from each other.
func regions(t *testing.T, seed uint64, processes, roots int, begin, end time.Duration, o Options) *fleet {
	f := newFleetOf(t, seed, processes, roots, o)
	f.cut = func(process int, root *modelRoot) bool {
		region := 0
		if process > processes/2 {
			region = 1
		}
		return f.elapsed >= begin && f.elapsed < end && f.roots[region%roots] != root || f.elapsed >= begin && f.elapsed < end && region == 1 && roots == 1
	}
	return f
}

// A cut between two regions admits at most two quotas while it lasts. Its debt is at most one
// capacity: no client is refused altogether for longer than it takes to drain, and from the sixth
// second on the quota is admitted again.
func TestSequentialCuts(t *testing.T) {
	const quota, capacity, offered = 100, 300, 200
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: capacity}}}
	for _, c := range []struct {
		roots  int
		length time.Duration
	}{{2, 3 * time.Second}, {2, 10 * time.Second}, {2, time.Minute}, {1, 10 * time.Second}, {2, 5 * time.Minute}} {
		t.Run(fmt.Sprintf("%d roots, %v", c.roots, c.length), func(t *testing.T) {
			const runs = 5
			var before, during int
			after := make([]int, 30)
			for seed := range uint64(runs) {
				const begin = 40 * time.Second
				end := begin + c.length
				f := regions(t, seed+1, 50, c.roots, begin, end, Options{Sync: time.Second})
				even := f.loads()["even"]
				f.offer(offered, 20*time.Second, time.Second, policy.Charge("alice"), even)
				before += sum(f.offer(offered, begin, time.Second, policy.Charge("alice"), even))
				during += sum(f.offer(offered, end, time.Second, policy.Charge("alice"), even))
				refused := 0 // seconds in a row in which nearly all were
				for i, n := range f.offer(offered, end+30*time.Second, time.Second, policy.Charge("alice"), even) {
					after[i] += n
					if refused++; n > quota/20 {
						refused = 0
					}
					if refused > capacity/quota {
						t.Errorf("seed %d: nearly all are refused for %d s, until second %d after the cut", seed+1, refused, i)
					}
				}
			}
			mean := func(n int, seconds float64) int { return int(float64(n) / seconds / runs) }
			seconds := make([]int, 14)
			for i := range seconds {
				seconds[i] = mean(after[i], 1)
			}
			bound := quota * 2
			if c.roots == 1 { // the side without one has its share
				bound = quota * 14 / 10
			}
			if n := mean(during, c.length.Seconds()); n > bound {
				t.Errorf("%d a second were admitted in the cut of a quota of %d; want at most %d", n, quota, bound)
			}
			for from, length := range map[int]int{6: 6, 12: 18} {
				if n := mean(sum(after[from:from+length]), float64(length)); n < quota*85/100 || n > quota*110/100 {
					t.Errorf("%d a second were admitted from %d s after the cut on; want the quota of %d", n, from, quota)
				}
			}
			t.Logf("before %d a second, during %d; after, by second %v, 6-12 s %d, 12-30 s %d", mean(before, 20), mean(during, c.length.Seconds()),
				seconds, mean(sum(after[6:12]), 6), mean(sum(after[12:]), 18))
		})
	}
}

// Two processes are cut off from the second of two roots, and tell it their levels afterwards. The
// first's level has the second's units, which the first root told it: they count once.
func TestLateUnitsInAnothersLevel(t *testing.T) {
	const long = 2 * time.Second
	f := newFleet(t, 2, 2, Options{})
	f.taking(0, hourAndBucket, 5)
	f.taking(1, hourAndBucket, 5)
	f.settle()
	cut := map[int]bool{1: true, 2: true}
	f.cut = func(process int, root *modelRoot) bool { return cut[process] && root == f.roots[1] }
	f.taking(1, hourAndBucket, 1)
	f.advance(f.elapsed + 2*DefaultSync) // the call with this unit has no reply
	f.taking(0, hourAndBucket, 25)
	f.taking(1, hourAndBucket, 25)
	f.advance(f.elapsed + long)
	for process := range len(cut) {
		cut[process+1] = false
		f.advance(f.elapsed + long)
	}
	f.settle()
	for i := range f.processes {
		if used := f.bothUsed(i)[1]; used != 61 {
			t.Errorf("process %d has used %d units of the bucket; want 61", i, used)
		}
	}
}

// A root that hung gets the units of a window once, also if a process that started meanwhile knows
// the sum from the other root.
func TestUnitsThatARootMissed(t *testing.T) {
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{perWindow(10_000, 10*time.Hour)}}
	f := newFleet(t, 8, 2, Options{})
	offer := func(length time.Duration) int {
		return sum(f.offer(100, f.elapsed+length, time.Second, p.Charge("alice"), f.loads()["even"]))
	}
	admitted := offer(10 * time.Second)
	f.roots[1].down = true
	admitted += offer(time.Second)
	f.replace(0, 0)
	admitted += offer(time.Minute)
	f.roots[1].down = false
	f.advance(f.elapsed + time.Minute)
	f.settled(p.Charge("alice"))
	f.advance(f.elapsed + time.Minute)
	if used := f.peek(3, p.Charge("alice")).Used; float64(used) > 1.02*float64(admitted) {
		t.Errorf("%d units were admitted, and %d are used", admitted, used)
	}
}
