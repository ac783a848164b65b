package synced

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

var histories = flag.Int("histories", 8, "the random histories of TestSequentialHistories")

// Whatever happened to processes and roots, in any order, a few seconds after it ended they
// admit the quota, and no more.
func TestSequentialHistories(t *testing.T) {
	first := testseed.Of(t)
	for i := range *histories {
		runHistory(t, testseed.Nth(first, uint64(i)))
	}
}

func runHistory(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	quota := 100 + r.Int64N(200)
	limit := throttler.Limit{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: quota/3 + r.Int64N(quota)}
	if r.IntN(3) == 0 {
		limit = throttler.Limit{Quota: 2 * quota, Window: 2 * time.Second, Aligned: true}
	}
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{limit}}
	f := newFleetOf(t, seed, 2+r.IntN(4), 1+r.IntN(3), Options{})
	f.oneWay = f.upTo(DefaultSync / 4)
	if !limit.Aligned { // clocks that differ end windows at different times
		f.replace(0, f.upTo(200*time.Millisecond)-100*time.Millisecond)
	}
	type taking struct {
		process  *process
		decision throttler.Decision
	}
	var taken []taking
	offer := func(perSecond float64, length time.Duration) (admitted int64) {
		for end := f.elapsed + length; ; {
			next := f.elapsed + time.Duration(f.random.ExpFloat64()/perSecond*float64(time.Second))
			if next >= end {
				f.advance(end)
				return admitted
			}
			f.advance(next)
			p := f.processes[f.random.IntN(len(f.processes))]
			charge := policy.Charge("alice")
			charge.Cost = 1 + f.random.Int64N(5)
			d, err := p.throttler.Take(t.Context(), charge)
			if err != nil {
				t.Fatal(err)
			}
			if !d.Allowed {
				continue
			}
			admitted += charge.Cost
			if f.random.IntN(10) == 0 { // a part is refunded
				settled := f.random.Int64N(charge.Cost + 1)
				if _, err := p.throttler.Settle(t.Context(), d, settled); err != nil {
					t.Fatal(err)
				}
				admitted += settled - charge.Cost
			} else if f.random.IntN(30) == 0 {
				taken = append(taken, taking{p, d})
			}
		}
	}
	for range 25 {
		for _, p := range f.processes {
			if r.IntN(2) == 0 {
				p.setQuota(t, policy, quota)
			}
		}
		root := f.roots[r.IntN(len(f.roots))]
		switch r.IntN(10) {
		case 0:
			root.flush()
		case 1:
			root.down = !root.down
		case 2:
			root.deaf = !root.deaf
		case 3:
			clear(root.counters)
		case 4:
			clear(root.numbers)
		case 5:
			i := r.IntN(len(f.processes))
			f.replace(i, 0)
			f.processes[i].setQuota(t, policy, quota)
		case 6:
			quota = 100 + r.Int64N(200) // processes learn of it at different times
		case 7:
			for _, earlier := range taken { // late
				if _, err := earlier.process.throttler.Refund(t.Context(), earlier.decision); err != nil {
					t.Fatal(err)
				}
			}
			taken = nil
		case 8:
			f.advance(f.elapsed + f.upTo(3*time.Second)) // no requests
		}
		offer(20+r.Float64()*float64(quota), f.upTo(time.Second)+1)
	}
	for _, root := range f.roots {
		root.down, root.deaf = false, false
	}
	for _, p := range f.processes {
		p.setQuota(t, policy, quota)
	}
	const measured = 10 * time.Second
	offer(float64(quota), 6*time.Second)
	f.advance((f.elapsed/(2*time.Second) + 1) * 2 * time.Second)
	offer(float64(quota), 2*time.Second) // three times the quota
	admitted := offer(float64(quota), measured)
	off := 100 * (float64(admitted)/(float64(quota)*measured.Seconds()) - 1)
	if testing.Verbose() {
		t.Logf("WEIR_SEED=%d -histories 1: %v, %d processes, %d roots: %+.1f %%", seed, limit, len(f.processes), len(f.roots), off)
	}
	over, under := 4.0, -4.0
	if limit.Aligned { // a window that is full after a third leaves an error of one sync, once a window
		over, under = 6, -6
	}
	if off > over || off < under {
		t.Errorf("WEIR_SEED=%d -histories 1: %v: %+.1f %% of the quota was admitted", seed, limit, off)
	}
}

// replace kills process i, and starts another with a clock that is ahead in its place.
func (f *fleet) replace(i int, ahead time.Duration) {
	f.processes[i].killed = true
	f.processes[i] = f.start(ahead)
}

// setQuota changes the quota of p's one limit, at one process.
func (p *process) setQuota(t testing.TB, policy *throttler.Policy, perSecond int64) {
	t.Helper()
	l := policy.Limits[0]
	l.Quota = perSecond * int64(l.Window/time.Second)
	p.setLimits(t, policy.Name, l)
}

// setLimits changes the limits of a policy, at one process.
func (p *process) setLimits(t testing.TB, policy string, limits ...throttler.Limit) {
	t.Helper()
	p.edit(t, func(e *policies.Edit) { e.Set(&throttler.Policy{Name: policy, Limits: limits}) })
}

// edit changes the table of policies of one process.
func (p *process) edit(t testing.TB, change func(*policies.Edit)) {
	t.Helper()
	if err := p.policies.Source("test").Edit(change); err != nil {
		t.Fatal(err)
	}
}
