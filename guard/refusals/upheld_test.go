package refusals_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// brokenBackend is a backend that calls fails for its answers, if that is set.
type brokenBackend struct {
	driver.Backend
	fails func(r driver.Request) (driver.Decision, error)
}

func (f *brokenBackend) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if f.fails != nil {
		return f.fails(r)
	}
	return f.Backend.Take(ctx, r)
}

// A refusal that is too old to answer by itself answers when the backend fails, as long as its
// times hold, and no change by this process has overtaken it.
func TestRefusalsAreUpheldWhenTheBackendFails(t *testing.T) {
	down := &driver.UnavailableError{Backend: "failing", Shard: "a", Err: errors.New("down")}
	for name, fails := range map[string]func(r driver.Request) (driver.Decision, error){
		"an error": func(driver.Request) (driver.Decision, error) { return driver.Decision{}, down },
		"overloaded": func(driver.Request) (driver.Decision, error) {
			return driver.Decision{}, fmt.Errorf("%w: %w", driver.ErrOverloaded, down)
		},
		"closed": func(driver.Request) (driver.Decision, error) {
			return driver.Decision{}, fmt.Errorf("%w: %w", driver.ErrFailClosed, down)
		},
		"open": func(r driver.Request) (driver.Decision, error) {
			d := driver.NewDecision(driver.NewRequest(r.Now))
			d.Allowed, d.Degraded = true, true
			return d, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			inner := &brokenBackend{Backend: memorybackend.NewDefault()}
			b := open(t, inner, &refusals.Options{MaxKeys: 1 << 19})
			elapsed := time.Duration(0)
			b.SetElapsed(func() time.Duration { return elapsed })
			clk := clock.NewManual(t0)
			th := throttler.New(b, &throttler.Options{Clock: clk})
			var spent throttler.Decision
			for i := range 6 {
				d, err := th.Take(t.Context(), core.Charge("alice"))
				if err != nil || d.Allowed != (i < 5) {
					t.Fatalf("take %d: allowed %v, %v", i, d.Allowed, err)
				}
				if i == 0 {
					spent = d
				}
			}
			elapsed = time.Hour // too old
			inner.fails = fails
			isUpheld := func(what, key string, want bool) {
				t.Helper()
				d, err := th.Take(t.Context(), core.Charge(key))
				if got := err == nil && !d.Allowed; got != want || want && (d.Degraded || d.RetryAt().IsZero()) {
					t.Errorf("%s: refused %v, %+v, %v; want %v", what, got, d, err, want)
				}
			}
			isUpheld("an old refusal", "alice", true)
			isUpheld("a key that was not refused", "bob", false)
			clk.Advance(time.Minute - time.Millisecond)
			isUpheld("just before its window ends", "alice", true)
			if s := b.Stats(); s.Upheld != 2 {
				t.Errorf("%d upheld, want 2", s.Upheld)
			}
			if name == "open" {
				if _, err := th.Refund(t.Context(), spent); err != nil {
					t.Fatal(err)
				}
				isUpheld("after a refund", "alice", false)
			} else {
				clk.Advance(time.Millisecond)
				isUpheld("its window has ended", "alice", false)
			}
		})
	}
}

// A caller that leaves gets its own error.
func TestCanceledTakesAreNotUpheld(t *testing.T) {
	inner := &brokenBackend{Backend: memorybackend.NewDefault()}
	b := open(t, inner, nil)
	elapsed := time.Duration(0)
	b.SetElapsed(func() time.Duration { return elapsed })
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	for range 6 {
		if _, err := th.Take(t.Context(), core.Charge("alice")); err != nil {
			t.Fatal(err)
		}
	}
	elapsed = time.Hour
	inner.fails = func(driver.Request) (driver.Decision, error) { return driver.Decision{}, context.Canceled }
	if _, err := th.Take(t.Context(), core.Charge("alice")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
}
