package synced

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// newGroupedFleet returns processes that agree at groups of two roots.
func newGroupedFleet(t *testing.T, processes, groups int) *fleet {
	f := newFleet(t, 0, 2*groups, Options{})
	for i, r := range f.roots {
		r.group = fmt.Sprint("group-", i%groups) // not in a row
	}
	for range processes {
		f.processes = append(f.processes, f.start(0))
	}
	return f
}

// Each group keeps its part of the counters, on both of its roots, and all processes look for a
// counter in the same group.
func TestGroupsDivideTheCounters(t *testing.T) {
	const keys, groups = 600, 3
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour, Aligned: true}}}
	f := newGroupedFleet(t, 3, groups)
	sync := func() {
		for range 3 {
			for key := range keys {
				for _, p := range f.processes {
					if _, err := p.throttler.Peek(t.Context(), policy.Charge(fmt.Sprint(key))); err != nil {
						t.Fatal(err)
					}
				}
			}
			f.advance(f.elapsed + 2*DefaultSync)
		}
	}
	for key := range keys {
		if _, err := f.processes[key%3].throttler.Take(t.Context(), policy.Charge(fmt.Sprint(key))); err != nil {
			t.Fatal(err)
		}
	}
	sync()
	seen := make(map[string]string) // by counter, its group
	for i, r := range f.roots {
		if n := len(r.counters); n < keys/groups*8/10 || n > keys/groups*12/10 {
			t.Errorf("root %d has %d of %d counters; its group is one of %d", i, n, keys, groups)
		}
		for key := range r.counters {
			if group, ok := seen[key]; ok && group != r.group {
				t.Errorf("%s is in %s and in %s", key, group, r.group)
			}
			seen[key] = r.group
		}
	}
	if len(seen) != keys {
		t.Errorf("%d counters are at roots; there are %d", len(seen), keys)
	}
	// One root of each group loses its memory: nothing is forgotten, and it learns all again.
	for _, r := range f.roots[:groups] {
		r.flush()
	}
	sync()
	for key := range keys {
		for i, p := range f.processes {
			if d, err := p.throttler.Peek(t.Context(), policy.Charge(fmt.Sprint(key))); err != nil || d.Limit(0).Used != 1 {
				t.Fatalf("process %d: %v of %d, %v; want 1 used", i, &d, key, err)
			}
		}
	}
	for i, r := range f.roots[:groups] {
		if n, other := len(r.counters), len(f.roots[groups+i].counters); n != other {
			t.Errorf("root %d has %d counters again, and its neighbor %d", i, n, other)
		}
	}
}

// Groups admit the quota, also with one root of each group down.
func TestGroupsAdmitTheQuota(t *testing.T) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1000, Window: time.Second, Algorithm: throttler.TokenBucket}}}
	f := newGroupedFleet(t, 8, 4)
	for _, r := range f.roots[:4] {
		r.down = true
	}
	choose := f.loads()["even"]
	f.offer(1600, 4*time.Second, time.Second, policy.Charge("alice"), choose)
	admitted := sum(f.offer(1600, 14*time.Second, time.Second, policy.Charge("alice"), choose))
	if admitted < 9_800 || admitted > 10_100 {
		t.Errorf("%d were admitted in 10 s, of a quota of 1000 a second", admitted)
	}
}
