package fallback_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// held is a backend whose first settlement waits for an error, and fails with it.
type held struct {
	*flaky
	began chan struct{}
	fails chan error
}

func (h *held) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	select {
	case h.began <- struct{}{}:
		return driver.Decision{}, <-h.fails
	default:
		return h.flaky.Settle(ctx, s)
	}
}

// A refund during a hand-over that fails reduces the units that are handed over later.
func TestARefundDuringAHandOver(t *testing.T) {
	f := newFixture(t, 1, local)
	h := &held{f.flaky, make(chan struct{}, 1), make(chan error)}
	f.backends[0] = open(t, h, &fallback.Options{OnFailure: fallback.Local, Processes: 1})
	f.processes[0] = throttler.New(f.backends[0], &throttler.Options{Clock: f.clock})
	f.fail(down)
	refunded := f.take(0, throttler.Charge{Policy: core, Key: "alice", Cost: 5})
	f.takes(0, 1, core, "alice")
	f.fail(nil)
	eventually(t, "a hand-over began", func() bool { return len(h.began) > 0 })
	if _, err := f.processes[0].Refund(t.Context(), refunded); err != nil {
		t.Error(err)
	}
	h.fails <- refusing.err
	f.recover()
	if got := f.used(core, "alice"); got != 1 {
		t.Errorf("the backend counts %d, want the one that is not refunded", got)
	}
}

// late is an error of a call with an unknown outcome. Whether it was sent is asked for after the
// outage that it began has ended.
type late struct{ error }

func (l late) Is(target error) bool {
	if target == driver.ErrNotSent {
		time.Sleep(time.Minute)
	}
	return target == driver.ErrUnavailable
}

// once is a backend that charges, and then loses the first reply.
type once struct {
	driver.Backend
	calls int
}

func (o *once) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	d, err := o.Backend.Take(ctx, r)
	if o.calls++; o.calls == 1 {
		return driver.Decision{}, late{io.EOF}
	}
	return d, err
}

// A take with an unknown outcome is not sent again, even if the process stops until the
// outage has ended.
func TestAStallAfterAnUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &once{Backend: memorybackend.NewDefault()}
		th := throttler.New(open(t, backend, &fallback.Options{OnFailure: fallback.Local, Processes: 1}), nil)
		d, err := th.Take(t.Context(), core.Charge("alice"))
		if err != nil || !d.Allowed || !d.Degraded || backend.calls != 1 {
			t.Errorf("allowed %v, degraded %v, %v, after %d calls; want a local decision after one", d.Allowed, d.Degraded, err, backend.calls)
		}
	})
}
