package refusals_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// stepping decides when its backend does, and answers when the test lets it.
type stepping struct {
	driver.Backend
	decided, answer chan struct{} // of a take, or nil
	settled, report chan struct{} // of a settlement, or nil
}

func (s *stepping) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	d, err := s.Backend.Take(ctx, r)
	if s.decided != nil {
		s.decided <- struct{}{}
		<-s.answer
	}
	return d, err
}

func (s *stepping) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	if s.settled != nil {
		s.settled <- struct{}{}
		<-s.report
	}
	return s.Backend.Settle(ctx, st)
}

// A refusal is decided, and before its answer is back a refund begins and ends.
func TestRefundWhileARefusalIsOnItsWay(t *testing.T) {
	f := newFixture(t, nil)
	s := &stepping{Backend: f.counting.Backend}
	f.counting.Backend = s
	taken := f.allowed(charge(core, "alice", 5))
	s.decided, s.answer = make(chan struct{}), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { f.refused(false, charge(core, "alice", 1)) })
	<-s.decided
	f.refund(f.front, taken)
	close(s.answer)
	running.Wait()
	s.decided = nil
	f.allowed(charge(core, "alice", 1))
}

// A refund is on its way, and before it is made a take is refused and remembered.
func TestRefusalWhileARefundIsOnItsWay(t *testing.T) {
	f := newFixture(t, nil)
	s := &stepping{Backend: f.counting.Backend}
	f.counting.Backend = s
	taken := f.allowed(charge(core, "alice", 5))
	s.settled, s.report = make(chan struct{}), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { f.refund(f.front, taken) })
	<-s.settled
	f.refused(false, charge(core, "alice", 1))
	f.refused(true, charge(core, "alice", 1))
	close(s.report)
	running.Wait()
	f.allowed(charge(core, "alice", 1))
}

// Two takes of one key ask at the same time: their refusals share a slot.
func TestRefusedTwiceAtOnce(t *testing.T) {
	f := newFixture(t, nil)
	s := &stepping{Backend: f.counting.Backend, decided: make(chan struct{}), answer: make(chan struct{})}
	f.counting.Backend = s
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() { f.take(f.front, charge(core, "alice", 6)) })
	}
	<-s.decided
	<-s.decided
	s.answer <- struct{}{}
	s.answer <- struct{}{}
	running.Wait()
	if s := f.backend.Stats(); s.Asked != 2 || s.Keys != 1 {
		t.Errorf("got %+v, want 2 asked and 1 key", s)
	}
}

// numbered refuses all takes, and reports as Used how many settlements it has
// made of any key. It yields where an answer may be overtaken.
type numbered struct {
	refusing
	made atomic.Int64
}

func (n *numbered) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	made := n.made.Load()
	yield()
	d, err := n.refusing.Take(ctx, r)
	for i := range d.Results() {
		d.Results()[i].Used = made
	}
	return d, err
}

func (n *numbered) Settle(_ context.Context, s driver.Settlement) (driver.Decision, error) {
	yield()
	made := n.made.Add(1)
	yield()
	d := driver.NewDecision(s.Charged.Request)
	d.Results()[0].Used = made
	return d, nil
}

// yield disturbs the scheduler, which no seed repeats.
func yield() {
	for range rand.IntN(4) {
		runtime.Gosched()
	}
}

// Goroutines take and settle. Each take knows the settlements that had ended when it began.
func TestTakesSeeSettlementsThatHaveEnded(t *testing.T) {
	backend := &numbered{}
	b := open(t, backend, nil)
	b.SetElapsed(func() time.Duration { return 0 })
	r := driver.NewRequest(t0.UnixMilli(),
		throttler.Charge{Policy: core, Key: "acme", Cost: 1, Partition: "acme"},
		throttler.Charge{Policy: core, Key: "alice", Cost: 1, Partition: "acme"})
	charged := driver.NewDecision(driver.NewRequest(t0.UnixMilli(), r.Charges()[1]))
	var ended atomic.Int64 // settlements
	var running sync.WaitGroup
	for g := range 8 {
		random := testseed.Rand(t, uint64(g))
		running.Go(func() {
			for range 5000 {
				if random.IntN(8) == 0 {
					d, _ := b.Settle(t.Context(), driver.Settlement{Now: t0.UnixMilli(), Charged: charged, Costs: []int64{0}})
					for made, before := d.Results()[0].Used, ended.Load(); made > before; before = ended.Load() {
						if ended.CompareAndSwap(before, made) {
							break
						}
					}
					continue
				}
				want := ended.Load()
				d, _ := b.Take(t.Context(), r)
				if got := d.Results()[0].Used; got < want {
					t.Errorf("a take saw %d settlements, but %d had ended when it began", got, want)
					return
				}
			}
		})
	}
	running.Wait()
	if s := b.Stats(); s.Answered == 0 || s.Answered+s.Asked == 0 {
		t.Errorf("got %+v, want some takes refused from memory", s)
	}
}

// A random history with a Backend and without allows the same takes. A refusal from memory names
// no later time to retry.
func TestSequentialHistories(t *testing.T) {
	rng := testseed.Rand(t, 0)
	answered := int64(0)
	for range 40 {
		answered += history(t, rng)
	}
	if answered < 1000 {
		t.Errorf("%d takes were refused from memory; the histories show little", answered)
	}
}

func history(t *testing.T, rng *rand.Rand) (answered int64) {
	f := newFixture(t, &refusals.Options{MaxAge: time.Hour})
	reference := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: f.clock})
	var policies []*throttler.Policy
	for _, name := range []string{"org", "user"} {
		p := policy(name)
		for _, a := range rng.Perm(len(quota.Algorithms()))[:1+rng.IntN(3)] {
			p.Limits = append(p.Limits, throttler.Limit{Quota: 1 + rng.Int64N(12), Window: time.Duration(1+rng.IntN(9)) * time.Second, Algorithm: quota.Algorithm(a)})
		}
		policies = append(policies, p)
	}
	users := []string{"alice", "bob", "carol"}
	var taken [][2]throttler.Decision
	for step := range 400 {
		f.clock.Advance(time.Duration(rng.IntN(100)*rng.IntN(3)) * time.Millisecond)
		if rng.IntN(10) == 0 && len(taken) > 0 {
			d := taken[rng.IntN(len(taken))]
			costs := []int64{rng.Int64N(4), rng.Int64N(4)}[:len(d[0].Charges())]
			for i, th := range []*throttler.Throttler{f.front, reference} {
				if _, err := th.Settle(t.Context(), d[i], costs...); err != nil {
					t.Fatal(err)
				}
			}
			continue
		}
		charges := []throttler.Charge{charge(policies[0], "acme", 1), charge(policies[1], users[rng.IntN(len(users))], 1+rng.Int64N(3)).Within("acme")}
		charges = charges[:1+rng.IntN(2)]
		got, want := f.take(f.front, charges...), f.take(reference, charges...)
		if got.Allowed != want.Allowed || !got.At().Equal(want.At()) {
			t.Fatalf("step %d: got  %+v\nwant %+v", step, got, want)
		}
		if want.Allowed {
			taken = append(taken, [2]throttler.Decision{got, want})
		}
		if got.RetryAt().After(want.RetryAt()) {
			t.Fatalf("step %d: got  %+v\nwant %+v", step, got, want)
		}
		for i := range want.Limits() {
			g := got.Limit(i)
			if g.ResetAt.Before(got.At()) {
				t.Fatalf("step %d: limit %d was reset at %v, before the take at %v", step, i, g.ResetAt, got.At())
			}
		}
	}
	return f.backend.Stats().Answered
}
