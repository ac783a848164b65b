package consistency_test

import (
	"testing"

	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler"
)

// The store decides about several partitions at once if it has the counts of all.
func TestPartitionsAreJoined(t *testing.T) {
	for _, test := range []struct {
		ofHour consistency.Level
		takes  int
	}{{consistency.Exact, 1}, {consistency.Leased, 2}, {consistency.Synced, 1}} {
		f := newFleet(t)
		p := f.start()
		f.begin(p, window, consistency.Exact)
		f.begin(p, hour, test.ofHour)
		f.take(p, costing(window, 1), throttler.Charge{Policy: hour, Key: "office", Cost: 1})
		if f.store.takes != test.takes {
			t.Errorf("with a policy that is %v: %d takes of the store, want %d", test.ofHour, f.store.takes, test.takes)
		}
	}
}

// If a decision about several partitions is settled at a higher cost, the difference counts
// where its policies count by then.
func TestSyncedBeforeSettled(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	f.begin(p, window, consistency.Exact)
	f.begin(p, hour, consistency.Exact)
	d := f.take(p, costing(window, 3), throttler.Charge{Policy: hour, Key: "office", Cost: 3})
	f.set(p, window, consistency.Synced)
	f.set(p, hour, consistency.Synced)
	if _, err := p.throttler.Settle(t.Context(), d, 5, 5); err != nil {
		t.Fatal(err)
	}
	soft := throttler.New(p.soft, &throttler.Options{Clock: f.clock})
	for _, c := range []throttler.Charge{costing(window, 1), {Policy: hour, Key: "office", Cost: 1}} {
		if d := f.peek(p, c); d.Limit(0).Used != 5 {
			t.Errorf("%s: %d used, want 5", c.Policy.Name, d.Limit(0).Used)
		}
		if d, err := soft.Peek(t.Context(), c); err != nil || d.Limit(0).Used != 2 {
			t.Errorf("%s: %d of the synced counts used, %v; want the 2 that were charged later", c.Policy.Name, d.Limit(0).Used, err)
		}
	}
}

// So it does in a store with a server for each partition, if the policies were synced before.
func TestExactBeforeSettled(t *testing.T) {
	f := newFleet(t)
	f.store.apart = true
	p := f.start()
	f.begin(p, window, consistency.Synced)
	f.begin(p, hour, consistency.Synced)
	d := f.take(p, costing(window, 3), throttler.Charge{Policy: hour, Key: "office", Cost: 3})
	f.set(p, window, consistency.Exact)
	f.set(p, hour, consistency.Exact)
	if _, err := p.throttler.Settle(t.Context(), d, 5, 5); err != nil {
		t.Fatal(err)
	}
	store := throttler.New(f.store, &throttler.Options{Clock: f.clock})
	for _, c := range []throttler.Charge{costing(window, 1), {Policy: hour, Key: "office", Cost: 1}} {
		if d := f.peek(p, c); d.Limit(0).Used != 5 {
			t.Errorf("%s: %d used, want 5", c.Policy.Name, d.Limit(0).Used)
		}
		if d, err := store.Peek(t.Context(), c); err != nil || d.Limit(0).Used != 2 {
			t.Errorf("%s: %d of the store used, %v; want the 2 that were charged later", c.Policy.Name, d.Limit(0).Used, err)
		}
	}
}
