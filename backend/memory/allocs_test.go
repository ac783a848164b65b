package memorybackend_test

import (
	"context"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// A decision about one limit allocates nothing but its receipt, and that only if it can be
// refunded and leaves its caller's frame.
func TestAllocations(t *testing.T) {
	inlined := 0.0
	if testing.CoverMode() != "" { // functions with counters are too large to be inlined
		inlined = 1
	}
	th := throttler.New(memorybackend.NewDefault(), nil)
	for _, a := range []quota.Algorithm{throttler.FixedWindow, throttler.SlidingWindow, throttler.TokenBucket, throttler.LeakyBucket} {
		roomy := &throttler.Policy{Name: "roomy-" + a.String(), Limits: []throttler.Limit{{Quota: 1 << 40, Window: time.Hour, Algorithm: a}}}
		full := &throttler.Policy{Name: "full-" + a.String(), Limits: []throttler.Limit{{Quota: 1, Window: time.Hour, Algorithm: a}}}
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
			{"allowed", func() { take(t, th, roomy.Charge("alice")) }, inlined},
			{"allowed, and kept", func() { takeAndKeep(t, th, roomy.Charge("alice")) }, 1},
			{"in a partition", func() { take(t, th, throttler.Charge{Policy: roomy, Key: "alice", Partition: "acme"}) }, inlined},
			{"refused", func() { take(t, th, full.Charge("alice")) }, 0},
			{"peek", peek, 0},
		} {
			test.call()
			if n := testing.AllocsPerRun(200, test.call); n > test.most+forgotten {
				t.Errorf("%v, %s: %v allocations, want at most %v", a, test.name, n, test.most)
			}
		}
	}
}

func take(t *testing.T, th *throttler.Throttler, c throttler.Charge) {
	if _, err := th.Take(context.Background(), c); err != nil {
		t.Fatal(err)
	}
}

var kept throttler.Decision

func takeAndKeep(t *testing.T, th *throttler.Throttler, c throttler.Charge) {
	var err error
	if kept, err = th.Take(context.Background(), c); err != nil {
		t.Fatal(err)
	}
}
