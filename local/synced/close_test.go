package synced

import (
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
