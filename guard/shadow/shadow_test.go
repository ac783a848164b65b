package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-go/weir/backend/backendtest"
	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/shadow"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	t0   = time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.UTC)
	core = &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5, Window: time.Minute}}}
)

func newShadow(t testing.TB, serving driver.Backend, candidate handoff.Store, options *shadow.Options) *shadow.Backend {
	t.Helper()
	b, err := shadow.New(serving, candidate, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// shown waits until the candidate has seen n takes, or dropped or failed them.
func shown(t *testing.T, b *shadow.Backend, n int64) shadow.Stats {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Microsecond) {
		s := b.Stats()
		if s.Compared+s.NotInStep+s.Failed+s.Dropped >= n {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("the candidate has seen %+v, want %d takes", s, n)
		}
	}
}

func take(t *testing.T, th *throttler.Throttler, key string) throttler.Decision {
	t.Helper()
	d, err := th.Take(t.Context(), core.Charge(key))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestContract(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) driver.Backend {
		return newShadow(t, memorybackend.NewDefault(), memorybackend.NewDefault(), nil)
	})
}

func TestAgreement(t *testing.T) {
	b := newShadow(t, memorybackend.NewDefault(), memorybackend.NewDefault(), &shadow.Options{
		OnDifference: func(serving, candidate decision.Decision) { t.Errorf("%v, %v", serving, candidate) },
	})
	clk := clock.NewManual(t0)
	th := throttler.New(b, &throttler.Options{Clock: clk})
	var last throttler.Decision
	for i := range 70 { // 7 each: 2 are refused
		clk.Advance(time.Millisecond)
		if d := take(t, th, fmt.Sprint("client", i%10)); d.Allowed {
			last = d
		}
	}
	if _, err := th.Refund(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if d := take(t, th, last.Charges()[0].Key); !d.Allowed {
		t.Error("refused after a refund")
	}
	s := shown(t, b, 71)
	if s.Compared != 71 || s.Agreed != 71 || s.Unsettled != 0 {
		t.Errorf("got %+v, want 71 compared and agreed", s)
	}
}

// The candidate joins in the middle of a window: it waits for the next, and then is in step.
func TestBeginning(t *testing.T) {
	serving, candidate := memorybackend.NewDefault(), memorybackend.NewDefault()
	clk := clock.NewManual(t0)
	options := &throttler.Options{Clock: clk}
	take(t, throttler.New(serving, options), "alice")
	b := newShadow(t, serving, candidate, nil)
	th := throttler.New(b, options)
	for i := range int64(50) { // some windows, each too full
		clk.Advance(10 * time.Second)
		take(t, th, "alice")
		shown(t, b, i+1)
	}
	if s := b.Stats(); s.NotInStep != 5 || s.Compared != 45 || s.Agreed != 45 {
		t.Errorf("got %+v, want 5 takes not in step and 45 agreed", s)
	}
}

// Two backends count differently: the candidate was charged more, and then less.
func TestDifference(t *testing.T) {
	serving, candidate := memorybackend.NewDefault(), memorybackend.NewDefault()
	clk := clock.NewManual(t0)
	options := &throttler.Options{Clock: clk}
	var different [][2]decision.Decision
	b := newShadow(t, serving, candidate, &shadow.Options{Workers: 1, OnDifference: func(s, c decision.Decision) {
		different = append(different, [2]decision.Decision{s, c})
	}})
	th := throttler.New(b, options)
	take(t, th, "alice")
	shown(t, b, 1)
	for range 3 {
		take(t, throttler.New(candidate, options), "alice")
	}
	take(t, th, "alice") // 2 and 5 used
	take(t, th, "alice") // the candidate refuses
	shown(t, b, 3)
	clk.Advance(time.Minute)
	take(t, throttler.New(candidate, options), "bob")
	clk.Advance(time.Second)
	take(t, th, "bob") // another window
	s := shown(t, b, 4)
	b.Close()
	if s.Agreed != 1 || s.OnlyServingAllowed != 1 || s.OnlyCandidateAllowed != 0 || s.RemainingDiffers != 3 || s.ResetDiffers != 1 {
		t.Errorf("got %+v", s)
	}
	if len(different) != 3 || !different[1][0].Allowed || different[1][1].Allowed {
		t.Errorf("OnDifference received %v", different)
	}
}

// A refund at the candidate is of the candidate's own charge.
func TestRefund(t *testing.T) {
	serving, candidate := memorybackend.NewDefault(), memorybackend.NewDefault()
	clk := clock.NewManual(t0)
	options := &throttler.Options{Clock: clk}
	take(t, throttler.New(candidate, options), "alice") // its window began earlier
	clk.Advance(time.Second)
	b := newShadow(t, serving, candidate, nil)
	th := throttler.New(b, options)
	d := take(t, th, "alice")
	if _, err := th.Refund(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		d, err := throttler.New(candidate, options).Peek(t.Context(), core.Charge("alice"))
		if err != nil {
			t.Fatal(err)
		}
		if d.Limit(0).Used == 1 && b.Stats().Compared == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the candidate has used %d, want 1: two were charged, one refunded", d.Limit(0).Used)
		}
	}
	if s := b.Stats(); s.Unsettled != 0 {
		t.Errorf("got %+v", s)
	}
}

// hanging answers when its context is done.
type hanging struct{ handoff.Store }

func (hanging) TakeAt(ctx context.Context, _ driver.Request, _ *handoff.Placement) (driver.Decision, error) {
	<-ctx.Done()
	return driver.Decision{}, ctx.Err()
}

func TestHangingCandidate(t *testing.T) {
	b := newShadow(t, memorybackend.NewDefault(), hanging{}, &shadow.Options{Queue: 16, Workers: 2, Deadline: time.Hour})
	th := throttler.New(b, nil)
	for i := range 1000 {
		take(t, th, fmt.Sprint("client", i))
	}
	s := b.Stats()
	if s.Dropped < 1000-16-2 {
		t.Errorf("dropped %d of 1000; the queue takes 16, two workers hang", s.Dropped)
	}
	b.Close() // does not wait for the hour
	take(t, th, "alice")
}

func TestFailingCandidate(t *testing.T) {
	b := newShadow(t, memorybackend.NewDefault(), hanging{}, &shadow.Options{Deadline: time.Nanosecond})
	take(t, throttler.New(b, nil), "alice")
	if s := shown(t, b, 1); s.Failed != 1 {
		t.Errorf("got %+v, want 1 failed", s)
	}
}

// failing fails all takes.
type failing struct{ driver.Backend }

var errFailing = errors.New("failing")

func (failing) Take(context.Context, driver.Request) (driver.Decision, error) {
	return driver.Decision{}, errFailing
}

func TestWhatWasNotServedIsNotShown(t *testing.T) {
	b := newShadow(t, failing{}, memorybackend.NewDefault(), nil)
	if _, err := throttler.New(b, nil).Take(t.Context(), core.Charge("alice")); !errors.Is(err, errFailing) {
		t.Errorf("got %v, want the serving backend's error", err)
	}
	b.Close()
	if s := b.Stats(); s.Compared+s.Dropped+s.Failed != 0 {
		t.Errorf("got %+v, want nothing shown", s)
	}
}

// open allows everything without counts, as guard/fallback does in an outage.
type open struct{ driver.Backend }

func (open) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	d := driver.NewDecision(driver.NewRequest(r.Now))
	d.Allowed, d.Degraded = true, true
	return d, nil
}

func (open) Settle(_ context.Context, s driver.Settlement) (driver.Decision, error) {
	return s.Charged, nil
}

// Decisions without counts are not compared.
func TestDecisionsWithoutCounts(t *testing.T) {
	candidate := memorybackend.NewDefault()
	b := newShadow(t, open{candidate}, candidate, nil)
	r := driver.NewRequest(t0.UnixMilli(), throttler.Charge{Policy: core, Key: "alice", Partition: "alice", Cost: 1})
	d, err := b.Take(t.Context(), r)
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if _, err := b.Settle(t.Context(), driver.Settlement{Now: r.Now, Charged: d}); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if got := b.Stats(); got != (shadow.Stats{}) {
		t.Errorf("got %+v, want nothing", got)
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	m := memorybackend.NewDefault()
	for want, o := range map[string]shadow.Options{
		"shadow: Queue is -1; it must be positive, or 0 for 1024":      {Queue: -1},
		"shadow: Workers is -1; it must be positive, or 0 for 8":       {Workers: -1},
		"shadow: Deadline is -1ns; it must be positive, or 0 for 50ms": {Deadline: -1},
	} {
		if _, err := shadow.New(m, m, &o); err == nil || err.Error() != want || !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for what, panics := range map[string]func(){
		"a serving backend": func() { _, _ = shadow.New(nil, m, nil) },
		"a candidate":       func() { _, _ = shadow.New(m, nil, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("New did not panic without %s", what)
				}
			}()
			panics()
		}()
	}
}
