package leased_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

var hour = &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour}}}

// take takes one unit for alice n times. All takes must be allowed.
func (p *process) take(t *testing.T, n int) (last throttler.Decision) {
	t.Helper()
	for range n {
		d, err := p.throttler.Take(t.Context(), hour.Charge("alice"))
		if err != nil || !d.Allowed {
			t.Fatalf("Take: %v, %v", &d, err)
		}
		last = d
	}
	return last
}

// used returns the units that the store counts as used by alice.
func (f *fleet) used() int64 { return f.usedBy("alice") }

func (f *fleet) usedBy(key string) int64 {
	f.Helper()
	d, err := throttler.New(f.store, &throttler.Options{Clock: f.clock}).Peek(f.Context(), hour.Charge(key))
	if err != nil {
		f.Fatal(err)
	}
	return d.Limit(0).Used
}

func TestSilentKeysGiveTheirLeasesBack(t *testing.T) {
	f := newFleet(t, 2, leased.Options{})
	f.processes[0].take(t, 50)
	if n := f.used(); n <= 50 {
		t.Fatalf("the store counts %d as used; a busy key holds a lease", n)
	}
	f.clock.Advance(100 * time.Millisecond)
	f.processes[0].backend.Sweep()
	if n := f.used(); n <= 50 {
		t.Fatalf("the store counts %d as used after a silence of 100ms", n)
	}
	f.clock.Advance(150 * time.Millisecond)
	f.processes[0].backend.Sweep()
	if n := f.used(); n != 50 {
		t.Errorf("the store counts %d as used after a silence of 250ms; want 50", n)
	}
}

// A lease ends with the first of its windows: the store doesn't count its units in the next one.
func TestALeaseEndsWithTheFirstOfItsWindows(t *testing.T) {
	for name, limits := range map[string][]throttler.Limit{
		"the shorter first": {{Quota: 1000, Window: time.Hour}, {Quota: 5000, Window: 24 * time.Hour}},
		"the longer first":  {{Quota: 5000, Window: 24 * time.Hour}, {Quota: 1000, Window: time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 1, leased.Options{Ahead: time.Minute})
			p, charge := f.processes[0], (&throttler.Policy{Name: "both", Limits: limits}).Charge("alice")
			take := func(n int) {
				t.Helper()
				for range n {
					if d, err := p.throttler.Take(t.Context(), charge); err != nil || !d.Allowed {
						t.Fatalf("Take: %v, %v", &d, err)
					}
				}
			}
			take(1)
			f.clock.Advance(time.Hour - time.Second)
			take(50)
			if s := p.backend.Stats(); s.Local == 0 {
				t.Fatalf("%+v; want takes answered from a lease", s)
			}
			f.clock.Advance(time.Second)
			take(10)
			d, err := throttler.New(f.store, &throttler.Options{Clock: f.clock}).Peek(t.Context(), charge)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range d.Limits() {
				if s.Limit.Window == time.Hour && s.Used < 10 {
					t.Errorf("the store counts %d as used in the second hour; 10 were admitted", s.Used)
				}
			}
		})
	}
}

func TestCloseGivesLeasesBack(t *testing.T) {
	f := newFleet(t, 1, leased.Options{})
	p := f.processes[0]
	p.take(t, 50)
	if err := p.backend.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := f.used(); n != 50 {
		t.Errorf("the store counts %d as used after Close; want 50", n)
	}
	p.take(t, 50)
	if n := f.used(); n != 100 {
		t.Errorf("the store counts %d as used; after Close, each take goes there: want 100", n)
	}
}

func TestRefundsReturnToTheLeaseOrToTheWindow(t *testing.T) {
	f := newFleet(t, 1, leased.Options{})
	p := f.processes[0]
	d := p.take(t, 50)
	before := d.Limit(0).Remaining
	after, err := p.throttler.Refund(t.Context(), d)
	if err != nil || after.Limit(0).Remaining != before+1 {
		t.Errorf("Refund: %v, %v; want %d remaining", &after, err, before+1)
	}
	d = p.take(t, 1)
	f.clock.Advance(time.Second)
	p.backend.Sweep() // returns the lease
	if n := f.used(); n != 50 {
		t.Fatalf("the store counts %d as used; want 50", n)
	}
	if _, err := p.throttler.Refund(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if n := f.used(); n != 49 {
		t.Errorf("the store counts %d as used after the refund; want 49", n)
	}
	d = p.take(t, 1)
	if _, err := p.throttler.Settle(t.Context(), d, 10); err != nil {
		t.Fatal(err)
	}
	if err := p.backend.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := f.used(); n != 59 {
		t.Errorf("the store counts %d as used after a settlement of 1 at 10; want 59", n)
	}
}

// A reset of a key looks at no other key, as long as no lease covers several keys.
func TestResetsLookAtOneKey(t *testing.T) {
	p := newFleet(t, 1, leased.Options{}).processes[0]
	p.take(t, 50)
	c := hour.Charge("alice")
	c.Cost, c.Partition = 1, c.Key
	unlock := p.backend.LockOthers(c)
	reset := make(chan error, 1)
	go func() { reset <- p.throttler.Reset(t.Context(), hour.Charge("alice")) }()
	select {
	case err := <-reset:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the reset waits for other keys' locks")
	}
	unlock()
}

// A new quota takes effect with the first take that names it.
func TestChangedPolicy(t *testing.T) {
	f := newFleet(t, 1, leased.Options{})
	p := f.processes[0]
	p.take(t, 50)
	smaller := &throttler.Policy{Name: hour.Name, Limits: []throttler.Limit{{Quota: 50, Window: time.Hour}}}
	d, err := p.throttler.Take(t.Context(), smaller.Charge("alice"))
	if err != nil || d.Allowed {
		t.Errorf("Take: %v, %v; want a refusal, for 50 of 50 are used", &d, err)
	}
	p.backend.Sweep()
	if n := f.used(); n != 50 {
		t.Errorf("the store counts %d as used; want 50", n)
	}
}

// flaky is a backend that fails, or hangs until a context ends, on command.
type flaky struct {
	driver.Backend
	fails, hangs atomic.Bool
	takes        atomic.Int64
}

func (f *flaky) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	f.takes.Add(1)
	if f.hangs.Load() {
		<-ctx.Done()
		return driver.Decision{}, errors.Join(throttler.ErrUnavailable, ctx.Err())
	}
	if f.fails.Load() {
		return driver.Decision{}, throttler.ErrUnavailable
	}
	return f.Backend.Take(ctx, r)
}

// If the backend fails, held units stay usable, and all callers get its error.
func TestBackendThatFails(t *testing.T) {
	store := &flaky{Backend: memorybackend.NewDefault()}
	b := open(t, store, nil)
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	p := process{b, th}
	p.take(t, 20)
	store.fails.Store(true)
	held := 0
	for ; ; held++ {
		d, err := th.Take(t.Context(), hour.Charge("alice"))
		if err != nil {
			if !errors.Is(err, throttler.ErrUnavailable) {
				t.Fatal(err)
			}
			break
		}
		if !d.Allowed {
			t.Fatalf("a refusal, %v, of a backend that fails", &d)
		}
	}
	if held == 0 {
		t.Error("nothing was held when the backend failed")
	}

	store.fails.Store(false)
	store.hangs.Store(true)
	store.takes.Store(0)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if _, err := th.Take(ctx, hour.Charge("alice")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Take: %v; want %v", err, context.DeadlineExceeded)
			}
		})
	}
	all.Wait()
	if n := store.takes.Load(); n > 2 {
		t.Errorf("100 goroutines made %d calls of a backend that hangs; they share one", n)
	}
}

// Many goroutines of several processes, with refunds among the takes, admit no more than the
// quota. The test is for the race detector.
func TestProcessesShareAQuota(t *testing.T) {
	store := memorybackend.NewDefault()
	var admitted atomic.Int64
	quota := &throttler.Policy{Name: "quota", Limits: []throttler.Limit{{Quota: 3000, Window: time.Hour}}}
	var all sync.WaitGroup
	for range 4 {
		b := open(t, store, &leased.Options{Ahead: 20 * time.Millisecond})
		th := throttler.New(b, nil)
		for g := range 8 {
			all.Go(func() {
				for i := range 400 {
					d, err := th.Take(t.Context(), quota.Charge("alice"))
					if err != nil {
						t.Error(err)
						return
					}
					if !d.Allowed {
						continue
					}
					admitted.Add(1)
					if i%10 == g {
						if _, err := th.Refund(t.Context(), d); err != nil {
							t.Error(err)
							return
						}
						admitted.Add(-1)
					}
				}
			})
		}
	}
	all.Wait()
	if n := admitted.Load(); n > 3000 {
		t.Errorf("%d of 3000 were admitted", n)
	}
}

// An attacker with many keys pushes out the demand of others, never their counts.
func TestKeysAreBounded(t *testing.T) {
	f := newFleet(t, 1, leased.Options{MaxKeys: 64})
	p := f.processes[0]
	p.take(t, 50)
	for i := range 10_000 {
		if _, err := p.throttler.Take(t.Context(), hour.Charge(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	p.backend.Sweep()
	if n := f.used(); n != 50 {
		t.Errorf("the store counts %d as used by alice; want 50", n)
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []leased.Options{
		{Ahead: time.Millisecond}, {Ahead: time.Hour}, {Ahead: -1}, {Busy: -1}, {MaxKeys: -1}, {MaxKeys: 63},
	} {
		if b, err := leased.New(memorybackend.NewDefault(), &o); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("New(%+v): %v, %v; want an error that wraps ErrInvalid", o, b, err)
		}
	}
}

// An answer from a lease reports the units left to all processes by the last answer of the
// store, not by the answer that granted the lease.
func TestNothingMoreAfterARefusal(t *testing.T) {
	f := newFleet(t, 2, leased.Options{})
	f.processes[0].take(t, 50)
	for allowed := true; allowed; { // the other process takes the rest
		d, err := f.processes[1].throttler.Take(t.Context(), hour.Charge("alice"))
		if err != nil {
			t.Fatal(err)
		}
		allowed = d.Allowed
	}
	r := driver.NewRequest(f.clock.Now().UnixMilli(), throttler.Charge{Policy: hour, Key: "alice", Partition: "alice", Cost: 1})
	var last driver.Decision
	for {
		d, err := f.processes[0].backend.Take(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			break
		}
		last = d
	}
	if r := last.Results()[0]; r.Used != 1000 || r.More != 0 {
		t.Errorf("the last unit of a lease: %d used, %d more; want 1000, 0", r.Used, r.More)
	}
}

// Takes that have begun when the Backend is closed end, and so does Close. The unspent units of
// their leases are returned.
func TestCloseAmongTakes(t *testing.T) {
	const keys, takes = 8, 20
	for range 300 {
		f := newFleet(t, 1, leased.Options{Busy: 1})
		p := f.processes[0]
		var all sync.WaitGroup
		for g := range keys {
			all.Go(func() {
				for range takes {
					if _, err := p.throttler.Take(t.Context(), hour.Charge(strconv.Itoa(g))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		if err := p.backend.Close(t.Context()); err != nil {
			t.Error(err)
		}
		all.Wait()
		for g := range keys {
			if used := f.usedBy(strconv.Itoa(g)); used != takes {
				t.Fatalf("%d are used after %d takes", used, takes)
			}
		}
	}
}

// A take that fits with the units that this process holds is allowed, also after a refusal of
// more units, and one that doesn't is refused.
func TestHeldUnitsCountForGreatCosts(t *testing.T) {
	for _, first := range []int64{400, 401} {
		f := newFleet(t, 1, leased.Options{})
		p := f.processes[0]
		last := p.take(t, 600)
		remain := last.Limit(0).Remaining
		if used := f.used(); remain == 0 || used != 600+remain {
			t.Fatalf("the store counts %d as used after 600 takes, and %d remain; want some held", used, remain)
		}
		left := int64(400)
		for _, cost := range []int64{first, 400, 1} {
			d, err := p.backend.Take(t.Context(), driver.NewRequest(f.clock.Now().UnixMilli(), throttler.Charge{Policy: hour, Key: "alice", Partition: "alice", Cost: cost}))
			if err != nil || d.Allowed != (cost <= left) {
				t.Fatalf("a take of %d with %d of 1000 left: %v, %v", cost, left, d.Results(), err)
			}
			if d.Allowed {
				left -= cost
			}
		}
		if used := f.used(); used != 1000 {
			t.Errorf("the store counts %d as used; want 1000", used)
		}
	}
}

// A caller that leaves while held units are given back for its cost loses none of them: the store
// counts what the process has used, and no more.
func TestHeldUnitsOfACallerThatLeaves(t *testing.T) {
	store := &leavers{Backend: memorybackend.NewDefault()}
	b := open(t, store, &leased.Options{Clock: clock.NewManual(t0)})
	for range 600 {
		if d, err := b.Take(t.Context(), request(hour, t0)); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	store.leave = leave
	_, _ = b.Take(ctx, driver.NewRequest(t0.UnixMilli(), throttler.Charge{Policy: hour, Key: "k", Partition: "k", Cost: 400})) // all that is left
	if ctx.Err() == nil {
		t.Fatal("no units were given back")
	}
	if d, err := store.Peek(t.Context(), request(hour, t0)); err != nil || d.Results()[0].Used != 600 && d.Results()[0].Used != 1000 {
		t.Errorf("the store counts %v, %v; want the 600 used, or 1000 with the cost", d.Results(), err)
	}
}

// leavers is a store whose caller leaves when a settlement begins.
type leavers struct {
	driver.Backend
	leave func()
}

func (b *leavers) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if b.leave != nil {
		b.leave()
	}
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	return b.Backend.Settle(ctx, s)
}
