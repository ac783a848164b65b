package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// calling counts the calls to a backend.
type calling struct {
	driver.Backend
	takes, settles atomic.Int64
}

func (c *calling) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	c.takes.Add(1)
	return c.Backend.Take(ctx, r)
}

func (c *calling) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	c.settles.Add(1)
	return c.Backend.Settle(ctx, s)
}

// starts records when calls of Wait returned, and their numbers in that order.
type starts struct {
	mu    sync.Mutex
	at    []time.Time
	order []int
}

func (s *starts) add(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.order = append(s.at, time.Now()), append(s.order, i)
}

// most returns the maximum number of starts in any second.
func (s *starts) most() int {
	slices.SortFunc(s.at, time.Time.Compare)
	most := 0
	for i := range s.at {
		n := 0
		for _, at := range s.at[i:] {
			if at.Sub(s.at[i]) < time.Second {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// Three processes of five workers share ten starts a second. Each algorithm has a bound on
// starts in a second, and on calls for each start: a call is refused if another process got
// the unit that both waited for.
func TestWorkersWaitForEachStart(t *testing.T) {
	for name, test := range map[string]struct {
		limit throttler.Limit
		most  int // starts in any second
		calls float64
	}{
		"leaky bucket":   {throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket}, 10, 1},
		"token bucket":   {throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 1}, 10, 1},
		"a burst":        {throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket}, 20, 1},
		"fixed window":   {throttler.Limit{Quota: 10, Window: time.Second}, 20, 1.2},
		"sliding log":    {throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.SlidingLog}, 10, 3},
		"sliding window": {throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.SlidingWindow}, 20, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const perProcess, workers = 60, 5
				backend := &calling{Backend: memorybackend.NewDefault()}
				policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{test.limit}}
				began := time.Now()
				var all starts
				var running sync.WaitGroup
				for range 3 {
					process := throttler.New(backend, nil)
					var own starts
					var called atomic.Int64
					for range workers {
						running.Go(func() {
							for i := called.Add(1); i <= perProcess; i = called.Add(1) {
								if _, err := process.Wait(t.Context(), policy.Charge("key")); err != nil {
									t.Error(err)
								}
								own.add(int(i))
								all.add(0)
								time.Sleep(20 * time.Millisecond) // the work
							}
						})
					}
					defer func() {
						for i, n := range own.order { // goroutines that call or return at one instant have no order
							if n-i > workers || i-n > workers {
								t.Errorf("call %d returned as number %d", n, i)
							}
						}
					}()
				}
				running.Wait()
				took, starts := time.Since(began), float64(len(all.at))
				t.Logf("%.3f calls, %d most, took %v", float64(backend.takes.Load())/starts, all.most(), took)
				if most := all.most(); most > test.most {
					t.Errorf("%d starts in a second; want at most %d", most, test.most)
				}
				if calls := float64(backend.takes.Load()) / starts; calls > test.calls || backend.settles.Load() > 0 {
					t.Errorf("%.2f calls for each start; want at most %v", calls, test.calls)
				}
				if least := 20 * time.Second; took > least {
					t.Errorf("%v starts took %v; at 10 a second they take %v", starts, took, least)
				}
			})
		})
	}
}

var second = map[string]throttler.Limit{
	"fixed window":   {Quota: 1, Window: time.Second},
	"sliding window": {Quota: 1, Window: time.Second, Algorithm: throttler.SlidingWindow},
	"sliding log":    {Quota: 1, Window: time.Second, Algorithm: throttler.SlidingLog},
	"token bucket":   {Quota: 1, Window: time.Second, Algorithm: throttler.TokenBucket},
	"leaky bucket":   {Quota: 1, Window: time.Second, Algorithm: throttler.LeakyBucket},
}

// Calls about one count return in the order of the calls.
func TestWaitersTakeTurns(t *testing.T) {
	for name, limit := range second {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				th := throttler.New(memorybackend.NewDefault(), nil)
				policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{limit}}
				var all starts
				var running sync.WaitGroup
				for i := range 8 {
					running.Go(func() {
						d, err := th.Wait(t.Context(), policy.Charge("key"))
						if err != nil || !d.Allowed {
							t.Errorf("call %d: %v, %v", i, d, err)
						}
						if d.StartAt().After(time.Now()) {
							t.Errorf("call %d returned at %v, before its start, %v", i, time.Now(), d.StartAt())
						}
						all.add(i)
					})
					synctest.Wait()
				}
				running.Wait()
				if !slices.IsSorted(all.order) || all.most() > 1 {
					t.Errorf("the order is %v, the most in a second %d", all.order, all.most())
				}
			})
		})
	}
}

// A call that can't start before its deadline fails at once, even behind others, and charges
// nothing.
func TestWaitFailsAtOnce(t *testing.T) {
	for name, limit := range second {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				backend := &calling{Backend: memorybackend.NewDefault()}
				th := throttler.New(backend, nil)
				limit.Window = time.Hour
				policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{limit}}
				began := time.Now()
				if _, err := th.Wait(t.Context(), policy.Charge("key")); err != nil || time.Since(began) > 0 {
					t.Fatalf("the first: %v, after %v", err, time.Since(began))
				}
				var running sync.WaitGroup
				for i := range 8 {
					running.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Minute)
						defer cancel()
						d, err := th.Wait(ctx, policy.Charge("key"))
						if !errors.Is(err, context.DeadlineExceeded) || d.Allowed || time.Since(began) > 0 {
							t.Errorf("%v, %v, after %v; want a deadline exceeded at once", d, err, time.Since(began))
						}
					})
				}
				running.Wait()
				patient, leave := context.WithCancel(t.Context())
				running.Go(func() { _, _ = th.Wait(patient, policy.Charge("key")) })
				synctest.Wait()
				asked := backend.takes.Load()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if _, err := th.Wait(ctx, policy.Charge("key")); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 0 {
					t.Errorf("behind one that waits: %v, after %v", err, time.Since(began))
				}
				if now := backend.takes.Load(); now != asked {
					t.Errorf("the backend was asked %d times about what was known", now-asked)
				}
				leave()
				running.Wait()
				if d, _ := th.Peek(t.Context(), policy.Charge("key")); d.Limit(0).Used != 1 {
					t.Errorf("%d are used; want the first alone", d.Limit(0).Used)
				}
			})
		})
	}
}

// Wait fails at once for a charge that can never fit.
func TestWaitForNever(t *testing.T) {
	th := throttler.New(memorybackend.NewDefault(), nil)
	for name, limit := range second {
		policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{limit}}
		charge := policy.Charge(name)
		charge.Cost = 2
		if d, err := th.Wait(t.Context(), charge); !errors.Is(err, context.DeadlineExceeded) || d.Allowed {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
	if _, err := th.Wait(t.Context()); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("no charges: %v", err)
	}
}

// Others take the places of callers that leave, and no start is given twice.
func TestWaitersThatLeave(t *testing.T) {
	for name, limit := range map[string]throttler.Limit{
		"leaky bucket": second["leaky bucket"],
		"token bucket": second["token bucket"],
		"a long queue": {Quota: 1, Window: time.Second, Algorithm: throttler.LeakyBucket, Burst: 20},
		"a burst":      {Quota: 1, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				backend := memorybackend.NewDefault()
				policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{limit}}
				var processes [5]*throttler.Throttler
				for i := range processes {
					processes[i] = throttler.New(backend, nil)
				}
				var all starts
				var running sync.WaitGroup
				wait := func(i int) (leave func()) {
					ctx, leave := context.WithCancel(t.Context())
					running.Go(func() {
						if _, err := processes[i%len(processes)].Wait(ctx, policy.Charge("key")); err == nil {
							all.add(i)
						} else if !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
					})
					synctest.Wait()
					return leave
				}
				for range 3 { // a full bucket
					wait(0)
				}
				time.Sleep(500 * time.Millisecond)
				for round := range 6 {
					var leave []func()
					for i := range 5 {
						leave = append(leave, wait(i))
					}
					leave[round%5]()
					leave[(round+3)%5]()
					synctest.Wait()
					time.Sleep(200 * time.Millisecond)
				}
				running.Wait()
				if want := 3 + 6*3; len(all.at) != want {
					t.Errorf("%d started; want %d", len(all.at), want)
				}
				most := 1
				if limit.Algorithm == throttler.TokenBucket {
					most = int(limit.Capacity())
				}
				if n := all.most(); n > most {
					t.Errorf("%d starts in a second; want at most %d", n, most)
				}
				if took := all.at[len(all.at)-1].Sub(all.at[0]); took > 35*time.Second {
					t.Errorf("%d starts took %v", len(all.at), took)
				}
			})
		})
	}
}

// Wait goes by the throttler's clock.
func TestWaitByAnotherClock(t *testing.T) {
	now := clock.NewManual(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: now})
	policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	if _, err := th.Wait(t.Context(), policy.Charge("key")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := th.Wait(t.Context(), policy.Charge("key"))
		done <- err
	}()
	now.BlockUntil(1)
	now.Advance(time.Hour)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A backend that does not answer is no reason to start.
func TestWaitWithoutABackend(t *testing.T) {
	th := throttler.New(broken{}, nil)
	policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{second["leaky bucket"]}}
	if d, err := th.Wait(t.Context(), policy.Charge("key")); !errors.Is(err, throttler.ErrUnavailable) || d.Allowed {
		t.Errorf("%v, %v", d, err)
	}
}

// broken is a backend that does not answer.
type broken struct{ driver.Backend }

func (broken) Take(context.Context, driver.Request) (driver.Decision, error) {
	return driver.Decision{}, driver.ErrUnavailable
}

// A reset makes room for calls that wait, and ends a pause for them.
func TestResetWakesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memorybackend.NewDefault(), nil)
		window := &throttler.Policy{Name: "window", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
		leaky := &throttler.Policy{Name: "leaky", Limits: []throttler.Limit{{Quota: 1, Window: 10 * time.Second, Algorithm: throttler.LeakyBucket}}}
		used := func(p *throttler.Policy, cost int64) func() {
			return func() {
				if _, err := th.Take(t.Context(), throttler.Charge{Policy: p, Key: "key", Cost: cost}); err != nil {
					t.Error(err)
				}
			}
		}
		pause := func(p *throttler.Policy) func() {
			return func() {
				if err := th.Pause(t.Context(), time.Now().Add(30*time.Minute), p.Charge("key")); err != nil {
					t.Error(err)
				}
			}
		}
		for name, test := range map[string]struct {
			policy        *throttler.Policy
			before, after func() // the call of Wait
		}{
			"used up":                    {window, used(window, 2), func() {}},
			"paused":                     {window, pause(window), func() {}},
			"paused when it has a start": {leaky, used(leaky, 1), pause(leaky)},
		} {
			test.before()
			done := make(chan time.Time, 1)
			go func() {
				if _, err := th.Wait(t.Context(), test.policy.Charge("key")); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				done <- time.Now()
			}()
			synctest.Wait()
			test.after()
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(done) > 0 {
				t.Errorf("%s: the call has returned before the reset", name)
			}
			reset := time.Now()
			if err := th.Reset(t.Context(), test.policy.Charge("key")); err != nil {
				t.Fatal(err)
			}
			if at := <-done; !at.Equal(reset) {
				t.Errorf("%s: the call returned %v after the reset", name, at.Sub(reset))
			}
			if err := th.Reset(t.Context(), test.policy.Charge("key")); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A refund makes room for waiting calls. They don't ask the backend for a start that is far
// ahead.
func TestRefundWakesWaiters(t *testing.T) {
	hour := func(quota int64, a quota.Algorithm) throttler.Limit {
		return throttler.Limit{Quota: quota, Window: time.Hour, Algorithm: a}
	}
	for name, test := range map[string]struct {
		limits []throttler.Limit
		costs  []int64 // to settle to
		starts int     // at once, of two that wait
		calls  int64   // to the backend
	}{
		"a window":           {[]throttler.Limit{hour(2, throttler.FixedWindow)}, []int64{0}, 2, 1},
		"a lower cost":       {[]throttler.Limit{hour(2, throttler.SlidingLog)}, []int64{1}, 1, 1},
		"in flight":          {[]throttler.Limit{hour(1, throttler.InFlight), hour(100, throttler.FixedWindow)}, nil, 1, 1},
		"in flight, a start": {[]throttler.Limit{hour(1, throttler.InFlight), hour(100, throttler.LeakyBucket)}, nil, 0, 1},
		"a leaky bucket":     {[]throttler.Limit{hour(2, throttler.LeakyBucket)}, []int64{0}, 0, 0},
		"a token bucket":     {[]throttler.Limit{hour(2, throttler.TokenBucket)}, []int64{0}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &calling{Backend: memorybackend.NewDefault()}
				th := throttler.New(b, nil)
				p := policy("p", test.limits...)
				d := take(t, th, throttler.Charge{Policy: p, Key: "key", Cost: 2})
				started := make(chan throttler.Decision, 2)
				for range 2 {
					go func() {
						d, err := th.Wait(t.Context(), p.Charge("key"))
						if err != nil {
							t.Error(err)
						}
						started <- d
					}()
					synctest.Wait()
				}
				asked := b.takes.Load()
				if _, err := th.Settle(t.Context(), d, test.costs...); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if len(started) != test.starts {
					t.Errorf("%d have started; want %d", len(started), test.starts)
				}
				if n := b.takes.Load() - asked; n != test.calls {
					t.Errorf("%d more calls to the backend; want %d", n, test.calls)
				}
				for range 2 {
					if _, err := th.Settle(t.Context(), <-started); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// A waiting call starts at most a second after a change to limits that it fits, or at once if
// another call comes. It doesn't ask the backend more often while its own limits don't change.
func TestWaitersGoByWhatIsInForce(t *testing.T) {
	hour := func(quota int64, a quota.Algorithm) throttler.Limit {
		return throttler.Limit{Quota: quota, Window: time.Hour, Algorithm: a}
	}
	for name, test := range map[string]struct {
		limit         throttler.Limit
		before, after policies.Override
	}{
		"a larger window": {hour(1, throttler.FixedWindow), policies.Override{}, policies.Override{Limits: []throttler.Limit{hour(9, throttler.FixedWindow)}}},
		"a larger log":    {hour(1, throttler.SlidingLog), policies.Override{}, policies.Override{Limits: []throttler.Limit{hour(9, throttler.SlidingLog)}}},
		"unlimited":       {hour(1, throttler.SlidingLog), policies.Override{}, policies.Override{Unlimited: true}},
		"no block":        {hour(9, throttler.FixedWindow), policies.Override{Blocked: true, Until: time.Now().AddDate(50, 0, 0)}, policies.Override{}},
	} {
		waiter := func(behind bool) func(*testing.T) {
			return func(t *testing.T) { // in a bubble
				table, b := new(policies.Table), &calling{Backend: memorybackend.NewDefault()}
				th := throttler.New(b, &throttler.Options{Policies: table})
				p := policy("p", test.limit)
				edit := func(key string, o policies.Override) {
					t.Helper()
					if err := table.Source("code").Edit(func(e *policies.Edit) {
						if e.RemoveOverride("p", key); o.Limits != nil || o.Blocked || o.Unlimited {
							o.Policy, o.Key = "p", key
							e.Override(o)
						}
					}); err != nil {
						t.Fatal(err)
					}
				}
				take(t, th, p.Charge("key"))
				take(t, th, p.Charge("key"))
				edit("key", test.before)
				done := make(chan error, 1)
				go func() {
					_, err := th.Wait(t.Context(), p.Charge("key"))
					done <- err
				}()
				synctest.Wait()
				asked := b.takes.Load()
				for range 100 {
					edit("other", policies.Override{Blocked: true})
					time.Sleep(time.Second)
				}
				synctest.Wait()
				if n := b.takes.Load() - asked; n != 0 || len(done) > 0 {
					t.Errorf("%d calls to the backend, %d have returned, while nothing has changed", n, len(done))
				}
				edit("key", test.after)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if behind {
					if _, err := th.Wait(ctx, p.Charge("key")); err != nil {
						t.Errorf("a call that comes at once: %v", err)
					}
					return
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if len(done) == 0 {
					t.Fatal("the call waits a second after the change")
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}
		t.Run(name, func(t *testing.T) { synctest.Test(t, waiter(false)) })
		t.Run(name+", and another call at once", func(t *testing.T) { synctest.Test(t, waiter(true)) })
	}
}

// A call is in flight while it waits for its start, even for longer than a lease.
func TestWaitersAreInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memorybackend.NewDefault(), nil)
		p := policy("p", throttler.Limit{Quota: 1, Window: time.Minute, Algorithm: throttler.LeakyBucket, Burst: 2},
			throttler.Limit{Quota: 2, Window: 15 * time.Second, Algorithm: throttler.InFlight})
		if _, err := th.Settle(t.Context(), take(t, th, p.Charge("key"))); err != nil {
			t.Fatal(err)
		}
		inFlight := func(want int64) {
			t.Helper()
			if d, err := th.Peek(t.Context(), p.Charge("key")); err != nil || d.Limit(1).Used != want {
				t.Errorf("%v, %v; want %d in flight", d, err, want)
			}
		}
		done := make(chan throttler.Decision, 1)
		go func() {
			d, err := th.Wait(t.Context(), p.Charge("key"))
			if err != nil {
				t.Error(err)
			}
			done <- d
		}()
		time.Sleep(59 * time.Second)
		inFlight(1)
		if _, err := th.Settle(t.Context(), <-done); err != nil {
			t.Error(err)
		}
		inFlight(0)
	})
}

// resetting is a backend that calls reset once, before it returns an answer.
type resetting struct {
	driver.Backend
	reset func()
}

func (b *resetting) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	d, err := b.Backend.Take(ctx, r)
	if reset := b.reset; reset != nil {
		b.reset = nil
		time.Sleep(time.Second) // so that the others wait behind
		reset()
	}
	return d, err
}

// outage is a backend in an outage, which allows everything or refuses it for an hour, until the
// outage is over.
type outage struct {
	driver.Backend
	allows bool
	over   atomic.Bool
	takes  atomic.Int64
}

func (b *outage) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	b.takes.Add(1)
	if b.over.Load() {
		return b.Backend.Take(ctx, r)
	}
	d := driver.NewDecision(r)
	if d.Allowed, d.Degraded = b.allows, true; d.Allowed {
		return d, nil
	}
	end := r.Now + time.Hour.Milliseconds()
	d.Results()[0] = driver.Result{Used: r.Charges()[0].Policy.Limits[0].Capacity(), ResetAt: end, RetryAt: end}
	return d, nil
}

func TestWaitInAnOutage(t *testing.T) {
	th := throttler.New(&outage{Backend: memorybackend.NewDefault(), allows: true}, nil)
	d, err := th.Wait(t.Context(), policy("p", throttler.Limit{Quota: 2, Window: time.Hour}).Charge("key"))
	if err != nil || !d.Allowed || !d.Degraded {
		t.Errorf("%+v, %v; want it allowed, and Degraded", d, err)
	}
}

// single is a backend in an outage, with a share of one unit. Takes wait for begin.
type single struct {
	driver.Backend
	begin chan struct{}
}

func (b *single) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	<-b.begin
	if r.Charges()[0].Cost > 1 {
		return driver.Decision{}, fmt.Errorf("%w: %w", driver.ErrFailClosed, driver.ErrNotSent)
	}
	d := driver.NewDecision(r)
	d.Allowed, d.Degraded = true, true
	return d, nil
}

// Calls that together exceed the share of a process are decided one by one.
func TestWaitersOfASmallShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &single{Backend: memorybackend.NewDefault(), begin: make(chan struct{})}
		th, p := throttler.New(b, nil), policy("p", throttler.Limit{Quota: 100, Window: time.Hour})
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if _, err := th.Wait(t.Context(), p.Charge("key")); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(b.begin)
		all.Wait()
	})
}

// A refusal of one call says nothing about calls of other costs.
func TestWaitersOfOtherCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th, p := newThrottler(), policy("p", per(10, time.Hour))
		take(t, th, throttler.Charge{Policy: p, Key: "key", Cost: 5})
		ctx, cancel := context.WithCancel(t.Context())
		large, small := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := th.Wait(ctx, throttler.Charge{Policy: p, Key: "key", Cost: 10})
			large <- err
		}()
		synctest.Wait()
		began := time.Now()
		short, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		go func() {
			_, err := th.Wait(short, p.Charge("key"))
			small <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-large; !errors.Is(err, context.Canceled) {
			t.Errorf("the large call: %v", err)
		}
		if err := <-small; err != nil || time.Since(began) > 0 {
			t.Errorf("the small call: %v after %v; want it to start at once", err, time.Since(began))
		}
	})
}

// keeper is a backend that keeps the last decision that it returned.
type keeper struct {
	driver.Backend
	last driver.Decision
}

func (k *keeper) Take(ctx context.Context, r driver.Request) (d driver.Decision, err error) {
	k.last, err = k.Backend.Take(ctx, r)
	return k.last, err
}

// Wait changes no decision that a wrapper, such as shadow's, may have kept.
func TestWaitLeavesTheBackendsDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &keeper{Backend: memorybackend.NewDefault()}
		p := policy("p", throttler.Limit{Quota: 1, Window: time.Second, Algorithm: throttler.TokenBucket}, per(100, time.Hour))
		th := throttler.New(b, nil)
		for range 2 {
			if _, err := th.Wait(t.Context(), p.Charge("key")); err != nil {
				t.Fatal(err)
			}
		}
		if at := b.last.Results()[0].StartAt; at != 0 {
			t.Errorf("the backend's decision starts at %d; it said nothing of that", at)
		}
	})
}

// gate is a backend whose takes wait until it is opened.
type gate struct {
	driver.Backend
	open chan struct{}
}

func (g *gate) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	<-g.open
	return g.Backend.Take(ctx, r)
}

func TestWaitersBehindOneThatNeverFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &gate{memorybackend.NewDefault(), make(chan struct{})}
		th, p := throttler.New(b, nil), policy("p", per(10, time.Hour))
		large, small := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := th.Wait(t.Context(), throttler.Charge{Policy: p, Key: "key", Cost: 11})
			large <- err
		}()
		synctest.Wait()
		go func() {
			_, err := th.Wait(t.Context(), p.Charge("key"))
			small <- err
		}()
		synctest.Wait()
		close(b.open)
		if err := <-large; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the large call: %v; want an error: it never fits", err)
		}
		if err := <-small; err != nil {
			t.Errorf("the small call: %v", err)
		}
	})
}

// A call that an outage has refused asks again, and starts once the outage is over.
func TestWaitersOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &outage{Backend: memorybackend.NewDefault()}
		th := throttler.New(b, nil)
		began := time.Now()
		time.AfterFunc(10*time.Second, func() { b.over.Store(true) })
		if _, err := th.Wait(t.Context(), policy("p", throttler.Limit{Quota: 2, Window: time.Hour}).Charge("key")); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 11*time.Second || b.takes.Load() > 12 {
			t.Errorf("it started after %v and %d takes; the outage is over after 10 s", d, b.takes.Load())
		}
	})
}

// A call that was allowed before a reset doesn't determine when calls behind it may start.
func TestResetDuringAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &resetting{Backend: memorybackend.NewDefault()}
		th := throttler.New(backend, nil)
		policy := &throttler.Policy{Name: "window", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
		backend.reset = func() {
			if err := th.Reset(t.Context(), policy.Charge("key")); err != nil {
				t.Error(err)
			}
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var waiting sync.WaitGroup
		for range 2 {
			waiting.Go(func() {
				if _, err := th.Wait(ctx, policy.Charge("key")); err != nil {
					t.Error(err)
				}
			})
		}
		waiting.Wait()
		if took := time.Since(began); took != time.Second {
			t.Errorf("the calls took %v; want none after the reset", took)
		}
	})
}

// pausing is a clock that calls woken when a call of Wait no longer needs its timer.
type pausing struct {
	clock.System
	woken func()
}

func (c *pausing) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	timer := time.AfterFunc(d, f)
	return func() bool {
		c.woken()
		return timer.Stop()
	}
}

// A pause after a reset holds, even if it ends before the pause that the reset has ended.
func TestPauseAfterReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(pausing)
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c})
		leaky := &throttler.Policy{Name: "leaky", Limits: []throttler.Limit{{Quota: 1, Window: 10 * time.Second, Algorithm: throttler.LeakyBucket}}}
		pause := func(d time.Duration) {
			if err := th.Pause(t.Context(), time.Now().Add(d), leaky.Charge("key")); err != nil {
				t.Error(err)
			}
		}
		c.woken = sync.OnceFunc(func() { pause(10 * time.Minute) })
		if _, err := th.Take(t.Context(), leaky.Charge("key")); err != nil {
			t.Fatal(err)
		}
		done := make(chan time.Time, 1)
		go func() {
			if _, err := th.Wait(t.Context(), leaky.Charge("key")); err != nil {
				t.Error(err)
			}
			done <- time.Now()
		}()
		synctest.Wait()
		pause(time.Hour)
		time.Sleep(time.Minute)
		reset := time.Now()
		if err := th.Reset(t.Context(), leaky.Charge("key")); err != nil {
			t.Fatal(err)
		}
		if after := (<-done).Sub(reset); after != 10*time.Minute {
			t.Errorf("the call started %v after the reset; want after the pause of 10m", after)
		}
	})
}
