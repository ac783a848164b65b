package algorithm_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

// A state that is loaded into the memory of another state equals the stored state, and
// Size is its length.
func TestLoadReusesMemory(t *testing.T) {
	rng := testseed.Rand(t, 0)
	var loaded algorithm.State
	for range 5000 {
		var s algorithm.State
		limits := make([]throttler.Limit, 1+rng.IntN(4))
		for i := range limits {
			limits[i] = randomLimit(rng, algorithms[rng.IntN(len(algorithms))])
		}
		now := 1 + rng.Int64N(1<<40)
		results := make([]driver.Result, len(limits))
		for range rng.IntN(5) {
			s.Charge(limits, 1+rng.Int64N(3), now, results)
			now += rng.Int64N(10)
		}
		form := s.Append(nil)
		if err := loaded.Load(form); err != nil {
			t.Fatal(err)
		}
		if again := loaded.Append(nil); !slices.Equal(again, form) {
			t.Fatalf("%x, loaded and stored again, is %x", form, again)
		}
		if size := s.Size(); size != len(form) {
			t.Fatalf("a state of %d bytes has size %d", len(form), size)
		}
	}
	if err := loaded.Load([]byte{1, 2, 3}); err == nil || loaded.Size() != 0 {
		t.Errorf("what is no state: %v, of size %d", err, loaded.Size())
	}
}

// Coarsen does not change Used and ResetAt. A coarsened log never allows a charge that the
// exact log refuses.
func TestCoarsen(t *testing.T) {
	rng := testseed.Rand(t, 0)
	for range 300 {
		quota := 40 + rng.Int64N(200)
		limits := []throttler.Limit{{Quota: quota, Window: time.Second, Algorithm: throttler.SlidingLog}}
		var exact, coarse algorithm.State
		var want, got [1]driver.Result
		now := int64(1e12)
		for range 400 {
			now += rng.Int64N(20)
			cost := 1 + rng.Int64N(4)
			fits := exact.Evaluate(limits, cost, now, want[:])
			coarseFits := coarse.Evaluate(limits, cost, now, got[:])
			if got[0].Used < want[0].Used || got[0].ResetAt != want[0].ResetAt || coarseFits && !fits || coarseFits == fits && got[0].RetryAt < want[0].RetryAt {
				t.Fatalf("the coarse log says %+v, the exact one %+v", got[0], want[0])
			}
			if !coarseFits {
				continue
			}
			exact.Charge(limits, cost, now, want[:])
			coarse.Charge(limits, cost, now, got[:])
			before := got
			coarse.Coarsen(16)
			coarse.Evaluate(limits, 0, now, got[:])
			if got[0].Used != before[0].Used || got[0].ResetAt != before[0].ResetAt || coarse.Size() > 3+26+10*16 {
				t.Fatalf("%+v became %+v, of size %d", before[0], got[0], coarse.Size())
			}
		}
	}
}
