package synced

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
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

// A root that gets the state gets every counter, although others are removed while the state is
// made.
func TestStateHasAllCounters(t *testing.T) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: 1000 * time.Hour, Aligned: true}}}
	for range 8 {
		f := newFleet(t, 1, 1, Options{MaxKeys: 1 << 20})
		b := f.processes[0].backend
		for i := range 40 * keyed.AtOnce { // of one partition, so of one stripe
			charge := policy.Charge(fmt.Sprint("key", i))
			charge.Partition, charge.Cost = "partition", 1
			if _, err := b.Take(t.Context(), driver.NewRequest(f.clock.Now().UnixMilli(), charge)); err != nil {
				t.Fatal(err)
			}
		}
		s := b.stripeOf("partition")
		stop, random := make(chan struct{}), testseed.Rand(t, 1)
		var removing sync.WaitGroup
		removing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s.mu.Lock()
				if n := len(s.Values()); n > 20*keyed.AtOnce {
					s.Remove(s.Values()[random.IntN(n/2)])
				}
				s.mu.Unlock()
			}
		})
		batch := b.state(b.aggregators[0], f.clock.Now().UnixMilli())
		close(stop)
		removing.Wait()
		sent := map[*counter]bool{}
		for _, c := range batch.calls {
			for _, e := range c.about {
				sent[e.c] = true
			}
		}
		for _, c := range s.Values() {
			if !sent[c] {
				t.Fatalf("a counter of %d is not in the state", len(s.Values()))
			}
		}
	}
}
