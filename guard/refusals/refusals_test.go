package refusals_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/backendtest"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// t0 is where clocks start.
var t0 = time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.UTC)

func open(t testing.TB, wrapped driver.Backend, o *refusals.Options) *refusals.Backend {
	t.Helper()
	b, err := refusals.New(wrapped, o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// counting counts the takes that reach it.
type counting struct {
	driver.Backend
	takes atomic.Int64
}

func (c *counting) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	c.takes.Add(1)
	return c.Backend.Take(ctx, r)
}

// fixture is a memory backend behind a Backend, with clocks that the test moves.
type fixture struct {
	*testing.T
	backend  *refusals.Backend
	counting *counting
	clock    *clock.Manual // of the decisions
	elapsed  time.Duration // by the clock that refusals age by
	front    *throttler.Throttler
	other    *throttler.Throttler // another process: not through the Backend
}

func newFixture(t *testing.T, o *refusals.Options) *fixture {
	f := &fixture{T: t, clock: clock.NewManual(t0)}
	if o == nil {
		// So many versions that no two counts of a test share one: a chance of
		// one in a million.
		o = &refusals.Options{MaxKeys: 1 << 19}
	}
	memory := memorybackend.NewDefault()
	f.counting = &counting{Backend: memory}
	f.backend = open(t, f.counting, o)
	f.backend.SetElapsed(func() time.Duration { return f.elapsed })
	f.front = throttler.New(f.backend, &throttler.Options{Clock: f.clock})
	f.other = throttler.New(memory, &throttler.Options{Clock: f.clock})
	return f
}

func (f *fixture) take(th *throttler.Throttler, charges ...throttler.Charge) throttler.Decision {
	f.Helper()
	d, err := th.Take(f.Context(), charges...)
	if err != nil {
		f.Fatal(err)
	}
	return d
}

// allowed takes, and fails the test if the take is refused.
func (f *fixture) allowed(charges ...throttler.Charge) throttler.Decision {
	f.Helper()
	d := f.take(f.front, charges...)
	if !d.Allowed {
		f.Fatalf("refused: %v", d)
	}
	return d
}

// refused takes, and fails the test unless the take is refused, from memory or by the backend.
func (f *fixture) refused(fromMemory bool, charges ...throttler.Charge) throttler.Decision {
	f.Helper()
	before := f.counting.takes.Load()
	d := f.take(f.front, charges...)
	if d.Allowed {
		f.Fatal("allowed, want a refusal")
	}
	if asked := f.counting.takes.Load() > before; asked == fromMemory {
		f.Fatalf("the backend was asked: %v, want %v", asked, !fromMemory)
	}
	if !d.At().Equal(f.clock.Now()) {
		f.Fatalf("At is %v, want the take's time, %v", d.At(), f.clock.Now())
	}
	return d
}

func (f *fixture) refund(th *throttler.Throttler, d throttler.Decision) {
	f.Helper()
	if _, err := th.Refund(f.Context(), d); err != nil {
		f.Fatal(err)
	}
}

func policy(name string, limits ...throttler.Limit) *throttler.Policy {
	return &throttler.Policy{Name: name, Limits: limits}
}

var (
	fivePerMinute = throttler.Limit{Quota: 5, Window: time.Minute}
	core          = policy("core", fivePerMinute)
)

func charge(p *throttler.Policy, key string, cost int64) throttler.Charge {
	return throttler.Charge{Policy: p, Key: key, Cost: cost}
}

// TestContract runs the whole suite with refusals that are too old at once.
func TestContract(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) driver.Backend {
		return open(t, memorybackend.NewDefault(), &refusals.Options{MaxAge: 1})
	})
}

// decays lists the cases of the suite that fail because of the documented staleness: units were
// released, or taken, since the refusal.
var decays = map[string]string{
	"extremes/a fixed window of a year and 2^53 units": "Used and Remaining are the refusal's",
	"settlements/sliding window: a debt slides out":    "Used and Remaining are the refusal's",
	"settlements/token bucket: a debt drains":          "Used and Remaining are the refusal's",
}

// TestContractFromMemory runs the suite with refusals that do not age.
func TestContractFromMemory(t *testing.T) {
	backendtest.RunExcept(t, func(t *testing.T) driver.Backend {
		return open(t, memorybackend.NewDefault(), &refusals.Options{MaxAge: time.Hour})
	}, decays)
}

func TestRefusedUntilRetryAt(t *testing.T) {
	for _, a := range quota.Algorithms() {
		if a.Holds() { // their refusals are not remembered
			continue
		}
		t.Run(a.String(), func(t *testing.T) {
			l := fivePerMinute
			l.Algorithm = a
			c := policy("core", l).Charge("alice")
			f := newFixture(t, nil)
			for range 5 {
				f.allowed(c)
			}
			first := f.refused(false, c)
			again := f.refused(true, c)
			if again.RetryAt() != first.RetryAt() || again.Limit(0) != first.Limit(0) {
				t.Errorf("got %+v, want %+v", again, first)
			}
			f.clock.Set(first.RetryAt().Add(-time.Millisecond))
			if d := f.refused(true, c); d.RetryAt() != first.RetryAt() || d.Limit(0).Remaining != 0 {
				t.Errorf("a millisecond before it ends: got %+v, want %+v", d, first)
			}
			f.clock.Set(first.RetryAt())
			f.allowed(c)
		})
	}
}

func TestNeverIsRemembered(t *testing.T) {
	f := newFixture(t, nil)
	f.refused(false, charge(core, "alice", 6))
	f.clock.Advance(time.Hour)
	d := f.refused(true, charge(core, "alice", 6))
	if s := d.Limit(0); d.RetryAt() != decision.Never || s.ResetAt != f.clock.Now() || s.Used != 0 {
		t.Errorf("got %+v; want RetryAt Never and, as nothing is used, a ResetAt of now", s)
	}
}

// Only a take that differs in nothing but its time is refused from memory.
func TestWhatDiffersAsks(t *testing.T) {
	other := policy("other", fivePerMinute)
	wider := policy("core", throttler.Limit{Quota: 5, Window: 2 * time.Minute})
	refused := []throttler.Charge{charge(core, "alice", 3), charge(other, "bob", 1).Within("alice")}
	for _, c := range []struct {
		name    string
		charges []throttler.Charge
		after   time.Duration
		aged    time.Duration
	}{
		{name: "a smaller cost", charges: []throttler.Charge{charge(core, "alice", 2), charge(other, "bob", 1).Within("alice")}},
		{name: "a larger cost", charges: []throttler.Charge{charge(core, "alice", 4), charge(other, "bob", 1).Within("alice")}},
		{name: "another key", charges: []throttler.Charge{charge(core, "alice", 3), charge(other, "carol", 1).Within("alice")}},
		{name: "another partition", charges: []throttler.Charge{charge(core, "alice", 3).Within("acme"), charge(other, "bob", 1).Within("acme")}},
		{name: "another policy", charges: []throttler.Charge{charge(core, "alice", 3), charge(policy("third", fivePerMinute), "bob", 1).Within("alice")}},
		{name: "other limits", charges: []throttler.Charge{charge(wider, "alice", 3), charge(other, "bob", 1).Within("alice")}},
		{name: "another order", charges: []throttler.Charge{{Policy: other, Key: "bob", Cost: 1, Partition: "alice"}, {Policy: core, Key: "alice", Cost: 3, Partition: "alice"}}},
		{name: "a charge less", charges: []throttler.Charge{charge(core, "alice", 3)}},
		{name: "a charge more", charges: []throttler.Charge{charge(core, "alice", 3), charge(other, "bob", 1).Within("alice"), charge(other, "carol", 1).Within("alice")}},
		{name: "an earlier time", charges: refused, after: -time.Millisecond},
		{name: "an age of MaxAge", charges: refused, aged: refusals.DefaultMaxAge},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.allowed(charge(core, "alice", 3))
			f.refused(false, refused...)
			f.refused(true, refused...)
			f.elapsed += refusals.DefaultMaxAge - 1
			f.refused(true, refused...)
			f.elapsed = c.aged
			f.clock.Advance(c.after)
			before := f.counting.takes.Load()
			f.take(f.front, c.charges...)
			if f.counting.takes.Load() == before {
				t.Error("refused from memory")
			}
		})
	}
}

// A policy made for each request is the same if its limits are.
func TestEqualPolicies(t *testing.T) {
	f := newFixture(t, nil)
	f.refused(false, charge(core, "alice", 6))
	equal := policy("core", fivePerMinute)
	d := f.refused(true, charge(equal, "alice", 6))
	if d.Charges()[0].Policy != equal || d.Limit(0).Policy != equal {
		t.Error("the answer's policy is not the take's")
	}
	if d := f.refused(true, charge(core, "alice", 6)); d.Limit(0).Policy != core {
		t.Error("the answer has another take's policy")
	}
}

// A refusal ends when the first of its times comes, so that no answer names a
// reset that has passed.
func TestEndsAtTheFirstReset(t *testing.T) {
	f := newFixture(t, nil)
	c := charge(policy("token", throttler.Limit{Quota: 5, Window: 3 * time.Second}, fivePerMinute), "alice", 5)
	f.allowed(c)
	f.clock.Advance(2999 * time.Millisecond)
	f.refused(false, c)
	f.refused(true, c)
	f.clock.Advance(time.Millisecond)
	if d := f.refused(false, c); d.Limit(0).Used != 0 || !d.Limit(1).Refused {
		t.Errorf("got %v", d)
	}
	f.clock.Advance(time.Second)
	if d := f.refused(true, c); d.Limit(0).ResetAt != f.clock.Now() {
		t.Errorf("the reset of a limit that counts nothing is %v, want now, %v", d.Limit(0).ResetAt, f.clock.Now())
	}
}

func TestSettlementsTakeEffectAtOnce(t *testing.T) {
	org := policy("org", throttler.Limit{Quota: 100, Window: time.Minute})
	both := []throttler.Charge{charge(org, "acme", 1), charge(core, "alice", 3).Within("acme")}
	f := newFixture(t, nil)
	taken := f.allowed(both...)
	f.refused(false, both...)
	f.refused(true, both...)

	// Bob's settlement changes the organization's count in alice's refusal.
	bob := f.allowed(charge(org, "acme", 1), charge(core, "bob", 1).Within("acme"))
	f.refused(true, both...)
	if _, err := f.front.Settle(f.Context(), bob, 10, 1); err != nil {
		t.Fatal(err)
	}
	if d := f.refused(false, both...); d.Limit(0).Used != 11 {
		t.Errorf("the organization has used %d, want 11", d.Limit(0).Used)
	}
	f.refused(true, both...)
	f.refund(f.front, taken)
	f.allowed(both...)
}

// Takes by others do not end a refusal: a client that comes again is refused from memory until
// the refusal is MaxAge old, and then hears the later time.
func TestAllowedTakesTakeEffectInTime(t *testing.T) {
	f := newFixture(t, nil)
	org := policy("org", throttler.Limit{Quota: 10, Window: time.Hour})
	by := func(user string, cost int64) []throttler.Charge {
		return []throttler.Charge{charge(org, "acme", cost), charge(core, user, cost).Within("acme")}
	}
	f.allowed(by("alice", 5)...)
	before := f.refused(false, by("alice", 1)...)
	for range 5 { // until the organization is full
		f.allowed(by("bob", 1)...)
		f.refused(true, by("alice", 1)...)
	}
	f.elapsed += refusals.DefaultMaxAge
	after := f.refused(false, by("alice", 1)...)
	if d := after.RetryAt().Sub(before.RetryAt()); d != 59*time.Minute {
		t.Errorf("RetryAt is %v later than when the organization had room, want 59m", d)
	}
}

// Changes by another process are seen when the refusal is MaxAge old.
func TestOtherProcesses(t *testing.T) {
	f := newFixture(t, &refusals.Options{MaxAge: 3 * time.Second})
	d := f.take(f.other, charge(core, "alice", 5))
	f.refused(false, charge(core, "alice", 1))
	f.refund(f.other, d)
	f.elapsed = 3*time.Second - 1
	f.refused(true, charge(core, "alice", 1))
	f.elapsed++
	f.allowed(charge(core, "alice", 1))
}

func TestExcept(t *testing.T) {
	f := newFixture(t, &refusals.Options{Except: []string{"login"}})
	login := policy("login", fivePerMinute)
	for range 2 {
		f.refused(false, charge(login, "alice", 6))
		f.refused(false, charge(core, "alice", 6), charge(login, "alice", 1))
	}
	f.refused(false, charge(core, "alice", 6))
	f.refused(true, charge(core, "alice", 6))
}

func TestPeeksAsk(t *testing.T) {
	f := newFixture(t, nil)
	d := f.take(f.other, charge(core, "alice", 5))
	f.refused(false, charge(core, "alice", 1))
	f.refund(f.other, d)
	if d, err := f.front.Peek(t.Context(), charge(core, "alice", 1)); err != nil || !d.Allowed {
		t.Errorf("got %v, error %v; want what the backend says", d.Allowed, err)
	}
}

func TestDoneContext(t *testing.T) {
	f := newFixture(t, nil)
	f.refused(false, charge(core, "alice", 6))
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.front.Take(done, charge(core, "alice", 6)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

// failing fails all takes.
type failing struct{ driver.Backend }

func (failing) Take(context.Context, driver.Request) (driver.Decision, error) {
	return driver.Decision{}, throttler.ErrUnavailable
}

func TestErrorsAreNotRemembered(t *testing.T) {
	f := newFixture(t, nil)
	c := charge(core, "alice", 6)
	f.refused(false, c)
	working := f.counting.Backend
	f.counting.Backend = failing{working}
	f.refused(true, c)
	if _, err := f.front.Take(t.Context(), charge(core, "bob", 6)); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("got %v, want the backend's error", err)
	}
	f.counting.Backend = working
	f.refused(false, charge(core, "bob", 6))
}

// bare allows or refuses, and reports on nothing.
type bare struct {
	driver.Backend
	allowed bool
}

func (b bare) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	d := driver.NewDecision(driver.NewRequest(r.Now))
	d.Allowed = b.allowed
	return d, nil
}

// A backend that guards another may answer without counts.
func TestAnswersWithoutLimits(t *testing.T) {
	f := newFixture(t, nil)
	org := policy("org", throttler.Limit{Quota: 100, Window: time.Minute})
	both := []throttler.Charge{charge(org, "acme", 1), charge(core, "bob", 6).Within("acme")}
	f.refused(false, both...)
	f.refused(true, both...)
	working := f.counting.Backend
	f.counting.Backend = bare{allowed: true}
	f.allowed(charge(org, "acme", 1))
	f.counting.Backend = working
	f.counting.Backend = bare{}
	for range 2 {
		f.refused(false, charge(core, "alice", 1))
	}
}

func TestStats(t *testing.T) {
	f := newFixture(t, nil)
	f.allowed(charge(core, "alice", 1))
	for range 4 {
		f.take(f.front, charge(core, "alice", 6))
	}
	long := charge(core, string(make([]byte, refusals.MaxBytes)), 6)
	f.refused(false, long)
	f.refused(false, long)
	want := refusals.Stats{Answered: 3, Asked: 4, TooLarge: 2, Keys: 1}
	if got := f.backend.Stats(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	m := memorybackend.NewDefault()
	for want, o := range map[string]refusals.Options{
		"refusals: MaxKeys is -1; it must be from 1 to 1048576, or 0 for 16384":                                    {MaxKeys: -1},
		"refusals: MaxKeys is 1048577; it must be from 1 to 1048576, or 0 for 16384":                               {MaxKeys: refusals.MaxMaxKeys + 1},
		"refusals: MaxAge is -1ns; it must be positive, or 0 for 1s":                                               {MaxAge: -1},
		`refusals: Except[1]: quota: policy name is "a policy"; it must be 1 to 64 letters, digits, and . _ - / :`: {Except: []string{"core", "a policy"}},
	} {
		_, err := refusals.New(m, &o)
		if err == nil || err.Error() != want || !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic for a nil backend")
		}
	}()
	_, _ = refusals.New(nil, nil)
}

// degraded refuses without the shared counts.
type degraded struct{ driver.Backend }

func (degraded) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	d := driver.NewDecision(r)
	d.Degraded = true
	d.Results()[0] = driver.Result{Used: 5, ResetAt: r.Now + 60_000, RetryAt: r.Now + 60_000}
	return d, nil
}

// A degraded refusal is true only while the backend does not answer.
func TestDegradedRefusalsAreNotRemembered(t *testing.T) {
	b := open(t, degraded{}, nil)
	th := throttler.New(b, nil)
	for range 3 {
		d, err := th.Take(t.Context(), core.Charge("alice"))
		if err != nil || d.Allowed || !d.Degraded {
			t.Fatalf("got %+v, %v", d, err)
		}
	}
	if s := b.Stats(); s.Answered != 0 || s.Asked != 3 {
		t.Errorf("got %+v, want none answered from memory", s)
	}
}
