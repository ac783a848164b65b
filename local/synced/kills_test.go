package synced

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// Every half second, one of eight processes is killed, and another takes its place. Of a bucket,
// they admit the quota and the units that died with the killed: no root, and so no other process,
// can know of these. A window forgets its debt, so what the new processes admit until they have
// heard of it comes on top.
func TestSequentialKills(t *testing.T) {
	const quota, processes, measured = 1000, 8, 2 * time.Minute
	for _, c := range []struct {
		limit       throttler.Limit
		over, under float64 // percent of the quota, in addition to the units that no root has
	}{
		{throttler.Limit{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 300}, 0.3, 0.3},
		{perWindow(quota, time.Second), 3.5, 0.5},
		{perWindow(10*quota, 10*time.Second), 5, 0.5},
	} {
		for _, name := range []string{"even", "one hot", "moving each second"} {
			t.Run(fmt.Sprintf("%v/%s", c.limit, name), func(t *testing.T) {
				policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{c.limit}}
				f := newFleet(t, processes, 1, Options{})
				choose := f.loads()[name]
				offer := func(length time.Duration) int {
					return sum(f.offer(1.6*quota, f.elapsed+length, time.Second, policy.Charge("alice"), choose))
				}
				offer(max(c.limit.Window, 4*time.Second))
				begin, admitted, lost, kills := f.elapsed, 0, 0, 0
				for f.elapsed < begin+measured {
					admitted += offer(250*time.Millisecond + f.upTo(500*time.Millisecond))
					i := f.random.IntN(processes)
					lost += f.unheard(i)
					kills++
					f.replace(i, 0)
				}
				percent := func(units float64) float64 { return 100 * units / (quota * (f.elapsed - begin).Seconds()) }
				over := percent(float64(admitted)) - 100
				t.Logf("%+.2f %% of the quota; %.2f %% died unsent with %d processes", over, percent(float64(lost)), kills)
				if rest := over - percent(float64(lost)); rest > c.over || rest < -c.under {
					t.Errorf("%+.2f %% of the quota was admitted, and %.2f %% died with processes: %+.2f %% more", over, percent(float64(lost)), rest)
				}
			})
		}
	}
}

// unheard returns the units of process i that the first root has not heard of.
func (f *fleet) unheard(i int) (units int) {
	b := f.processes[i].backend
	for k := range b.stripes {
		for _, c := range b.stripes[k].Values() {
			units += int(c.counts[0].pending(0))
		}
	}
	a := b.aggregators[0]
	for k := range a.calls {
		if f.roots[0].numbers[a.process].number >= double(a.calls[k].header) { // the reply is on its way
			for _, e := range a.calls[k].about {
				units -= int(e.units)
			}
		}
	}
	return units
}
