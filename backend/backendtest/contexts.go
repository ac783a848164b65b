package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func contextCases() []testCase {
	var cases []testCase
	for _, l := range tenPer10s {
		cases = append(cases, testCase{
			name:        "what is done before it starts is not done, " + nameOf(l),
			explanation: returnsDone,
			run: func(ctx context.Context, backend driver.Backend) error {
				return heedsContext(ctx, backend, charging(l))
			},
		})
	}
	return append(cases, testCase{
		name:        "a refund that was not sent can be made again",
		explanation: giveBackUnsent,
		run:         refundUnsent,
	}, testCase{
		name:        "what is done on the way is charged once, or not at all",
		explanation: doneOnTheWay,
		run:         endOnTheWay,
	})
}

func heedsContext(ctx context.Context, backend driver.Backend, core func(int64) []throttler.Charge) error {
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	d, err := t.Take(ctx, core(3)...)
	if err != nil {
		return err
	}
	before, err := t.Peek(ctx, core(0)...)
	if err != nil {
		return err
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	expired, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	for _, done := range []context.Context{canceled, expired} {
		calls := map[string]func() error{
			"take": func() error { _, err := t.Take(done, core(1)...); return err },
			"peek": func() error { _, err := t.Peek(done, core(1)...); return err },
			// A Throttler looks at the context itself before it settles.
			"settle": func() error {
				_, err := backend.Settle(done, driver.Settlement{Now: t0.UnixMilli(), Charged: *d.Driver(), Costs: []int64{1}})
				return err
			},
		}
		for name, call := range calls {
			err := call()
			if err == nil {
				return fmt.Errorf("%s with a context that is done: got no error, want one that wraps %w", name, done.Err())
			}
			if !errors.Is(err, done.Err()) || errors.Is(err, throttler.ErrUnavailable) {
				return fmt.Errorf("%s with a context that is done: got %w; want an error that wraps %w, and not ErrUnavailable, for nothing was sent", name, err, done.Err())
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

// ending is a context that is done, but says so only from the second call of Err on.
type ending struct {
	context.Context
	looks atomic.Int64
}

func (e *ending) Err() error {
	if e.looks.Add(1) == 1 {
		return nil
	}
	return e.Context.Err()
}

// refundUnsent refunds under a context that ends between the Throttler and the backend.
func refundUnsent(ctx context.Context, backend driver.Backend) error {
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	core := charging(tenPer10s[0])
	d, err := t.Take(ctx, core(3)...)
	if err != nil {
		return err
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := t.Refund(&ending{Context: canceled}, d); !errors.Is(err, context.Canceled) || driver.MayHaveCharged(err) {
		return fmt.Errorf("a refund whose context was done when it reached the backend: got %w; want an error that wraps %w, and says that nothing was given back", err, context.Canceled)
	}
	after, err := t.Refund(ctx, d)
	if err != nil {
		return fmt.Errorf("the second try of a refund of which nothing was sent: %w", err)
	}
	if got := after.Limit(0).Used; got != 0 {
		return fmt.Errorf("used is %d after the second try of a refund of which nothing was sent, want 0", got)
	}
	return nil
}

// endOnTheWay takes and refunds under contexts that end at any time. Whatever the
// time, the errors say what may have been charged.
func endOnTheWay(ctx context.Context, backend driver.Backend) error {
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	l := tenPer10s[0]
	l.Quota, l.Window = quota.MaxQuota, time.Hour
	core := charging(l)
	var least, greatest atomic.Int64 // units used in the end
	err := together(func(g int) error {
		for i := range takesEach {
			i += g * takesEach
			ending, end, cause := endsSoon(ctx, i)
			d, err := t.Take(ending, core(1)...)
			end()
			switch {
			case err == nil:
				least.Add(1)
				greatest.Add(1)
			case !errors.Is(err, cause):
				return fmt.Errorf("a take whose context ended: got %w; want an error that wraps %w", err, cause)
			case driver.MayHaveCharged(err):
				greatest.Add(1)
			}
			if err != nil {
				continue
			}
			ending, end, cause = endsSoon(ctx, i)
			_, err = t.Refund(ending, d)
			end()
			switch {
			case err == nil:
				least.Add(-1)
				greatest.Add(-1)
			case !errors.Is(err, cause):
				return fmt.Errorf("a refund whose context ended: got %w; want an error that wraps %w", err, cause)
			case driver.MayHaveCharged(err):
				least.Add(-1)
			default:
				if _, err := t.Refund(ctx, d); err != nil {
					return fmt.Errorf("the second try of a refund of which nothing was sent: %w", err)
				}
				least.Add(-1)
				greatest.Add(-1)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	d, err := t.Peek(ctx, core(0)...)
	if err != nil {
		return err
	}
	if used := d.Limit(0).Used; used < least.Load() || used > greatest.Load() {
		return fmt.Errorf("used is %d; the answers, and the errors that wrap ErrUnavailable, allow %d to %d", used, least.Load(), greatest.Load())
	}
	return nil
}

// endsSoon returns a context that ends within two milliseconds, by a deadline or
// by being canceled, and the error that it ends with.
func endsSoon(ctx context.Context, i int) (context.Context, context.CancelFunc, error) {
	after := time.Duration(rand.New(rand.NewPCG(testseed.Value(), uint64(i))).Int64N(int64(2 * time.Millisecond)))
	if i%2 == 0 {
		ctx, cancel := context.WithTimeout(ctx, after)
		return ctx, cancel, context.DeadlineExceeded
	}
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(after, cancel)
	return ctx, func() { timer.Stop(); cancel() }, context.Canceled
}
