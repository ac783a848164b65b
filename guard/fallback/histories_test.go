package fallback_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// TestOutageHistories runs random histories of three processes with outages of all kinds, and
// checks that they allow no more than the bound that the package states.
func TestOutageHistories(t *testing.T) {
	t.Parallel()
	for i := range 12 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			outageHistory(t, testseed.Rand(t, uint64(i)), i%2 == 1)
		})
	}
}

// processesInHistory share the quotas of a history.
const processesInHistory = 3

// outageHistory uses aligned windows, which are the same in all processes and in the backend.
// The processes may lease their units.
func outageHistory(t *testing.T, rng *rand.Rand, lease bool) {
	const keys = 4
	f := newFixture(t, processesInHistory, local)
	if lease {
		f.leased(local)
	}
	defer func() {
		for _, b := range f.backends {
			b.Close()
		}
	}()
	window := 10 * time.Second
	quota := 1 + rng.Int64N(40)
	share := (quota + processesInHistory - 1) / processesInHistory
	p := policy("core", throttler.Limit{Quota: quota, Window: window, Aligned: true})
	failing, outages := false, int64(0) // in the window
	var allowed [keys]int64
	wholly := true // the window lies within one outage
	var steps []string
	check := func() {
		most := quota + outages*processesInHistory*share
		if wholly && failing {
			most = processesInHistory * share
		}
		for k, n := range allowed {
			if n > most {
				t.Fatalf("key %d: %d allowed of %d in a window with %d outages; at most %d\n%v", k, n, quota, outages, most, steps)
			}
		}
	}
	for range 400 {
		switch n := rng.IntN(100); {
		case n < 4:
			failing = true
			outages++
			f.fail([]*failure{down, refusing, lost, lateReply}[rng.IntN(4)])
			steps = append(steps, "fails")
		case n < 8 && failing:
			failing, wholly = false, false
			f.fail(nil)
			steps = append(steps, "answers")
			if rng.IntN(2) == 0 {
				f.recover()
				steps = append(steps, "handed over")
			}
		case n < 12:
			at := f.clock.Now()
			f.clock.Set(at.Add(time.Duration(rng.Int64N(int64(window)))))
			if f.clock.Now().UnixMilli()/window.Milliseconds() != at.UnixMilli()/window.Milliseconds() {
				check()
				allowed, outages, wholly = [keys]int64{}, 0, failing
				if failing || f.holds() { // for a key, an outage lasts until it is handed over
					outages = 1
				}
				steps = []string{fmt.Sprint("window, failing ", failing)}
			}
		default:
			process, key, cost := rng.IntN(processesInHistory), rng.IntN(keys), 1+rng.Int64N(min(quota, 3))
			c := p.Charge(fmt.Sprint(key))
			c.Cost = cost
			d, err := f.processes[process].Take(t.Context(), c)
			switch {
			case errors.Is(err, driver.ErrFailClosed) && cost > share:
			case err != nil:
				t.Fatal(err)
			case d.Allowed:
				allowed[key] += cost
				steps = append(steps, fmt.Sprintf("%d: %d of %d, degraded %v", process, cost, key, d.Degraded))
				if rng.IntN(10) == 0 {
					if _, err := f.processes[process].Refund(t.Context(), d); err == nil {
						allowed[key] -= cost
						steps = append(steps, "refunded")
					}
				}
			}
			if !failing {
				wholly = false
			}
		}
	}
	check()
}

// holds reports whether a process still has charges to hand over.
func (f *fixture) holds() bool {
	return slices.ContainsFunc(f.backends, func(b *fallback.Backend) bool { return b.Stats().Held > 0 })
}

// TestNoSecondQuota checks a client that uses all units it can get, from all processes, before,
// during and after an outage, for each algorithm.
func TestNoSecondQuota(t *testing.T) {
	t.Parallel()
	for _, a := range quota.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 3, local)
			const quota = 60
			p := policy("core", throttler.Limit{Quota: quota, Window: time.Hour, Algorithm: a})
			total := 0
			for i := range 15 {
				total += f.takes(i%3, 1, p, "alice")
			}
			f.fail(down)
			for i := range 3 {
				total += f.takes(i, 100, p, "alice")
			}
			if total > quota+2 {
				t.Errorf("%d of %d allowed by the end of the outage", total, quota)
			}
			f.fail(nil)
			// At once: a key that comes back first is handed over first. On a busy machine,
			// other processes may hand over later, unknown to the backend.
			late := 0
			eventually(t, "an answer of the backend", func() bool {
				held := f.backends[1].Stats().Held + f.backends[2].Stats().Held
				d := f.take(0, p.Charge("alice"))
				if d.Allowed {
					total++
				}
				if d.Allowed && !d.Degraded && held > 0 {
					late++
				}
				return !d.Degraded
			})
			f.recover()
			for i := range 3 {
				total += f.takes(i, 100, p, "alice")
			}
			most := quota + 2 + late
			if a.Holds() { // charges let through in the outage end by themselves, without a hand-over
				most += quota + 2
			}
			if total > most {
				t.Errorf("%d of %d allowed in all, want at most %d", total, quota, most)
			}
		})
	}
}

// TestFloodOfKeys sends keys that are all new during an outage. The victim's count
// stays, newcomers are limited, and memory is bounded.
func TestFloodOfKeys(t *testing.T) {
	t.Parallel()
	const maxKeys = 1024
	for name, perKey := range map[string]int{"one unit each": 1, "all of the share each": 4} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 3, fallback.Options{OnFailure: fallback.Local, MaxKeys: maxKeys})
			p := policy("core", throttler.Limit{Quota: 12, Window: time.Hour})
			for i := range 3 { // alice has used all before, bob does in the outage
				f.takes(i, 12, p, "alice")
			}
			f.fail(down)
			if got := f.takes(0, 12, p, "bob"); got != 4 {
				t.Fatalf("bob was allowed %d, want 4", got)
			}
			flood := 6 * maxKeys
			for i := range flood {
				for range perKey {
					f.take(0, p.Charge(fmt.Sprint("flood", i)))
				}
			}
			for _, victim := range []string{"alice", "bob"} {
				if got := f.takes(0, 12, p, victim); got != 0 {
					t.Errorf("%s had used all, and was allowed %d more", victim, got)
				}
			}
			allowed := 0
			for i := range 300 {
				allowed += f.takes(0, 1, p, "newcomer")
				f.take(0, p.Charge(fmt.Sprint("flood again", i)))
			}
			if allowed > 8 {
				t.Errorf("a newcomer was allowed %d of 300 during a flood, want its share of 4, or little more", allowed)
			}
			s := f.backends[0].Stats()
			t.Logf("%+v", s)
			if s.Keys > maxKeys+64*4 || s.Held > maxKeys {
				t.Errorf("%d keys are remembered, want at most %d and the pooled ones", s.Keys, maxKeys)
			}
			f.recover()
		})
	}
}

// For a leased key, a process continues from the store's answer, not from the lease's answers:
// by these, all units outside the lease are used.
func TestLeasedKeys(t *testing.T) {
	const total, taken = 1000, 100
	f := newFixture(t, 2, local)
	f.leased(local)
	p := policy("core", throttler.Limit{Quota: total, Window: time.Hour})
	if n := f.takes(0, taken, p, "alice"); n != taken {
		t.Fatalf("%d of %d are allowed", n, taken)
	}
	held := int(f.used(p, "alice")) - taken
	f.fail(down)
	if n, want := f.takes(0, total, p, "alice"), held+(total-taken-held)/2; held == 0 || n < want || n > want+2 {
		t.Errorf("%d are allowed in an outage; want the lease of %d and half of what was left, %d", n, held, want)
	}
}
