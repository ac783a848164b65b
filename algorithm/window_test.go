package algorithm_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// A window decides as the executor does, answer by answer, also where the clock
// steps and the quota changes.
func TestWindowsDecideAsStatesDo(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const maxInstant = 253402300799000
	for range 2000 {
		limit := throttler.Limit{Quota: 1 + rng.Int64N(20), Window: time.Duration(1+rng.IntN(50)) * time.Millisecond, Aligned: rng.IntN(2) == 0}
		if rng.IntN(10) == 0 {
			limit.Quota = quota.MaxQuota - rng.Int64N(5)
		}
		p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{limit}}
		now := []int64{0, 1_900_000_000_000, maxInstant - 60}[rng.IntN(3)]
		var want algorithm.State
		var got algorithm.Window
		for step := range 30 {
			now = min(max(now+rng.Int64N(30)-5, 0), maxInstant)
			if rng.IntN(10) == 0 {
				p.Limits[0].Quota = 1 + rng.Int64N(20)
			}
			cost := 1 + rng.Int64N(5)
			if rng.IntN(10) == 0 {
				cost = p.Limits[0].Quota + rng.Int64N(2)
			}
			d := algorithm.Take(driver.NewRequest(now, throttler.Charge{Policy: p, Key: "k", Partition: "k", Cost: cost}), []*algorithm.State{&want})
			if w, ok := want.Window(); step == 0 && ok {
				got = w // the first take opened it
				continue
			} else if !ok {
				break // the first take was refused: there is no window yet
			}
			if !got.IsOf(&p.Limits[0]) {
				t.Fatalf("%+v is not of %v", got, p.Limits[0])
			}
			if now >= got.ResetAt { // it is over: the take opened the next one
				got, _ = want.Window()
				continue
			}
			retryAt := got.Take(p.Limits[0].Quota, cost)
			if result := d.Results()[0]; retryAt != result.RetryAt || (retryAt == 0) != d.Allowed || got.Used != result.Used || got.ResetAt != result.ResetAt {
				t.Fatalf("step %d: cost %d of %v at %d: got %+v and retry at %d, want %+v", step, cost, p.Limits[0], now, got, retryAt, result)
			}
			if w, _ := want.Window(); w != got {
				t.Fatalf("step %d: the window is %+v, want %+v", step, got, w)
			}
			var back algorithm.State
			if back.SetWindow(got); rng.IntN(4) == 0 {
				want = back
			}
		}
	}
}
