package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-go/weir/backend/backendtest"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// t0 is where clocks start.
var t0 = time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.UTC)

func open(t testing.TB, wrapped driver.Backend, o *fallback.Options) *fallback.Backend {
	t.Helper()
	if o.Observer == nil {
		o.Observer = observe.Nothing{}
	}
	b, err := fallback.New(wrapped, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// flaky is a backend that fails on command: at once, or as if a reply was lost.
type flaky struct {
	driver.Backend
	fails atomic.Pointer[failure]
	calls atomic.Int64 // takes and settlements that arrived while it failed
}

type failure struct {
	err     error
	charges bool // a call that fails with err is charged
}

var (
	down      = &failure{err: &driver.UnavailableError{Backend: "flaky", Shard: "a", Err: breaker.ErrOpen}}
	refusing  = &failure{err: &driver.UnavailableError{Backend: "flaky", Shard: "a", Err: fmt.Errorf("%w: %w", driver.ErrNotSent, syscall.ECONNREFUSED)}}
	lost      = &failure{err: &driver.UnavailableError{Backend: "flaky", Shard: "a", Err: io.EOF}}
	lateReply = &failure{err: &driver.UnavailableError{Backend: "flaky", Shard: "a", Err: context.DeadlineExceeded}, charges: true}
)

// Down implements driver.Health.
func (f *flaky) Down(string) (since time.Time, down bool) { return since, f.fails.Load() != nil }

func (f *flaky) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	fails := f.fails.Load()
	if fails == nil {
		return f.Backend.Take(ctx, r)
	}
	f.calls.Add(1)
	if fails.charges {
		_, _ = f.Backend.Take(ctx, r)
	}
	return driver.Decision{}, fails.err
}

func (f *flaky) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if fails := f.fails.Load(); fails != nil {
		return driver.Decision{}, fails.err
	}
	return f.Backend.Peek(ctx, r)
}

func (f *flaky) Reset(ctx context.Context, r driver.Request) error {
	if fails := f.fails.Load(); fails != nil {
		return fails.err
	}
	return f.Backend.Reset(ctx, r)
}

func (f *flaky) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	fails := f.fails.Load()
	if fails == nil {
		return f.Backend.Settle(ctx, s)
	}
	f.calls.Add(1)
	if fails.charges {
		_, _ = f.Backend.Settle(ctx, s)
	}
	return driver.Decision{}, fails.err
}

// fixture is some processes in front of one backend that fails on command.
type fixture struct {
	*testing.T
	clock     *clock.Manual
	shared    driver.Backend // which never fails
	flaky     *flaky
	leases    []*leased.Backend // in front of flaky, if there are any
	backends  []*fallback.Backend
	processes []*throttler.Throttler
	truth     *throttler.Throttler // on shared
}

// optionsOf returns options with a choice for all policies.
func optionsOf(c fallback.Choice, processes int) *fallback.Options {
	o := &fallback.Options{OnFailure: c}
	o.Processes = ofLocal(*o, processes)
	return o
}

// ofLocal returns processes if Local is a choice of o, and otherwise 0.
func ofLocal(o fallback.Options, processes int) int {
	if o.OnFailure != fallback.Local && !slices.Contains(slices.Collect(maps.Values(o.Policies)), fallback.Local) {
		return 0
	}
	return processes
}

func newFixture(t *testing.T, processes int, o fallback.Options) *fixture {
	f := &fixture{T: t, clock: clock.NewManual(t0), shared: memorybackend.NewDefault()}
	f.flaky = &flaky{Backend: f.shared}
	f.truth = throttler.New(f.shared, &throttler.Options{Clock: f.clock})
	o.Processes = ofLocal(o, processes)
	for range processes {
		options := o
		b := open(t, f.flaky, &options)
		f.backends = append(f.backends, b)
		f.processes = append(f.processes, throttler.New(b, &throttler.Options{Clock: f.clock}))
	}
	return f
}

// leased makes the processes lease units of the backend.
func (f *fixture) leased(o fallback.Options) {
	o.Processes = ofLocal(o, len(f.processes))
	for i := range f.processes {
		leases, err := leased.New(f.flaky, &leased.Options{Busy: 1, Clock: f.clock})
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { _ = leases.Close(context.Background()) }) // the backend may be down
		f.leases = append(f.leases, leases)
		options := o
		f.backends[i] = open(f, leases, &options)
		f.processes[i] = throttler.New(f.backends[i], &throttler.Options{Clock: f.clock})
	}
}

// fail makes the backend fail, or answer again if nil.
func (f *fixture) fail(with *failure) { f.flaky.fails.Store(with) }

// recover makes the backend answer again, and waits until all charges are handed over.
func (f *fixture) recover() {
	f.Helper()
	f.fail(nil)
	for _, b := range f.backends {
		eventually(f, "all is handed over", func() bool { return b.Stats().Held == 0 })
	}
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for start := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			t.Fatalf("not after 20 s: %s", what)
		}
	}
}

func (f *fixture) take(process int, charges ...throttler.Charge) throttler.Decision {
	f.Helper()
	d, err := f.processes[process].Take(f.Context(), charges...)
	if err != nil {
		f.Fatal(err)
	}
	return d
}

// takes takes one unit n times, and returns how many were allowed.
func (f *fixture) takes(process, n int, p *throttler.Policy, key string) int {
	f.Helper()
	allowed := 0
	for range n {
		if f.take(process, p.Charge(key)).Allowed {
			allowed++
		}
	}
	return allowed
}

// used returns the units that the shared backend counts for p's first limit.
func (f *fixture) used(p *throttler.Policy, key string) int64 {
	f.Helper()
	d, err := f.truth.Peek(f.Context(), p.Charge(key))
	if err != nil {
		f.Fatal(err)
	}
	s := d.Limit(0)
	return s.Used
}

func policy(name string, limits ...throttler.Limit) *throttler.Policy {
	return &throttler.Policy{Name: name, Limits: limits}
}

var (
	core  = policy("core", throttler.Limit{Quota: 60, Window: time.Hour})
	local = fallback.Options{OnFailure: fallback.Local}
)

// TestContract runs the whole suite in front of a backend that answers. Under Open it would
// fail where a deadline passes on the way: Open allows such takes.
func TestContract(t *testing.T) {
	for _, choice := range []fallback.Choice{fallback.Local, fallback.Closed} {
		t.Run(choice.String(), func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) driver.Backend {
				return open(t, memorybackend.NewDefault(), optionsOf(choice, 3))
			})
		})
	}
}

func TestSequentialHistories(t *testing.T) {
	backendtest.Histories(t, func(t *testing.T) driver.Backend {
		return open(t, memorybackend.NewDefault(), &fallback.Options{OnFailure: fallback.Local, Processes: 3, MaxKeys: 8})
	})
}

func TestChoices(t *testing.T) {
	f := newFixture(t, 3, fallback.Options{Policies: map[string]fallback.Choice{"local": fallback.Local, "closed": fallback.Closed}})
	limit := throttler.Limit{Quota: 60, Window: time.Hour}
	opened, counted, closed := policy("open", limit), policy("local", limit), policy("closed", limit)
	f.fail(down)

	for range 100 {
		d := f.take(0, opened.Charge("alice"))
		if !d.Allowed || !d.Degraded || d.NumLimits() != 0 {
			t.Fatalf("open: got %+v, want an allowed decision about no charges", d)
		}
		if _, err := f.processes[0].Refund(t.Context(), d); err != nil {
			t.Fatalf("open: a refund fails: %v", err)
		}
	}
	if got := f.takes(0, 100, counted, "alice"); got != 20 {
		t.Errorf("local: %d of 100 were allowed, want a third of 60", got)
	}
	d := f.take(0, counted.Charge("alice"))
	if s := d.Limit(0); d.Allowed || !d.Degraded || s.Remaining != 0 || !d.RetryAt().Equal(t0.Add(time.Hour)) {
		t.Errorf("local: got %v, want a refusal until the window's end", d)
	}
	if d, err := f.processes[0].Take(t.Context(), closed.Charge("alice")); !errors.Is(err, driver.ErrFailClosed) || !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("closed: got %v, %v; want ErrFailClosed", d, err)
	}

	// The strictest wins.
	charge := func(p *throttler.Policy) throttler.Charge { return p.Charge("bob") }
	if d := f.take(0, charge(opened), charge(counted)); !d.Allowed || !d.Degraded || d.NumLimits() != 2 {
		t.Errorf("open and local: got %+v, want a local decision about both", d)
	}
	if _, err := f.processes[0].Take(t.Context(), charge(counted), charge(closed)); !errors.Is(err, driver.ErrFailClosed) {
		t.Errorf("local and closed: got %v, want ErrFailClosed", err)
	}
	if s := f.backends[0].Stats(); s.Open != 100 || s.Local != 102 || s.Closed != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestOpenEnds(t *testing.T) {
	f := newFixture(t, 1, fallback.Options{OpenFor: time.Minute})
	var elapsed atomic.Int64
	f.backends[0].SetElapsed(func() time.Duration { return time.Duration(elapsed.Load()) })
	f.fail(down)
	f.take(0, core.Charge("alice"))
	elapsed.Store(int64(time.Minute) - 1)
	f.take(0, core.Charge("alice"))
	elapsed.Store(int64(time.Minute))
	if _, err := f.processes[0].Take(t.Context(), core.Charge("alice")); !errors.Is(err, driver.ErrFailClosed) {
		t.Errorf("after OpenFor: got %v, want ErrFailClosed", err)
	}
	f.fail(nil)
	if d := f.take(0, core.Charge("alice")); d.Degraded {
		t.Errorf("after the outage: got %+v", d)
	}
}

// An exhausted client gets nothing at the first failure, and others get a share of their
// remaining units.
func TestLocalStartsFromWhatWasSaid(t *testing.T) {
	for name, l := range map[string]throttler.Limit{
		"fixed window":   {Quota: 60, Window: time.Hour},
		"aligned":        {Quota: 60, Window: time.Hour, Aligned: true},
		"sliding window": {Quota: 60, Window: time.Hour, Algorithm: throttler.SlidingWindow},
		"sliding log":    {Quota: 60, Window: time.Hour, Algorithm: throttler.SlidingLog},
		"token bucket":   {Quota: 60, Window: time.Hour, Algorithm: throttler.TokenBucket},
		"leaky bucket":   {Quota: 60, Window: time.Hour, Algorithm: throttler.LeakyBucket},
		"burst":          {Quota: 10, Window: 10 * time.Minute, Burst: 60, Algorithm: throttler.TokenBucket},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 3, local)
			p := policy("core", l)
			for i := range 3 {
				f.takes(i, 20, p, "alice")
				f.take(i, p.Charge("alice")) // refused, but by the first two only now
			}
			for i := range 3 {
				f.takes(i, 5, p, "bob")
			}
			for i := range 3 { // the last answer is about 18
				f.take(i, p.Charge("bob"))
			}
			f.fail(down)
			alice, bob, carol := 0, 0, 0
			for i := range 3 {
				alice += f.takes(i, 60, p, "alice")
				bob += f.takes(i, 60, p, "bob")
				carol += f.takes(i, 60, p, "carol")
			}
			if alice > 1 { // the last answer to process 0 was 21 of 60
				if alice > 1+ceil(60-21, 3)+ceil(60-41, 3) {
					t.Errorf("alice had used all: %d more", alice)
				}
			}
			if bob < 40 || bob > 42+2 {
				t.Errorf("bob had used 18: %d more, want from 40 to 44", bob)
			}
			if carol != 60 {
				t.Errorf("carol had used nothing: %d, want 60", carol)
			}
		})
	}
}

func ceil(a, b int) int { return (a + b - 1) / b }

func TestRefusedStaysRefused(t *testing.T) {
	f := newFixture(t, 3, local)
	f.takes(0, 60, core, "alice")
	for i := range 3 {
		f.take(i, core.Charge("alice"))
	}
	f.fail(down)
	for i := range 3 {
		if got := f.takes(i, 10, core, "alice"); got != 0 {
			t.Errorf("process %d allowed %d to a client that had used all", i, got)
		}
	}
	f.clock.Advance(time.Hour)
	for i := range 3 {
		if got := f.takes(i, 60, core, "alice"); got != 20 {
			t.Errorf("process %d allowed %d in the next window, want 20", i, got)
		}
	}
}

// After an outage the backend has counted all units, in the window that was open here.
func TestHandOver(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]*failure{"breaker open": down, "connection refused": refusing} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 3, local)
			f.fail(how)
			opened := f.clock.Now()
			for i := range 3 {
				f.takes(i, 10, core, "alice")
				f.clock.Advance(time.Minute)
			}
			f.recover()
			if got := f.used(core, "alice"); got != 30 {
				t.Errorf("the backend counts %d, want 30", got)
			}
			d := f.take(0, core.Charge("alice"))
			if s := d.Limit(0); d.Degraded || s.Used != 31 {
				t.Errorf("afterwards: got %v", d)
			} else if s.ResetAt.Before(opened.Add(time.Hour)) || s.ResetAt.After(opened.Add(time.Hour+2*time.Minute)) {
				t.Errorf("the window ends at %v, want an hour after it opened, %v", s.ResetAt, opened)
			}
			if got := f.takes(1, 60, core, "alice"); got != 29 {
				t.Errorf("%d more were allowed, want 29", got)
			}
		})
	}
}

func TestEndedWindowsAreNotHandedOver(t *testing.T) {
	f := newFixture(t, 1, local)
	f.fail(down)
	f.takes(0, 10, core, "alice")
	f.clock.Advance(time.Hour)
	f.takes(0, 3, core, "alice")
	f.recover()
	if got := f.used(core, "alice"); got != 3 {
		t.Errorf("the backend counts %d, want the 3 of the running window", got)
	}
	if s := f.backends[0].Stats(); s.HandedOver != 3 || s.Lost != 0 {
		t.Errorf("got %+v", s)
	}
}

// Units under several limits count in the short window, too, until it ends. Only units that still
// count are handed over.
func TestHandOverOfSeveralLimits(t *testing.T) {
	f := newFixture(t, 1, local)
	p := policy("auth", throttler.Limit{Quota: 100, Window: time.Minute}, throttler.Limit{Quota: 5, Window: 3 * time.Second})
	f.fail(down)
	for range 12 {
		f.takes(0, 2, p, "alice")
		f.clock.Advance(2 * time.Second)
	}
	f.takes(0, 1, p, "alice")
	last := f.take(0, p.Charge("alice"))
	f.recover()
	got, err := f.truth.Peek(t.Context(), p.Charge("alice"))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range got.Limits() {
		if w := last.Limit(i); s.Used < w.Used || s.Used > last.Limit(0).Used || s.ResetAt.Before(w.ResetAt) {
			t.Errorf("limit %d: the backend has used %d until %v; here %d are used until %v, of %d in all", i, s.Used, s.ResetAt, w.Used, w.ResetAt, last.Limit(0).Used)
		}
	}
	f.clock.Advance(3 * time.Second)
	if d := f.take(0, p.Charge("alice")); !d.Allowed {
		t.Errorf("%v; want that the short window has ended", d)
	}
}

// After an outage of many windows, a bucket or a sliding window is charged what still counts, and
// not all that was allowed.
func TestALongOutageIsNoDebt(t *testing.T) {
	t.Parallel()
	for _, a := range quota.Algorithms() {
		if a.Holds() {
			continue
		}
		f := newFixture(t, 1, local)
		p := policy("core", throttler.Limit{Quota: 60, Window: time.Minute, Algorithm: a})
		f.fail(down)
		allowed := 0
		for range 600 {
			allowed += f.takes(0, 1, p, "alice")
			f.clock.Advance(time.Second)
		}
		f.recover()
		if n := f.used(p, "alice"); allowed < 590 || n > 60 {
			t.Errorf("%v: %d were allowed in ten windows, and the backend counts %d; want at most 60", a, allowed, n)
		}
	}
}

// A charge that may have reached the backend is charged at most once.
func TestUnknownOutcomes(t *testing.T) {
	f := newFixture(t, 3, local)
	f.fail(lateReply)
	if got := f.takes(0, 10, core, "alice"); got != 10 {
		t.Fatalf("allowed %d, want 10", got)
	}
	f.recover()
	if got := f.used(core, "alice"); got != 10 {
		t.Errorf("the backend counts %d of 10 that were charged with a late reply", got)
	}
	f.fail(lost)
	if got := f.takes(1, 60, core, "bob"); got != 20 {
		t.Errorf("allowed %d, want a share", got)
	}
	f.fail(nil)
	// An answer does not hand out a share again.
	for range 5 {
		f.fail(nil)
		f.take(1, core.Charge("bob"))
		f.fail(lost)
		if got := f.takes(1, 60, core, "bob"); got != 0 {
			t.Errorf("allowed %d more", got)
		}
	}
}

// A charge that the backend may never learn of counts until its own window ends, not until the
// end of a window that an earlier failure opened.
func TestUnknownOutcomesOfTwoWindows(t *testing.T) {
	f := newFixture(t, 3, local)
	window := 10 * time.Second
	p := policy("core", throttler.Limit{Quota: 30, Window: window, Aligned: true})
	start := t0.Truncate(window)
	f.clock.Set(start.Add(8 * time.Second))
	f.fail(lost)
	f.takes(0, 1, p, "alice")
	f.clock.Set(start.Add(11 * time.Second))
	if got := f.takes(0, 30, p, "alice"); got != 10 {
		t.Fatalf("allowed %d, want a share of 10", got)
	}
	f.fail(nil)
	f.takes(0, 1, p, "alice")
	f.fail(lost)
	f.clock.Set(start.Add(18500 * time.Millisecond))
	if got := f.takes(0, 30, p, "alice"); got != 0 {
		t.Errorf("allowed %d more in one window", got)
	}
	f.clock.Set(start.Add(20 * time.Second))
	if got := f.takes(0, 30, p, "alice"); got != 10 {
		t.Errorf("allowed %d in the next window, want 10", got)
	}
}

// A hand-over that fails after it was sent is not made again.
func TestHandOverIsMadeOnce(t *testing.T) {
	f := newFixture(t, 1, local)
	f.fail(down)
	f.takes(0, 10, core, "alice")
	b := f.backends[0]
	f.flaky.fails.Store(nil)
	eventually(t, "the hand-over", func() bool { return b.Stats().Held == 0 })
	if got := f.used(core, "alice"); got != 10 {
		t.Errorf("the backend counts %d, want 10", got)
	}
}

func TestRefunds(t *testing.T) {
	f := newFixture(t, 3, local)
	ctx := t.Context()
	before := f.take(0, core.Charge("alice"))
	f.fail(down)
	if _, err := f.processes[0].Refund(ctx, before); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("a refund of what the backend charged: got %v, want ErrUnavailable", err)
	}
	during := f.take(0, core.Charge("alice"))
	more := f.take(0, core.Charge("alice"))
	after, err := f.processes[0].Refund(ctx, during)
	if err != nil || !after.Degraded {
		t.Errorf("refund: got %v, %v", after, err)
	}
	if _, err := f.processes[0].Settle(ctx, more, 5); err != nil {
		t.Error(err)
	}
	late := f.take(0, core.Charge("bob"))
	costly := f.take(0, core.Charge("bob"))
	f.recover()
	if got := f.used(core, "alice"); got != 1+5 {
		t.Errorf("the backend counts %d of alice, want 1 from before and 5", got)
	}
	// After the hand-over a refund comes too late, and a higher cost is charged.
	if _, err := f.processes[0].Refund(ctx, late); err != nil {
		t.Error(err)
	}
	if _, err := f.processes[0].Settle(ctx, costly, 4); err != nil {
		t.Error(err)
	}
	if got := f.used(core, "bob"); got != 2+3 {
		t.Errorf("the backend counts %d of bob, want 5", got)
	}
}

// A refund reduces the units to hand over if its own charge is among them.
func TestRefundsOfWhatIsNotOwed(t *testing.T) {
	t.Parallel()
	refund := func(f *fixture, d throttler.Decision) {
		f.Helper()
		if _, err := f.processes[0].Refund(f.Context(), d); err != nil {
			f.Fatal(err)
		}
		f.recover()
		if got := f.used(core, "alice"); got != 1 {
			f.Errorf("the backend counts %d, want the one that is not refunded", got)
		}
	}
	t.Run("unknown outcome", func(t *testing.T) {
		f := newFixture(t, 3, local)
		f.fail(lost)
		unknown := f.take(0, core.Charge("alice"))
		f.fail(down)
		f.take(0, core.Charge("alice"))
		refund(f, unknown)
	})
	t.Run("unknown outcome between others", func(t *testing.T) {
		f := newFixture(t, 3, local)
		f.fail(lost)
		unknown := f.take(0, core.Charge("alice"))
		f.fail(down)
		known := f.take(0, core.Charge("alice"))
		f.take(0, core.Charge("alice"))
		if _, err := f.processes[0].Refund(t.Context(), unknown); err != nil {
			t.Fatal(err)
		}
		refund(f, known)
	})
	t.Run("handed over in the window before", func(t *testing.T) {
		f := newFixture(t, 3, local)
		f.fail(down)
		before := f.take(0, core.Charge("alice"))
		f.recover()
		f.clock.Advance(time.Hour)
		f.fail(down)
		f.take(0, core.Charge("alice"))
		refund(f, before)
	})
}

func TestPeeks(t *testing.T) {
	f := newFixture(t, 3, local)
	f.takes(0, 30, core, "alice")
	f.fail(down)
	peek := func() decision.Status {
		t.Helper()
		d, err := f.processes[0].Peek(t.Context(), core.Charge("alice"))
		if err != nil || !d.Degraded || !d.Allowed {
			t.Fatalf("got %v, %v", d, err)
		}
		return d.Limit(0)
	}
	if s := peek(); s.Remaining != 10 {
		t.Errorf("got %+v, want 10 remaining", s)
	}
	if s := peek(); s.Remaining != 10 {
		t.Errorf("again: got %+v, want 10 remaining", s)
	}
	f.takes(0, 4, core, "alice")
	if s := peek(); s.Remaining != 6 {
		t.Errorf("got %+v, want 6 remaining", s)
	}
}

func TestChargeAboveTheShare(t *testing.T) {
	f := newFixture(t, 3, local)
	f.fail(down)
	charge := core.Charge("alice")
	charge.Cost = 21
	if d, err := f.processes[0].Take(t.Context(), charge); !errors.Is(err, driver.ErrFailClosed) {
		t.Errorf("got %v, %v; want ErrFailClosed: it fits once the backend answers", d, err)
	}
	charge.Cost = 61
	if d := f.take(0, charge); d.Allowed || !d.RetryAt().Equal(decision.Never) {
		t.Errorf("got %v, want never", d)
	}
}

// Keys of shards that answer notice nothing.
func TestOtherShards(t *testing.T) {
	shards := &twoShards{a: &flaky{Backend: memorybackend.NewDefault()}, b: memorybackend.NewDefault()}
	b := open(t, shards, &fallback.Options{OnFailure: fallback.Local, Processes: 3})
	th := throttler.New(b, nil)
	shards.a.fails.Store(down)
	for i := range 60 {
		here, err := th.Take(t.Context(), core.Charge("a"))
		if err != nil || !here.Degraded || here.Allowed != (i < 20) {
			t.Fatalf("shard a, take %d: got %v, %v", i, here, err)
		}
		there, err := th.Take(t.Context(), core.Charge("b"))
		if s := there.Limit(0); err != nil || there.Degraded || s.Used != int64(i+1) {
			t.Fatalf("shard b, take %d: got %v, %v", i, there, err)
		}
	}
}

// twoShards keeps keys that begin with "a" on a, and others on b.
type twoShards struct {
	a *flaky
	b driver.Backend
}

func (s *twoShards) of(charges []throttler.Charge) driver.Backend {
	if charges[0].Partition[0] == 'a' {
		return s.a
	}
	return s.b
}

func (s *twoShards) Down(partition string) (since time.Time, down bool) {
	if partition[0] == 'a' {
		return s.a.Down(partition)
	}
	return since, false
}

func (s *twoShards) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return s.of(r.Charges()).Take(ctx, r)
}

func (s *twoShards) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return s.of(r.Charges()).Peek(ctx, r)
}

func (s *twoShards) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	return s.of(st.Charged.Charges()).Settle(ctx, st)
}

func (s *twoShards) Reset(ctx context.Context, r driver.Request) error {
	return s.of(r.Charges()).Reset(ctx, r)
}

// A caller that left is no outage, and a bad argument neither.
func TestWhatIsNoOutage(t *testing.T) {
	f := newFixture(t, 1, fallback.Options{})
	for _, err := range []error{context.Canceled, fmt.Errorf("no: %w", throttler.ErrInvalid)} {
		ctx, cancel := context.WithCancel(t.Context())
		f.fail(&failure{err: fmt.Errorf("%w: %w", throttler.ErrUnavailable, err)})
		if errors.Is(err, context.Canceled) {
			cancel()
		}
		if d, got := f.processes[0].Take(ctx, core.Charge("alice")); !errors.Is(got, err) {
			t.Errorf("got %v, %v; want %v", d, got, err)
		}
		cancel()
	}
	if s := f.backends[0].Stats(); s.Outages != 0 {
		t.Errorf("got %+v", s)
	}
}

// poisoned is a backend that fails for one key.
type poisoned struct{ driver.Backend }

func (b poisoned) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if r.Charges()[0].Key == "poisoned" {
		return driver.Decision{}, &driver.UnavailableError{Backend: "flaky", Shard: "a", Err: errors.New("WRONGTYPE")}
	}
	return b.Backend.Take(ctx, r)
}

// Failures of one key do not keep the others from the backend.
func TestOneKeyFails(t *testing.T) {
	shared := &flaky{Backend: poisoned{memorybackend.NewDefault()}}
	b := open(t, shared, &fallback.Options{OnFailure: fallback.Local, Processes: 3})
	th := throttler.New(b, nil)
	shared.fails.Store(down)
	if d, err := th.Take(t.Context(), core.Charge("alice")); err != nil || !d.Degraded {
		t.Fatalf("got %v, %v", d, err)
	}
	shared.fails.Store(nil)
	eventually(t, "the backend decides about alice", func() bool {
		if d, err := th.Take(t.Context(), core.Charge("poisoned")); err != nil || !d.Degraded {
			t.Fatalf("got %v, %v", d, err)
		}
		d, err := th.Take(t.Context(), core.Charge("alice"))
		if err != nil {
			t.Fatal(err)
		}
		return !d.Degraded
	})
}

// A backend that reports a shard as down asks by itself whether it is back. No other call does,
// however long it takes.
func TestNothingIsSentToAShardThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, local)
		f.fail(down)
		f.takes(0, 10, core, "alice") // the first asks
		time.Sleep(time.Minute)
		if n := f.flaky.calls.Load(); n != 1 {
			t.Errorf("%d calls in a minute, want the one that failed", n)
		}
		f.recover()
		if got := f.used(core, "alice"); got != 10 {
			t.Errorf("the backend counts %d, want 10", got)
		}
	})
}

// If a backend cannot report whether it answers, its calls show it.
func TestBackendWithoutHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, local)
		mute := open(t, struct{ driver.Backend }{f.flaky}, &fallback.Options{OnFailure: fallback.Local, Processes: 1})
		f.processes[0], f.backends[0] = throttler.New(mute, &throttler.Options{Clock: f.clock}), mute
		f.fail(refusing)
		f.takes(0, 10, core, "alice")
		time.Sleep(time.Minute)
		if s := mute.Stats(); s.Held != 1 || s.HandedOver != 0 {
			t.Errorf("while it fails: %+v, want that alice is held", s)
		}
		f.recover()
		if got := f.used(core, "alice"); got != 10 {
			t.Errorf("the backend counts %d, want 10", got)
		}
	})
}

// Counts of one decision do not push each other out of a full table.
func TestDecisionsAboutMoreThanFits(t *testing.T) {
	f := newFixture(t, 2, fallback.Options{OnFailure: fallback.Local, MaxKeys: 2})
	f.fail(down)
	var charges []throttler.Charge
	for i := range 5 {
		c := core.Charge(fmt.Sprint("key", i))
		c.Partition = "part"
		charges = append(charges, c)
	}
	allowed := 0
	for range 100 {
		if f.take(0, charges...).Allowed {
			allowed++
		}
		f.takes(0, 1, core, "other")
	}
	if allowed != 30 {
		t.Errorf("%d decisions were allowed, want 30", allowed)
	}
	f.recover()
}

// A process that ends hands over its charges if the backend answers.
func TestClose(t *testing.T) {
	f := newFixture(t, 1, local)
	f.fail(down)
	f.takes(0, 10, core, "alice")
	f.fail(nil)
	f.backends[0].Close()
	if got := f.used(core, "alice"); got != 10 {
		t.Errorf("the backend counts %d, want 10", got)
	}
}

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		o    fallback.Options
		want string
	}{
		{fallback.Options{OnFailure: fallback.Local}, "fallback: Processes is 0; Local needs the number of processes that share the quotas, from 1 to 1048576"},
		{fallback.Options{Policies: map[string]fallback.Choice{"core": fallback.Local}}, "fallback: Processes is 0; Local needs the number of processes that share the quotas, from 1 to 1048576"},
		{fallback.Options{Processes: -1}, "fallback: Processes is -1; it must be from 1 to 1048576"},
		{fallback.Options{OnFailure: 3}, "fallback: OnFailure is 3; it must be Open, Local or Closed"},
		{fallback.Options{Policies: map[string]fallback.Choice{"core": 7}}, `fallback: Policies["core"] is 7; it must be Open, Local or Closed`},
		{fallback.Options{OpenFor: -1}, "fallback: OpenFor is -1ns; it must be positive, or 0 for no bound"},
		{fallback.Options{MaxKeys: -1}, "fallback: MaxKeys is -1; it must be positive, or 0 for 65536"},
		{fallback.Options{Processes: 3}, "fallback: Processes is 3 and MaxKeys 0, which only Local uses, and no choice is Local; set OnFailure, or leave them out"},
		{fallback.Options{OnFailure: fallback.Closed, MaxKeys: 9}, "fallback: Processes is 0 and MaxKeys 9, which only Local uses, and no choice is Local; set OnFailure, or leave them out"},
		{fallback.Options{OnFailure: fallback.Closed, OpenFor: time.Minute}, "fallback: OpenFor is 1m0s, which only Open uses, and no choice is Open; set OnFailure, or leave it out"},
		{fallback.Options{Policies: map[string]fallback.Choice{"a b": fallback.Open}}, "fallback: Policies: quota: policy name is \"a b\"; it must be 1 to 64 letters, digits, and . _ - / :"},
	} {
		_, err := fallback.New(memorybackend.NewDefault(), &test.o)
		if !errors.Is(err, throttler.ErrInvalid) || err.Error() != test.want {
			t.Errorf("%+v: got %v, want %s", test.o, err, test.want)
		}
	}
	for _, c := range []fallback.Choice{fallback.Open, fallback.Local, fallback.Closed} {
		var back fallback.Choice
		if err := back.UnmarshalText([]byte(c.String())); back != c || err != nil {
			t.Errorf("%v: got %v, %v", c, back, err)
		}
		back = 0
		if text, err := c.MarshalText(); err != nil || back.UnmarshalText(text) != nil || back != c {
			t.Errorf("%v is the text %q, error %v, and back %v", c, text, err, back)
		}
	}
	if _, err := fallback.Choice(9).MarshalText(); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("the text of no choice: got %v", err)
	}
	if err := new(fallback.Choice).UnmarshalText([]byte("shut")); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

// A settlement that is made here and cannot be charged is not made again.
func TestSettlementInPart(t *testing.T) {
	f := newFixture(t, 1, local)
	p := policy("core", throttler.Limit{Quota: 100, Window: time.Hour})
	f.fail(down)
	d := f.take(0, p.Charge("alice"))
	f.recover()
	f.fail(down)
	_, err := f.processes[0].Settle(t.Context(), d, 5)
	if !errors.Is(err, breaker.ErrOpen) || !driver.MayHaveCharged(err) {
		t.Errorf("got %v, want an error that leaves open what was charged", err)
	}
	if _, err := f.processes[0].Settle(t.Context(), d, 5); err != nil {
		t.Errorf("the second time: %v, want that nothing is done", err)
	}
}
