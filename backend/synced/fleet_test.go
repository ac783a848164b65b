package synced

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

// t0 is where clocks start.
var t0 = time.Date(2030, 1, 2, 3, 4, 0, 0, time.UTC)

// fleet is processes that agree at roots, on a clock that the test moves. Each syncs at
// a phase of its own.
type fleet struct {
	testing.TB
	clock     *clock.Manual
	roots     []*modelRoot
	processes []*process
	turns     []turn // the syncs of all, in the order in which they are due
	next      int    // of turns
	random    *rand.Rand
	at        time.Duration
}

type process struct {
	backend   *Backend
	throttler *throttler.Throttler
}

// turn is when a process syncs with a root. All sync equally often, so one turn follows
// the other for ever.
type turn struct {
	due     time.Duration
	backend *Backend
	root    int
}

func newFleet(t testing.TB, processes, roots int, o Options, policies ...*throttler.Policy) *fleet {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f := &fleet{TB: t, clock: clock.NewManual(t0), random: rand.New(rand.NewPCG(seed, 0))}
	for i := range roots {
		f.roots = append(f.roots, newModelRoot(fmt.Sprint("root-", i)))
	}
	o.Clock = f.clock
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	for i := range processes {
		servers := make([]server, roots)
		for k := range servers {
			servers[k] = &modelServer{f.roots[k], fmt.Sprint("process-", i)}
		}
		b, err := newBackend(servers, policies, &o)
		if err != nil {
			t.Fatal(err)
		}
		p := &process{backend: b, throttler: throttler.New(b, &throttler.Options{Clock: f.clock})}
		for root := range roots {
			f.turns = append(f.turns, turn{time.Duration(f.random.Int64N(int64(o.Sync))), b, root})
		}
		f.processes = append(f.processes, p)
	}
	slices.SortFunc(f.turns, func(a, b turn) int { return cmp.Compare(a.due, b.due) })
	return f
}

// advance moves the clock, and makes the syncs that are due: each root's at its own time,
// as a process does.
func (f *fleet) advance(to time.Duration) {
	for len(f.turns) > 0 && f.turns[f.next].due <= to {
		turn := &f.turns[f.next]
		f.clock.Set(t0.Add(turn.due))
		turn.backend.syncOnce(context.Background(), turn.backend.roots[turn.root])
		turn.due += turn.backend.sync
		f.next = (f.next + 1) % len(f.turns)
	}
	f.at = to
	f.clock.Set(t0.Add(to))
}

// offer makes requests at a rate, to processes that choose selects, until an instant. It
// returns how many were admitted in each of the steps until then.
func (f *fleet) offer(perSecond float64, until, step time.Duration, charge throttler.Charge, choose func(at time.Duration) int) []int {
	begin := f.at
	admitted := make([]int, (until-begin+step-1)/step)
	for {
		next := f.at + time.Duration(f.random.ExpFloat64()/perSecond*float64(time.Second))
		if next >= until {
			f.advance(until)
			return admitted
		}
		f.advance(next)
		d, err := f.processes[choose(f.at)].throttler.Take(context.Background(), charge)
		if err != nil {
			f.Fatal(err)
		}
		if d.Allowed {
			admitted[(f.at-begin)/step]++
		}
	}
}

func sum(all []int) (n int) {
	for _, x := range all {
		n += x
	}
	return n
}

// loads are ways to spread requests over processes.
func (f *fleet) loads() map[string]func(time.Duration) int {
	n := len(f.processes)
	return map[string]func(time.Duration) int{
		"even": func(time.Duration) int { return f.random.IntN(n) },
		"one hot": func(time.Duration) int {
			if f.random.IntN(10) > 0 {
				return 0
			}
			return f.random.IntN(n)
		},
		"moving each second": func(at time.Duration) int { return int(at/time.Second) % n },
	}
}

// Eight processes, offered 1.6 times the quota, admit the quota: within 1 percent above
// and 2 below, whatever the distribution of the load.
func TestFleetAdmitsTheQuota(t *testing.T) {
	for _, limit := range []throttler.Limit{
		{Quota: 1000, Window: time.Second, Algorithm: throttler.TokenBucket},
		{Quota: 1000, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 300},
		{Quota: 1000, Window: time.Second, Aligned: true},
		{Quota: 10_000, Window: 10 * time.Second, Aligned: true},
	} {
		for _, low := range []float64{0.5, 1} {
			for _, name := range []string{"even", "one hot", "moving each second"} {
				if limit.Aligned && low < 1 {
					continue
				}
				t.Run(fmt.Sprintf("%v/low %v/%s", limit, low, name), func(t *testing.T) {
					policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{limit}}
					f := newFleet(t, 8, 1, Options{Low: low}, policy)
					const warm = 10 * time.Second // a bucket of a second is full of use, and a window ends
					choose := f.loads()[name]
					f.offer(1600, warm, time.Second, policy.Charge("alice"), choose)
					admitted := sum(f.offer(1600, warm+30*time.Second, time.Second, policy.Charge("alice"), choose))
					off := 100 * (float64(admitted)/30_000 - 1)
					t.Logf("%+.2f %%", off)
					if off > 1 || off < -2 {
						t.Errorf("admitted %d where the quota is 30000: %+.2f %%", admitted, off)
					}
				})
			}
		}
	}
}

// 300 processes, each of which sees a request every three seconds, admit the quota and
// no more than a little above it in any second.
func TestManyProcesses(t *testing.T) {
	limit := throttler.Limit{Quota: 50, Window: time.Second, Algorithm: throttler.TokenBucket}
	for _, low := range []float64{0.2, 1} {
		policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{limit}}
		f := newFleet(t, 300, 1, Options{Low: low}, policy)
		choose := f.loads()["even"]
		f.offer(100, 5*time.Second, time.Second, policy.Charge("alice"), choose)
		each := f.offer(100, 25*time.Second, time.Second, policy.Charge("alice"), choose)
		most, least := slices.Max(each), slices.Min(each)
		t.Logf("low %v: %d in 20 s, from %d to %d a second", low, sum(each), least, most)
		if n := sum(each); n < 980 || n > 1020 {
			t.Errorf("low %v: %d were admitted in 20 s; the quota is 1000", low, n)
		}
	}
}
