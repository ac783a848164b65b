package leased_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
)

// t0 is where clocks start.
var t0 = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// A fleet is processes that lease from one store, on a clock that the test moves.
type fleet struct {
	*testing.T
	clock     *clock.Manual
	store     *memorybackend.Backend
	processes []*process
	options   leased.Options
}

type process struct {
	backend   *leased.Backend
	throttler *throttler.Throttler
}

func newFleet(t *testing.T, n int, o leased.Options) *fleet {
	f := &fleet{T: t, clock: clock.NewManual(t0), store: memorybackend.NewDefault(), options: o}
	f.options.Clock = f.clock
	for range n {
		f.processes = append(f.processes, f.start())
	}
	return f
}

func (f *fleet) start() *process {
	b := open(f, f.store, &f.options)
	front, err := refusals.New(b, nil)
	if err != nil {
		f.Fatal(err)
	}
	return &process{b, throttler.New(front, &throttler.Options{Clock: f.clock})}
}

// loads are ways to spread requests over processes.
var loads = []struct {
	name   string
	choose func(r *rand.Rand, processes int, at time.Duration) int
}{
	{"even", func(r *rand.Rand, n int, _ time.Duration) int { return r.IntN(n) }},
	{"one hot", func(r *rand.Rand, n int, _ time.Duration) int {
		if r.IntN(10) > 0 {
			return 0
		}
		return r.IntN(n)
	}},
	{"moving each second", func(_ *rand.Rand, n int, at time.Duration) int { return int(at/time.Second) % n }},
}

// Whatever the load, and whichever process is killed, no window admits more than its quota. Few
// calls use nearly all of it, and no answer promises more units than are left.
func TestSequentialFleetNeverExceedsTheQuota(t *testing.T) {
	for _, policy := range []*throttler.Policy{
		{Name: "per-second", Limits: []throttler.Limit{{Quota: 1000, Window: time.Second, Aligned: true}}},
		{Name: "per-10s", Limits: []throttler.Limit{{Quota: 10_000, Window: 10 * time.Second}}},
		{Name: "both", Limits: []throttler.Limit{
			{Quota: 1000, Window: time.Second, Aligned: true},
			{Quota: 8000, Window: 10 * time.Second, Aligned: true},
		}},
	} {
		for _, load := range loads {
			for _, kills := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/kills %v", policy.Name, load.name, kills), func(t *testing.T) {
					f := newFleet(t, 8, leased.Options{})
					f.run(policy, load.choose, kills)
				})
			}
		}
	}
}

// run offers 1.6 times the quota for 30 seconds.
func (f *fleet) run(policy *throttler.Policy, choose func(*rand.Rand, int, time.Duration) int, kills bool) {
	r := testseed.Rand(f, 0)
	const length, sweepEvery, offered = 30 * time.Second, 50 * time.Millisecond, 1600
	type window struct {
		limit   int
		resetAt time.Time
	}
	admitted := map[window]int64{}
	decisions, asked := 0, int64(0)
	for at := time.Duration(0); at < length; {
		step := time.Duration(r.ExpFloat64() / offered * float64(time.Second))
		if at/sweepEvery != (at+step)/sweepEvery {
			for _, p := range f.processes {
				p.backend.Sweep()
			}
			if i := r.IntN(len(f.processes)); kills && r.IntN(40) == 0 {
				asked += f.processes[i].backend.Stats().Asked
				f.processes[i] = f.start() // the old process's units are lost
			}
		}
		at += step
		f.clock.Set(t0.Add(at))
		d, err := f.processes[choose(r, len(f.processes), at)].throttler.Take(context.Background(), policy.Charge("alice"))
		if err != nil {
			f.Fatal(err)
		}
		decisions++
		for i, s := range d.Limits() {
			if !d.Allowed && !s.Refused {
				continue // the count at the time that the other limit refused
			}
			if !s.ResetAt.After(f.clock.Now()) {
				f.Fatalf("after %v, an answer is of a window of %v that ended at %v", at, s.Limit, s.ResetAt)
			}
			w := window{i, s.ResetAt}
			if d.Allowed {
				admitted[w]++
			}
			if n := admitted[w]; n > s.Limit.Quota || s.Remaining > s.Limit.Quota-n {
				f.Fatalf("after %v, %d of %v are admitted, and an answer says that %d remain", at, n, s.Limit, s.Remaining)
			}
		}
	}
	for _, p := range f.processes {
		asked += p.backend.Stats().Asked
	}
	// Only windows that began after the start and ended before the end count.
	last, whole, units := policy.Limits[len(policy.Limits)-1], 0, int64(0)
	for w, n := range admitted {
		if w.limit == len(policy.Limits)-1 && !w.resetAt.Before(t0.Add(last.Window)) && !w.resetAt.After(t0.Add(length)) {
			whole++
			units += n
		}
	}
	used := float64(units) / float64(last.Quota) / float64(whole)
	perCall := float64(decisions) / float64(asked)
	f.Logf("%.1f %% of the quota used, %.0f decisions for each call", 100*used, perCall)
	if !kills && used < 0.9 {
		f.Errorf("%.1f %% of the quota was used; want 90", 100*used)
	}
	if !kills && perCall < 20 {
		f.Errorf("a call for every %.0f decisions; want one for 20", perCall)
	}
}

// The store has never charged less than the processes have admitted. The difference is the
// units that they hold. None are left at the end of a window if the load exceeds the quota, and
// many if it doesn't.
func TestNothingIsAdmittedBeforeItIsCharged(t *testing.T) {
	const length, every, processes = 3 * time.Second, 10 * time.Millisecond, 8
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{
		{Quota: 1000, Window: time.Second, Aligned: true},
		{Quota: 100_000, Window: time.Hour, Aligned: true},
	}}
	charge := policy.Charge("alice")
	for _, offered := range []float64{700, 1600} {
		t.Run(fmt.Sprint(offered, " a second"), func(t *testing.T) {
			f, r := newFleet(t, processes, leased.Options{}), testseed.Rand(t, 0)
			store := throttler.New(f.store, &throttler.Options{Clock: f.clock})
			step := func() time.Duration { return time.Duration(r.ExpFloat64() / offered * float64(time.Second)) }
			inWindow := 0
			next := step()
			for at := time.Duration(0); at < length; at += every {
				if at%time.Second == 0 {
					inWindow = 0
				}
				for ; next < at+every; next += step() {
					f.clock.Set(t0.Add(next))
					d, err := f.processes[r.IntN(processes)].throttler.Take(context.Background(), charge)
					if err != nil {
						t.Fatal(err)
					}
					if d.Allowed {
						inWindow++
					}
				}
				d, err := store.Peek(context.Background(), charge)
				if err != nil {
					t.Fatal(err)
				}
				if used := d.Limit(0).Used; int64(inWindow) > used || used > 1000 {
					t.Errorf("after %v, %d are admitted, and %d charged; want at most so many, and at most 1000", at, inWindow, used)
				}
				if (at+every)%(50*time.Millisecond) == 0 {
					for _, p := range f.processes {
						p.backend.Sweep()
					}
				}
			}
		})
	}
}
