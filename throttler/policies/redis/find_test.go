package redispolicies_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// hanging makes pipelines wait until the channel is closed, or, if keeps is true, until the
// deadline of their context, shortly before the context itself ends.
type hanging struct {
	until chan struct{}
	keeps bool
}

func (h *hanging) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hanging) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *hanging) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !h.keeps {
			<-h.until
			return next(ctx, cmds)
		}
		select {
		case <-h.until:
			return next(ctx, cmds)
		default:
		}
		for deadline, _ := ctx.Deadline(); time.Until(deadline) > 0; {
			time.Sleep(time.Until(deadline))
		}
		return os.ErrDeadlineExceeded
	}
}

// hang returns a watch of a store with an override, and its server, which hangs.
func hang(t *testing.T, timeout time.Duration, h *hanging) *redispolicies.Watch {
	t.Helper()
	h.until = make(chan struct{})
	store, client, _ := open(t, testserver.Redis(t))
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}, Override: []policies.Override{{Policy: "core", Key: "alice", Limits: limits(70)}}})
	w := redispolicies.NewWatch(t.Context(), new(policies.Table), "redis", store, &redispolicies.Options{Every: time.Hour, Timeout: timeout, Observer: observe.Nothing{}})
	t.Cleanup(w.Close)
	client.AddHook(h)
	return w
}

// Timeout bounds a wait also if the client does not keep deadlines, as go-redis' own clients
// do by default.
func TestTimeoutWithAnyClient(t *testing.T) {
	h := new(hanging)
	w := hang(t, 10*time.Millisecond, h)
	defer close(h.until)
	done := make(chan error, 1)
	go func() {
		_, _, err := w.Find(t.Context(), "core", "alice")
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v; want that the time is over", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("a wait of at most 10 ms took 20 s")
	}
}

// The deadline of one decision says nothing about the server: decisions that wait for the same
// override ask again, because the error is the context's.
func TestTheDeadlineOfOneDecision(t *testing.T) {
	h := &hanging{keeps: true}
	w := hang(t, time.Hour, h)
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, _, err := w.Find(ctx, "core", "alice")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v; want the error of the context", err)
		}
	}
	close(h.until)
	if o, keep, err := w.Find(t.Context(), "core", "alice"); err != nil || !keep || o == nil {
		t.Errorf("%v, %v, %v; want the override", o, keep, err)
	}
}
