package throttler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

type recorder struct {
	observe.Nothing
	seen []observe.Decided
}

func (r *recorder) Decided(_ context.Context, e observe.Decided) { r.seen = append(r.seen, e) }

func (r *recorder) last() observe.Decided { return r.seen[len(r.seen)-1] }

func TestObserverSeesEachDecision(t *testing.T) {
	ctx, seen := t.Context(), new(recorder)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: observe.All(seen)})
	hour := &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}}}
	both := &throttler.Policy{Name: "both", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}, {Quota: 1, Window: time.Minute}}}

	check := func(op observe.Op, outcome observe.Outcome, policy string, limit int) {
		t.Helper()
		e := seen.last()
		if e.Op != op || e.Outcome != outcome || e.Policy != policy || e.Limit != limit || e.Start.IsZero() || e.Duration < 0 {
			t.Errorf("the observer saw %+v; want %v, %v, policy %q, limit %d", e, op, outcome, policy, limit)
		}
	}
	take := func(charges ...throttler.Charge) throttler.Decision {
		d, _ := th.Take(ctx, charges...)
		return d
	}
	d := take(hour.Charge("a"), both.Charge("b"))
	check(observe.OpTake, observe.OutcomeAllowed, "both", 1)
	take(hour.Charge("a"), both.Charge("b"))
	check(observe.OpTake, observe.OutcomeRefused, "both", 1)
	_, _ = th.Peek(ctx, hour.Charge("a"))
	check(observe.OpPeek, observe.OutcomeAllowed, "hour", 0)
	_, _ = th.Refund(ctx, d)
	check(observe.OpSettle, observe.OutcomeAllowed, "both", 1)
	_, _ = th.Refund(ctx, d)
	if n := len(seen.seen); n != 4 {
		t.Errorf("the observer saw %d decisions; a second refund does nothing, and is none", n)
	}
	take()
	check(observe.OpTake, observe.OutcomeInvalid, "", -1)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, _ = th.Take(canceled, hour.Charge("a"))
	check(observe.OpTake, observe.OutcomeCanceled, "hour", -1)
	if err := seen.last().Err; !errors.Is(err, context.Canceled) {
		t.Errorf("the observer saw the error %v; want %v", err, context.Canceled)
	}
}

// panicking is a backend that panics.
type panicking struct{ driver.Backend }

func (panicking) Take(context.Context, driver.Request) (driver.Decision, error) {
	panic("a fault of the backend")
}

func TestObserverSeesPanics(t *testing.T) {
	seen := new(recorder)
	th := throttler.New(panicking{}, &throttler.Options{Observer: observe.All(nil, seen)})
	hour := &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}}}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic went no further")
			}
		}()
		_, _ = th.Take(t.Context(), hour.Charge("a"))
	}()
	if e := seen.last(); e.Outcome != observe.OutcomeUnavailable || e.Policy != "hour" || e.Limit != -1 {
		t.Errorf("the observer saw %+v; want %v", e, observe.OutcomeUnavailable)
	}
}

// without is a backend that allows everything while its store does not answer.
type without struct{ driver.Backend }

func (without) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	d := driver.NewDecision(driver.NewRequest(r.Now))
	d.Allowed, d.Degraded = true, true
	return d, nil
}

func TestObserverSeesThePolicyOfAnOutage(t *testing.T) {
	seen := new(recorder)
	th := throttler.New(without{}, &throttler.Options{Observer: seen})
	hour := &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}}}
	if d, err := th.Take(t.Context(), hour.Charge("a")); err != nil || !d.Degraded {
		t.Fatal(d, err)
	}
	if e := seen.last(); e.Policy != "hour" || e.Limit != -1 || !e.Degraded {
		t.Errorf("the observer saw %+v; want the policy hour", e)
	}
}
