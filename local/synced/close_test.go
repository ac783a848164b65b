package synced

import (
	"context"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// Close sends all units that a root does not know: the units of a call without a reply, and
// later ones.
func TestCloseSendsWhatCameAfterALostReply(t *testing.T) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: 1000 * time.Hour, Aligned: true}}}
	f := newFleet(t, 1, 1, Options{})
	b, root := f.processes[0].backend, f.roots[0]
	take := func(cost int64) {
		t.Helper()
		charge := policy.Charge("alice")
		charge.Cost = cost
		if _, err := f.processes[0].throttler.Take(t.Context(), charge); err != nil {
			t.Fatal(err)
		}
	}
	take(3)
	b.syncOnce(t.Context(), b.aggregators[0])
	root.deaf = true
	take(4)
	b.syncOnce(t.Context(), b.aggregators[0])
	root.deaf = false
	take(5)
	b.start()
	b.Close()
	if len(root.counters) != 1 {
		t.Fatalf("the root has %d counters, want 1", len(root.counters))
	}
	for key, c := range root.counters {
		if c[1] != 12 {
			t.Errorf("the root has %v units of %q, want 12", c[1], key)
		}
	}
}

// stumbling is a root that fails so many calls after the process closed.
type stumbling struct {
	*modelServer
	closed   context.Context
	failures int
	before   chan struct{} // receives each call before the close
	calls    int           // after it
}

func (s *stumbling) call(ctx context.Context, calls []call) ([][]byte, error) {
	if s.closed.Err() == nil {
		select {
		case s.before <- struct{}{}:
		case <-s.closed.Done():
		}
	} else if s.calls++; s.calls <= s.failures {
		return nil, errDown
	}
	return s.modelServer.call(ctx, calls)
}

// Close sends the units also if the root, which answered before, needs a moment. It waits for no root
// that did not answer.
func TestCloseTriesAgain(t *testing.T) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: 1000 * time.Hour, Aligned: true}}}
	for _, answers := range []bool{true, false} {
		f := newFleet(t, 1, 1, Options{Sync: time.Minute})
		b, root := f.processes[0].backend, f.roots[0]
		root.down = !answers
		server := &stumbling{modelServer: b.aggregators[0].server.(*modelServer), closed: b.closed, failures: 3, before: make(chan struct{})}
		b.aggregators[0].server = server
		b.opts.Sync = 10 * time.Millisecond // of the real clock
		b.start()
		<-server.before
		<-server.before // the first has ended
		if _, err := f.processes[0].throttler.Take(t.Context(), policy.Charge("alice")); err != nil {
			t.Fatal(err)
		}
		b.Close()
		if sent := len(root.counters) == 1; answers && (server.calls < 4 || !sent) {
			t.Errorf("after %d calls of Close, the root has the counter: %v", server.calls, sent)
		}
		if !answers && server.calls > 1 {
			t.Errorf("Close made %d calls to a root that did not answer before", server.calls)
		}
	}
}
