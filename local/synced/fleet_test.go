package synced

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

// t0 is where clocks start.
var t0 = time.Date(2030, 1, 2, 3, 4, 0, 0, time.UTC)

// A fleet is processes that sync with roots, on a clock that the test moves. A call takes time
// each way, and processes continue during it.
type fleet struct {
	testing.TB
	clock     *clock.Manual
	options   Options
	roots     []*modelRoot
	processes []*process
	syncs     syncs
	started   int
	oneWay    time.Duration // the longest time that a call, or a reply, takes
	cut       func(process int, root *modelRoot) bool
	random    *rand.Rand
	elapsed   time.Duration
}

type process struct {
	backend   *Backend
	throttler *throttler.Throttler
	policies  *policies.Table
	killed    bool
}

// syncer makes a process's syncs with one root.
type syncer struct {
	process    *process
	aggregator *aggregator
	due        time.Duration // of its next step
	next       func() time.Duration
	began      time.Duration
	replies    [][]byte
	err        error
}

// syncs is a heap of syncers by due time.
type syncs []*syncer

func (s syncs) Len() int           { return len(s) }
func (s syncs) Less(i, k int) bool { return s[i].due < s[k].due }
func (s syncs) Swap(i, k int)      { s[i], s[k] = s[k], s[i] }
func (s *syncs) Push(x any)        { *s = append(*s, x.(*syncer)) }
func (s *syncs) Pop() any {
	last := len(*s) - 1
	x := (*s)[last]
	*s = (*s)[:last]
	return x
}

func newFleet(t testing.TB, processes, roots int, o Options) *fleet {
	return newFleetOf(t, testseed.Of(t), processes, roots, o)
}

func newFleetOf(t testing.TB, seed uint64, processes, roots int, o Options) *fleet {
	f := &fleet{TB: t, clock: clock.NewManual(t0), random: rand.New(rand.NewPCG(seed, 0))}
	chance = rand.New(rand.NewPCG(seed, 2)).Float64
	t.Cleanup(func() { chance = rand.Float64 })
	for i := range roots {
		f.roots = append(f.roots, newModelRoot(fmt.Sprint("root-", i)))
	}
	o.Clock = f.clock
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	f.options, f.oneWay = o, o.Sync/20
	for range processes {
		f.processes = append(f.processes, f.start(0))
	}
	return f
}

// start starts a process with a clock that is ahead of the others'.
func (f *fleet) start(ahead time.Duration) *process {
	f.started++
	o := f.options
	o.Clock = skewed{f.clock, ahead}
	servers := make([]server, len(f.roots))
	for k := range servers {
		servers[k] = &modelServer{f.roots[k], f, f.started}
	}
	b := newBackend(servers, &o)
	p := &process{backend: b, policies: new(policies.Table)}
	p.throttler = throttler.New(b, &throttler.Options{Clock: o.Clock, Policies: p.policies})
	for _, a := range b.aggregators {
		s := &syncer{process: p, aggregator: a, due: f.elapsed + f.upTo(o.Sync)}
		s.next = func() time.Duration { return f.send(s) }
		heap.Push(&f.syncs, s)
	}
	return p
}

// send begins a round trip, as syncUntilClosed does.
func (f *fleet) send(s *syncer) time.Duration {
	s.began = s.due
	if !s.process.backend.prepare(s.aggregator, t0.Add(s.due)) {
		return f.pause(s)
	}
	s.next = func() time.Duration { return f.arrive(s) }
	return f.upTo(f.oneWay + 1)
}

// arrive makes the root execute the calls. Its reply takes time, too.
func (f *fleet) arrive(s *syncer) time.Duration {
	s.replies, s.err = s.aggregator.server.call(context.Background(), s.aggregator.calls)
	s.next = func() time.Duration {
		s.process.backend.conclude(s.aggregator, s.replies, s.err, t0.Add(s.due))
		return f.pause(s)
	}
	if s.err != nil {
		return max(2*f.options.Sync, minTimeout)
	}
	return f.upTo(f.oneWay + 1)
}

// pause waits for the next round trip.
func (f *fleet) pause(s *syncer) time.Duration {
	s.next = func() time.Duration { return f.send(s) }
	wait := s.process.backend.pause(s.aggregator, t0.Add(s.began), t0.Add(s.due))
	if wait == 0 {
		return 0
	}
	return wait + f.upTo(f.options.Sync/50) // a timer is never early
}

type skewed struct {
	clock.Clock
	ahead time.Duration
}

func (s skewed) Now() time.Time { return s.Clock.Now().Add(s.ahead) }

func (f *fleet) upTo(d time.Duration) time.Duration { return time.Duration(f.random.Int64N(int64(d))) }

// advance moves the clock, and makes the syncs that are due: each root's at its own time,
// as a process does.
func (f *fleet) advance(to time.Duration) {
	for len(f.syncs) > 0 && f.syncs[0].due <= to {
		s := f.syncs[0]
		if s.process.killed {
			heap.Pop(&f.syncs)
			continue
		}
		f.clock.Set(t0.Add(s.due))
		s.due += s.next()
		heap.Fix(&f.syncs, 0)
	}
	f.elapsed = to
	f.clock.Set(t0.Add(to))
}

// offer makes requests at a rate, to processes that choose selects, until an instant. It
// returns how many were admitted in each of the steps until then.
func (f *fleet) offer(perSecond float64, until, step time.Duration, charge throttler.Charge, choose func(elapsed time.Duration) int) []int {
	begin := f.elapsed
	admitted := make([]int, (until-begin+step-1)/step)
	for {
		next := f.elapsed + time.Duration(f.random.ExpFloat64()/perSecond*float64(time.Second))
		if next >= until {
			f.advance(until)
			return admitted
		}
		f.advance(next)
		d, err := f.processes[choose(f.elapsed)].throttler.Take(context.Background(), charge)
		if err != nil {
			f.Fatal(err)
		}
		if d.Allowed {
			admitted[(f.elapsed-begin)/step]++
		}
	}
}

func sum(loads []int) (n int) {
	for _, x := range loads {
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
		"moving each second": func(elapsed time.Duration) int { return int(elapsed/time.Second) % n },
	}
}

// Eight processes, offered 1.6 times the quota, admit the quota: within 1 percent above
// and 2 below, whatever the distribution of the load.
func TestSequentialFleetAdmitsTheQuota(t *testing.T) {
	type load struct {
		limit throttler.Limit
		low   float64
		roots int
		name  string
	}
	short := throttler.Limit{Quota: 1000, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 300}
	loads := []load{
		{throttler.Limit{Quota: 1000, Window: time.Second, Algorithm: throttler.TokenBucket}, 1, 2, "even"},
		{throttler.Limit{Quota: 1000, Window: time.Second, Aligned: true}, 1, 2, "even"},
		{throttler.Limit{Quota: 1000, Window: time.Second, Aligned: true}, 1, 1, "moving each second"},
		{throttler.Limit{Quota: 10_000, Window: 10 * time.Second, Aligned: true}, 1, 3, "one hot"},
		{short, 0.5, 1, "moving each second"},
		{perWindow(10_000, 10*time.Second), 1, 1, "even"},
		{perWindow(10_000, 10*time.Second), 1, 1, "moving each second"},
		{short, 0.5, 2, "one hot"},
	}
	for roots := 1; roots <= 3; roots++ {
		for _, name := range []string{"even", "one hot", "moving each second"} {
			loads = append(loads, load{short, 1, roots, name})
		}
	}
	const offered, measured = 1600, 30 * time.Second // ten windows are too few: the sum of 1 in 40 is 1 percent off
	for _, l := range loads {
		t.Run(fmt.Sprintf("%v/low %v/%d roots/%s", l.limit, l.low, l.roots, l.name), func(t *testing.T) {
			policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{l.limit}}
			f := newFleet(t, 8, l.roots, Options{Low: l.low})
			choose := f.loads()[l.name]
			warm := max(l.limit.Window, 4*time.Second) // until a bucket is used up, or a window has ended
			f.offer(offered, warm, time.Second, policy.Charge("alice"), choose)
			admitted := sum(f.offer(offered, warm+measured, time.Second, policy.Charge("alice"), choose))
			off := 100 * (float64(admitted)/(1000*measured.Seconds()) - 1)
			t.Logf("%+.2f %%", off)
			if off > 1 || off < -2 {
				t.Errorf("admitted %d in %v, where the quota is 1000 a second: %+.2f %%", admitted, measured, off)
			}
		})
	}
}

// 300 processes, each with a request every three seconds, admit the quota: within 5 percent on
// average, and within a tenth in any ten seconds.
func TestSequentialManyProcesses(t *testing.T) {
	const quota, runs = 50, 10
	for _, low := range []float64{0.2, 1} {
		policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket}}}
		admitted, seed := 0, testseed.Of(t)
		for run := range uint64(runs) {
			f := newFleetOf(t, testseed.Nth(seed, run), 300, 1, Options{Low: low})
			choose := f.loads()["even"]
			f.offer(2*quota, 4*time.Second, time.Second, policy.Charge("alice"), choose)
			n := sum(f.offer(2*quota, 14*time.Second, time.Second, policy.Charge("alice"), choose))
			if admitted += n; n < 450 || n > 550 {
				t.Errorf("low %v: %d were admitted in 10 s; the quota is 500", low, n)
			}
		}
		off := 100 * (float64(admitted)/(10*quota*runs) - 1)
		t.Logf("low %v: %+.1f %% in %d times 10 s", low, off, runs)
		if off < -5 || off > 5 {
			t.Errorf("low %v: %+.1f %% of the quota", low, off)
		}
	}
}
