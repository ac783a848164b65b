package throttler_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
)

type recorder struct {
	throttler.Unobserved
	seen []throttler.Decided
}

func (r *recorder) Decided(_ context.Context, e throttler.Decided) { r.seen = append(r.seen, e) }

func (r *recorder) last() throttler.Decided { return r.seen[len(r.seen)-1] }

func TestObserverSeesEachDecision(t *testing.T) {
	ctx, seen := t.Context(), new(recorder)
	th := throttler.New(memorybackend.New(nil), &throttler.Options{Observer: throttler.Observers(seen)})
	hour := &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}}}
	both := &throttler.Policy{Name: "both", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}, {Quota: 1, Window: time.Minute}}}

	check := func(op throttler.Op, outcome throttler.Outcome, policy string, limit int) {
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
	check(throttler.OpTake, throttler.OutcomeAllowed, "both", 1)
	take(hour.Charge("a"), both.Charge("b"))
	check(throttler.OpTake, throttler.OutcomeRefused, "both", 1)
	_, _ = th.Peek(ctx, hour.Charge("a"))
	check(throttler.OpPeek, throttler.OutcomeAllowed, "hour", 0)
	_, _ = th.Refund(ctx, d)
	check(throttler.OpSettle, throttler.OutcomeAllowed, "both", 1)
	_, _ = th.Refund(ctx, d)
	if n := len(seen.seen); n != 4 {
		t.Errorf("the observer saw %d decisions; a second refund does nothing, and is none", n)
	}
	take()
	check(throttler.OpTake, throttler.OutcomeInvalid, "", -1)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, _ = th.Take(canceled, hour.Charge("a"))
	check(throttler.OpTake, throttler.OutcomeCanceled, "hour", -1)
	if err := seen.last().Err; !errors.Is(err, context.Canceled) {
		t.Errorf("the observer saw the error %v; want %v", err, context.Canceled)
	}
}

// panicking is a backend that panics.
type panicking struct{ throttler.Backend }

func (panicking) Take(context.Context, throttler.Request) (throttler.Decision, error) {
	panic("a fault of the backend")
}

func TestObserverSeesPanics(t *testing.T) {
	seen := new(recorder)
	th := throttler.New(panicking{}, &throttler.Options{Observer: throttler.Observers(nil, seen)})
	hour := &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 9, Window: time.Hour}}}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic went no further")
			}
		}()
		_, _ = th.Take(t.Context(), hour.Charge("a"))
	}()
	if e := seen.last(); e.Outcome != throttler.OutcomeUnavailable || e.Policy != "hour" || e.Limit != -1 {
		t.Errorf("the observer saw %+v; want %v", e, throttler.OutcomeUnavailable)
	}
}

// outcomes counts decisions by policy and outcome.
type outcomes struct {
	throttler.Unobserved
	counts map[string]int
}

func (o *outcomes) Decided(_ context.Context, e throttler.Decided) {
	o.counts[fmt.Sprint(e.Policy, " ", e.Op, " ", e.Outcome)]++
}

func ExampleObserver() {
	seen := &outcomes{counts: map[string]int{}}
	t := throttler.New(memorybackend.New(nil), &throttler.Options{Observer: seen})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	for range 5 {
		_, _ = t.Take(context.Background(), core.Charge("alice"))
	}
	fmt.Println(seen.counts)
	// Output: map[core take allowed:2 core take refused:3]
}
