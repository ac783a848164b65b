package fallback_test

import (
	"context"
	"testing"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/wrap/fallback"
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
