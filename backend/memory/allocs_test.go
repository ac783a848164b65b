package memorybackend_test

import (
	"context"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
)

// A decision about one limit allocates its receipt, if there is something to give
// back and the decision leaves its caller's frame, and nothing else.
func TestAllocations(t *testing.T) {
	th := throttler.New(memorybackend.New(nil), nil)
	for _, a := range []throttler.Algorithm{throttler.FixedWindow, throttler.SlidingWindow, throttler.TokenBucket, throttler.LeakyBucket} {
		roomy := &throttler.Policy{Name: "roomy-" + a.String(), Limits: []throttler.Limit{{Quota: 1 << 40, Window: time.Hour, Algorithm: a}}}
		full := &throttler.Policy{Name: "full-" + a.String(), Limits: []throttler.Limit{{Quota: 1, Window: time.Hour, Algorithm: a}}}
		take := func(c throttler.Charge) func() {
			return func() {
				if _, err := th.Take(context.Background(), c); err != nil {
					t.Fatal(err)
				}
			}
		}
		peek := func() {
			if _, err := th.Peek(context.Background(), roomy.Charge("alice")); err != nil {
				t.Fatal(err)
			}
		}
		for _, test := range []struct {
			name string
			call func()
			most float64
		}{
			{"allowed", take(roomy.Charge("alice")), 1},
			{"in a partition", take(throttler.Charge{Policy: roomy, Key: "alice", Partition: "acme"}), 1},
			{"refused", take(full.Charge("alice")), 0},
			{"peek", peek, 0},
		} {
			test.call()
			if n := testing.AllocsPerRun(200, test.call); n > test.most {
				t.Errorf("%v, %s: %v allocations, want at most %v", a, test.name, n, test.most)
			}
		}
	}
}
