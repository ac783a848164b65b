package algorithm_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A Window decides as a State does, answer by answer, even if the clock steps or the
// quota changes.
func TestWindowsDecideAsStatesDo(t *testing.T) {
	rng := testseed.Rand(t, 0)
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
			if w, ok := algorithm.ReadWindow(want.Append(nil)); step == 0 && ok {
				got = w // the first take opened it
				continue
			} else if !ok {
				break // the first take was refused: there is no window yet
			}
			if !got.IsOf(&p.Limits[0]) {
				t.Fatalf("%+v is not of %v", got, p.Limits[0])
			}
			if now >= got.ResetAt { // it is over: the take opened the next one
				got, _ = algorithm.ReadWindow(want.Append(nil))
				continue
			}
			retryAt := got.Take(p.Limits[0].Quota, cost)
			if result := d.Results()[0]; retryAt != result.RetryAt || (retryAt == 0) != d.Allowed || got.Used != result.Used || got.ResetAt != result.ResetAt {
				t.Fatalf("step %d: cost %d of %v at %d: got %+v and retry at %d, want %+v", step, cost, p.Limits[0], now, got, retryAt, result)
			}
			if w, _ := algorithm.ReadWindow(want.Append(nil)); w != got {
				t.Fatalf("step %d: the window is %+v, want %+v", step, got, w)
			}
			form := want.Append(nil)
			if got.Write(form); !bytes.Equal(form, want.Append(nil)) {
				t.Fatalf("step %d: the window is written as %x, want %x", step, form, want.Append(nil))
			}
		}
	}
}

// ReadDigits reads the digits that AppendDigits writes, and their order is the order of the
// windows' reset times and counts.
func TestDigitsAreReadAsWritten(t *testing.T) {
	before := ""
	for _, w := range []algorithm.Window{
		{Length: 1000, ResetAt: 1735689600000},
		{Length: 99_000, ResetAt: 1735689600000},
		{Length: 120_000, ResetAt: 1735689600000},
		{Length: 3_600_000, ResetAt: 1735689600000},
		{Length: 3_600_000, ResetAt: 1735689600000, Used: 1},
		{Length: 3_600_000, ResetAt: 1735689600000, Used: 9999},
		{Length: 3_600_000, ResetAt: 1735689600001},
		{Length: 3_600_000, ResetAt: 2735689599999, Used: 9999},
		{Length: 99 * 3_600_000, ResetAt: 1800000000000},
		{Length: 99 * 86_400_000, ResetAt: 1800000000000},
		{Length: 1000, Aligned: true, ResetAt: 1735689600000},
		{Length: 99 * 86_400_000, Aligned: true, ResetAt: 2735689599999, Used: 9999},
	} {
		b, ok := algorithm.AppendDigits([]byte("x"), w)
		if !ok || len(b) != 20 || b[0] != 'x' || string(b[1:]) <= before {
			t.Errorf("%+v: %q, %v; want 19 digits above %q", w, b, ok, before)
			continue
		}
		before = string(b[1:])
		if got, err := algorithm.ReadDigits(b[1:]); err != nil || got != w {
			t.Errorf("%q is %+v, %v; want %+v", b, got, err, w)
		}
	}
	for _, w := range []algorithm.Window{
		{ResetAt: 1800000000000},
		{Length: 999, ResetAt: 1800000000000},
		{Length: 100_000, ResetAt: 1800000000000},
		{Length: 3_600_001, ResetAt: 1800000000000},
		{Length: 100 * 86_400_000, ResetAt: 1800000000000},
		{Length: 1000, ResetAt: 1735689599999},
		{Length: 1000, ResetAt: 2735689600000},
		{Length: 1000, ResetAt: 1800000000000, Used: 10_000},
	} {
		if b, ok := algorithm.AppendDigits(nil, w); ok || len(b) > 0 {
			t.Errorf("%+v is %q, want no digits", w, b)
		}
	}
}
