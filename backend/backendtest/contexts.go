package backendtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

func contextCases() []testCase {
	var cases []testCase
	for _, l := range tenPer10s {
		cases = append(cases, testCase{
			name:        "what is done before it starts is not done, " + nameOf(l),
			explanation: returnsDone,
			run: func(ctx context.Context, backend throttler.Backend) error {
				return heedsContext(ctx, backend, on(l))
			},
		})
	}
	return cases
}

func heedsContext(ctx context.Context, backend throttler.Backend, core func(int64) []throttler.Charge) error {
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	taken, err := t.Take(ctx, core(3)...)
	if err != nil {
		return err
	}
	before, err := t.Peek(ctx, core(0)...)
	if err != nil {
		return err
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	late, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	for _, done := range []context.Context{canceled, late} {
		calls := map[string]func() (throttler.Decision, error){
			"take": func() (throttler.Decision, error) { return t.Take(done, core(1)...) },
			"peek": func() (throttler.Decision, error) { return t.Peek(done, core(1)...) },
			// A Throttler looks at the context itself before it settles.
			"settle": func() (throttler.Decision, error) {
				return backend.Settle(done, throttler.Settlement{Now: t0.UnixMilli(), Charged: taken, Costs: []int64{1}})
			},
		}
		for name, call := range calls {
			_, err := call()
			if err == nil {
				return fmt.Errorf("%s with a context that is done: got no error, want the context's or one that wraps ErrUnavailable", name)
			}
			if !errors.Is(err, done.Err()) && !errors.Is(err, throttler.ErrUnavailable) {
				return fmt.Errorf("%s with a context that is done: got an error that wraps neither the context's nor ErrUnavailable: %w", name, err)
			}
		}
	}
	after, err := t.Peek(ctx, core(0)...)
	if err != nil {
		return err
	}
	if got, want := after.Limit(0).Used, before.Limit(0).Used; got != want || want != 3 {
		return fmt.Errorf("used is %d after calls with contexts that were done, want %d as before, and 3", got, want)
	}
	return nil
}
