package algorithm_test

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Algorithms that hold units are left out: a cost is not a number of units, and no time is known.
var algorithms = slices.DeleteFunc(quota.Algorithms(), quota.Algorithm.Holds)

// randomLimit returns a valid limit, small or extreme.
func randomLimit(rng *rand.Rand, a quota.Algorithm) throttler.Limit {
	for {
		l := throttler.Limit{
			Algorithm: a,
			Quota:     1 + rng.Int64N(1<<(1+rng.IntN(53))),
			Window:    time.Duration(1+rng.Int64N(1<<(1+rng.IntN(34)))) * time.Millisecond,
		}
		switch {
		case a == throttler.FixedWindow:
			l.Aligned = rng.IntN(2) == 0
		case a == throttler.SlidingLog:
			l.Quota = 1 + l.Quota%50
		case a.Drains() && rng.IntN(2) == 0:
			l.Burst = 1 + rng.Int64N(1<<(1+rng.IntN(53)))
		}
		if (&throttler.Policy{Name: "p", Limits: []throttler.Limit{l}}).Validate() == nil {
			return l
		}
	}
}

// RetryAt of a refusal is the first time at which the charge fits. NextAt is the
// first time at which one unit fits, whatever the cost and the decision. ResetAt is
// the first time at which nothing counts. The used units never grow without a
// charge, so a clock that steps back finds no additional quota.
func TestSequentialClosedForms(t *testing.T) {
	rng := testseed.Rand(t, 0)
	for range 20_000 {
		a := algorithms[rng.IntN(len(algorithms))]
		limits := []throttler.Limit{randomLimit(rng, a)}
		capacity := limits[0].Capacity()
		var s algorithm.State
		now := int64(day) + rng.Int64N(1e9)
		at := func(now int64) driver.Result {
			var r [1]driver.Result
			s.Evaluate(limits, 0, now, r[:])
			return r[0]
		}
		fits := func(cost, now int64) bool {
			var r [1]driver.Result
			return s.Evaluate(limits, cost, now, r[:])
		}
		for range 6 {
			cost := 1 + rng.Int64N(capacity)
			allowed, r := take(&s, limits, cost, now)
			if reset := r[0].ResetAt; reset <= now && at(now).Used > 0 || at(reset).Used != 0 || reset > now && a != throttler.FixedWindow && at(reset-1).Used == 0 {
				t.Fatalf("%v: reset at %d is not the first instant with nothing used: used there %d, 1 ms before %d", limits[0], reset, at(reset).Used, at(reset-1).Used)
			}
			if retry := r[0].RetryAt; !allowed && (retry <= now || !fits(cost, retry) || fits(cost, retry-1)) {
				t.Fatalf("%v, cost %d at %d: retry at %d is not the first instant at which it fits: fits there %v, 1 ms before %v",
					limits[0], cost, now, retry, fits(cost, retry), fits(cost, retry-1))
			}
			next := r[0].Next(&limits[0])
			if fits(1, now) != (next == 0) || next != 0 && (next <= now || !fits(1, next) || fits(1, next-1)) {
				t.Fatalf("%v, cost %d at %d: next at %d is not the first instant at which one fits", limits[0], cost, now, next)
			}
			window := limits[0].Window.Milliseconds()
			later := now + rng.Int64N(window+1)
			if a != throttler.SlidingWindow || later-now < window { // its estimate may rise at a window's edge
				if back := now - rng.Int64N(5000); at(back).Used < at(now).Used {
					t.Fatalf("%v: %d used at %d, but only %d at the earlier %d", limits[0], at(now).Used, now, at(back).Used, back)
				}
			}
			now = later
		}
	}
}

// Both buckets agree with rational arithmetic.
func TestSequentialBucketIsExact(t *testing.T) {
	rng := testseed.Rand(t, 0)
	for range 5000 {
		l := randomLimit(rng, throttler.LeakyBucket)
		limits := []throttler.Limit{l}
		var s algorithm.State
		level, last := new(big.Rat), int64(day) // units that have not drained at last
		now := last
		for range 12 {
			now += rng.Int64N(l.Window.Milliseconds() + 1)
			drained := big.NewRat(now-last, 1)
			drained.Mul(drained, big.NewRat(l.Quota, l.Window.Milliseconds()))
			if level.Sub(level, drained).Sign() < 0 {
				level.SetInt64(0)
			}
			last = now
			used := ceil(level)
			cost := 1 + rng.Int64N(l.Capacity())
			wait := new(big.Rat).Mul(level, big.NewRat(l.Window.Milliseconds(), l.Quota))
			allowed, r := take(&s, limits, cost, now)
			if want := used+cost <= l.Capacity(); allowed != want {
				t.Fatalf("%v: cost %d onto %v: allowed %v, want %v", l, cost, level, allowed, want)
			}
			if !allowed {
				continue
			}
			level.Add(level, big.NewRat(cost, 1))
			if r[0].Used != ceil(level) || r[0].StartAt != now+ceil(wait) {
				t.Fatalf("%v: used %d, start after %d ms; want %d, %d", l, r[0].Used, r[0].StartAt-now, ceil(level), ceil(wait))
			}
		}
	}
}

func ceil(r *big.Rat) int64 {
	q, rest := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}

// No window of the given length, wherever it starts, holds more than the quota.
func TestSequentialSlidingLogIsExactOverAMillionCalls(t *testing.T) {
	rng := testseed.Rand(t, 0)
	const quota, window = 100, 1000
	limits := []throttler.Limit{{Quota: quota, Window: window * time.Millisecond, Algorithm: throttler.SlidingLog}}
	var s algorithm.State
	var inside []int64 // instants of the units admitted in the window that ends now
	now, admitted := int64(day), 0
	for range 1_000_000 {
		if rng.IntN(3) == 0 { // bursts and silences
			now += rng.Int64N(1 << rng.IntN(9))
		}
		for len(inside) > 0 && inside[0]+window <= now {
			inside = inside[1:]
		}
		cost := 1 + rng.Int64N(3)
		allowed, _ := take(&s, limits, cost, now)
		if want := int64(len(inside))+cost <= quota; allowed != want {
			t.Fatalf("at %d, with %d in the window and cost %d: allowed %v", now, len(inside), cost, allowed)
		}
		if allowed {
			admitted++
			for range cost {
				inside = append(inside, now)
			}
		}
	}
	if admitted < 100_000 {
		t.Errorf("only %d calls were admitted: the traffic tests nothing", admitted)
	}
}

// A refund at once leaves the state's answers as before the charge.
func TestRefundUndoesACharge(t *testing.T) {
	rng := testseed.Rand(t, 0)
	for range 5000 {
		limits := []throttler.Limit{randomLimit(rng, algorithms[rng.IntN(len(algorithms))])}
		var s algorithm.State
		now := int64(day) + rng.Int64N(1e9)
		for range 4 {
			take(&s, limits, 1+rng.Int64N(limits[0].Capacity()), now)
			now += rng.Int64N(limits[0].Window.Milliseconds() + 1)
		}
		var before, after [1]driver.Result
		s.Evaluate(limits, 0, now, before[:])
		cost := 1 + rng.Int64N(limits[0].Capacity())
		allowed, r := take(&s, limits, cost, now)
		if !allowed {
			continue
		}
		s.Settle(limits, algorithm.Settlement{TakenAt: now, Marks: []driver.Mark{r[0].Mark}, Charged: cost}, now, after[:])
		want := before[0].Used
		if start := r[0].StartAt; start != 0 && start <= now {
			want = max(want, 1) // a queue keeps the place of a charge that has started
		}
		if after[0].Used != want {
			t.Fatalf("%v: used %d, then %d was charged and given back: used %d", limits[0], before[0].Used, cost, after[0].Used)
		}
	}
}

// The stored form of a state gives the same answers.
func TestStoredForm(t *testing.T) {
	rng := testseed.Rand(t, 0)
	for range 5000 {
		var limits []throttler.Limit
		for range 1 + rng.IntN(4) {
			limits = append(limits, randomLimit(rng, algorithms[rng.IntN(len(algorithms))]))
		}
		var s algorithm.State
		now := int64(day) + rng.Int64N(1e9)
		for range 3 {
			take(&s, limits, 1+rng.Int64N(5), now)
			now += rng.Int64N(1000)
		}
		parsed, err := algorithm.Parse(s.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		want, got := make([]driver.Result, len(limits)), make([]driver.Result, len(limits))
		s.Evaluate(limits, 1, now, want)
		parsed.Evaluate(limits, 1, now, got)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%v: %+v, read back %+v", limits[i], want[i], got[i])
			}
		}
	}
}

// Parse returns an error or a state for any bytes, and never panics.
func FuzzParse(f *testing.F) {
	var s algorithm.State
	take(&s, []throttler.Limit{{Quota: 5, Window: time.Hour}}, 1, day)
	f.Add(s.Append(nil))
	take(&s, []throttler.Limit{{Quota: 5, Window: time.Second, Algorithm: throttler.SlidingLog}, {Quota: 5, Window: time.Hour, Algorithm: throttler.TokenBucket}}, 1, day)
	f.Add(s.Append(nil))
	f.Add([]byte("1600583920000000042"))
	f.Add([]byte("\x0a\x00\x1a" + "\x04\x00\x00\x00\x00\x03\xe8" + "\x00\x00\x00\x01" + "\x00\x00\x00\x00\x00\x00\x07" + "\x00\x00\x00\x01\x00\x00\x00\x02" +
		"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x0f\x00\x00\x00\x00\x07"))
	limits := []throttler.Limit{
		{Quota: 5, Window: time.Hour}, {Quota: 5, Window: time.Hour, Algorithm: throttler.SlidingWindow},
		{Quota: 5, Window: time.Second, Algorithm: throttler.SlidingLog}, {Quota: 5, Window: time.Hour, Algorithm: throttler.TokenBucket},
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := algorithm.Parse(b)
		if err != nil {
			return
		}
		results := make([]driver.Result, len(limits))
		s.Evaluate(limits, 1, day, results)
		s.Charge(limits, 1, day, results)
		if _, err := algorithm.Parse(s.Append(nil)); err != nil {
			t.Errorf("a state that was charged cannot be read back: %v", err)
		}
	})
}
