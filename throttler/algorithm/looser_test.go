package algorithm_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// alone returns the maximum units that l by itself admits within w ms, both ends included.
// Across the edge of a window, that is twice the quota; for a sliding log, once.
func alone(l throttler.Limit, w int64) int64 {
	window := l.Length().Milliseconds()
	switch {
	case l.Algorithm.Drains():
		return l.Capacity() + w*l.Quota/window
	case l.Algorithm == throttler.SlidingLog:
		return (w/window + 1) * l.Quota
	default:
		return (w/window + 2) * l.Quota
	}
}

// looser returns the maximum units that two versions of a limit admit together within w ms.
// As docs/start/algorithms.md promises, it is the maximum of the looser version alone. For token
// buckets, the looser version has the larger burst and the faster rate of the two; for
// queues, the longer wait and the faster rate. For windows, a quota of the longer window is
// added, for charges before its record began. Aligned windows and a calendar's add up, and one
// quota of the shorter for each record of the longer.
func looser(a, b throttler.Limit, w int64) int64 {
	most := max(alone(a, w), alone(b, w))
	switch rate := max(perMs(a), perMs(b)); {
	case a.Algorithm.Queues():
		wait := max(float64(a.Capacity())/perMs(a), float64(b.Capacity())/perMs(b))
		return int64(rate*(wait+float64(w)) + 1e-9)
	case a.Algorithm.Drains():
		return max(a.Capacity(), b.Capacity()) + int64(rate*float64(w)+1e-9)
	}
	if a.Length() > b.Length() {
		a, b = b, a
	}
	switch sameWindow := a.Calendar.IsZero() && b.Calendar.IsZero() && a.Window == b.Window; {
	case sameWindow && a.Aligned != b.Aligned:
		most += max(a.Quota, b.Quota)
	case sameWindow:
	case a.Aligned || b.Aligned || !a.Calendar.IsZero() || !b.Calendar.IsZero():
		extra := a.Quota
		if a.Length() == b.Length() {
			extra = max(a.Quota, b.Quota)
		}
		return alone(a, w) + alone(b, w) + (w/b.Length().Milliseconds()+1)*extra
	case a.Window < b.Window:
		most += b.Quota
	}
	return most
}

func perMs(l throttler.Limit) float64 { return float64(l.Quota) / float64(l.Window.Milliseconds()) }

// otherVersion returns l with another quota, window or burst, or several of them.
func otherVersion(l throttler.Limit, rng *rand.Rand) throttler.Limit {
	n, scale := l, 2+rng.Int64N(11)
	switch rng.IntN(4) {
	case 0:
		n.Quota = 1 + rng.Int64N(3*l.Quota)
	case 1: // at the same rate
		n.Quota, n.Window = l.Quota*scale, l.Window*time.Duration(scale)
	case 2:
		n.Window = l.Window * time.Duration(scale)
	case 3:
		n.Quota, n.Window = 1+rng.Int64N(3*l.Quota), l.Window*time.Duration(scale)+time.Duration(rng.IntN(20))*time.Millisecond
	}
	if l.Algorithm.Drains() && rng.IntN(3) == 0 {
		n.Burst = 1 + rng.Int64N(2*l.Quota)
	}
	if l.Algorithm == throttler.FixedWindow && rng.IntN(2) == 0 {
		n.Aligned = true
	}
	return n
}

// TestSequentialTwoVersionsGiveNoMoreThanTheLooser lets processes with two versions of a policy
// take in random turns. In no period, of any length, do they together admit more than the
// looser version.
func TestSequentialTwoVersionsGiveNoMoreThanTheLooser(t *testing.T) {
	rng := testseed.Rand(t, 0)
	for range 150 {
		for _, a := range algorithms {
			l := throttler.Limit{Algorithm: a, Quota: 1 + rng.Int64N(30), Window: time.Duration(20+rng.Int64N(2000)) * time.Millisecond}
			if a.Drains() && rng.IntN(2) == 0 {
				l.Burst = 1 + rng.Int64N(2*l.Quota)
			}
			l.Aligned = a == throttler.FixedWindow && rng.IntN(2) == 0
			takeInTurns(t, rng, l, otherVersion(l, rng))
		}
		month := throttler.Limit{Quota: 1 + rng.Int64N(30), Calendar: quota.Calendar{Period: quota.Month, Day: uint8(1 + rng.IntN(31))}}
		for _, other := range []throttler.Limit{
			{Quota: 1 + rng.Int64N(30), Calendar: quota.Calendar{Period: quota.Month, Day: uint8(1 + rng.IntN(31))}},
			{Quota: 1 + rng.Int64N(30), Calendar: quota.Calendar{Period: quota.Week}},
			{Quota: 1 + rng.Int64N(30), Window: time.Duration(1+rng.IntN(1000)) * time.Hour, Aligned: rng.IntN(2) == 0},
		} {
			takeInTurns(t, rng, month, other)
		}
	}
}

func takeInTurns(t *testing.T, rng *rand.Rand, versions ...throttler.Limit) {
	t.Helper()
	c := &changed{t: t, forms: [2][]throttler.Limit{versions[:1], versions[1:]}}
	type unit struct{ at, cost int64 }
	var admitted []unit
	now, share := int64(day), rng.IntN(11) // of ten requests, for the first version
	pause, edge := versions[rng.IntN(2)].Length().Milliseconds(), now
	for range 250 {
		switch rng.IntN(40) {
		case 0:
			now += rng.Int64N(pause + 1)
		case 1:
			share = rng.IntN(11)
		case 2, 3: // when a time to reset or to retry is over
			if edge < now+2*pause {
				now = max(now, edge)
			}
		default:
			now += rng.Int64N(pause/20+2) * rng.Int64N(2)
		}
		version, cost := 0, int64(1)
		if rng.IntN(10) >= share {
			version = 1
		}
		if rng.IntN(5) == 0 {
			cost = 1 + rng.Int64N(min(versions[version].Capacity(), 5))
		}
		if rng.IntN(5) == 0 { // as much as fits
			cost = max(versions[version].Capacity()-c.used(version, now), 1)
		}
		allowed, results := c.take(version, cost, now)
		if edge = results[0].ResetAt; !allowed {
			edge = results[0].RetryAt
			continue
		}
		admitted = append(admitted, unit{now, cost})
		sum := int64(0)
		for i := len(admitted) - 1; i >= 0; i-- {
			sum += admitted[i].cost
			if w := now - admitted[i].at; sum > looser(versions[0], versions[1], w) {
				t.Fatalf("%+v and %+v: %d units within %d ms, want at most %d", versions[0], versions[1], sum, w, looser(versions[0], versions[1], w))
			}
		}
	}
}

// TestSequentialVersionsInTurn lets two versions take units in turn, as two services do that
// share the name of a policy.
func TestSequentialVersionsInTurn(t *testing.T) {
	limit := func(a quota.Algorithm, quota int64, window time.Duration, burst int64) throttler.Limit {
		return throttler.Limit{Algorithm: a, Quota: quota, Window: window, Burst: burst}
	}
	const minute = time.Minute
	for _, test := range []struct {
		versions [2]throttler.Limit
		turns    int // one take of turns is the first version's
		lasts    time.Duration
		least    int
		most     int
	}{
		{[2]throttler.Limit{limit(throttler.TokenBucket, 100, minute, 0), limit(throttler.TokenBucket, 90, minute, 0)}, 2, 5 * time.Second, 100, 108},
		{[2]throttler.Limit{limit(throttler.TokenBucket, 100, minute, 100), limit(throttler.TokenBucket, 10, minute, 100)}, 2, minute, 150, 200},
		{[2]throttler.Limit{limit(throttler.LeakyBucket, 100, minute, 0), limit(throttler.LeakyBucket, 90, minute, 0)}, 2, 5 * time.Second, 98, 108},
		{[2]throttler.Limit{limit(throttler.FixedWindow, 100, minute, 0), limit(throttler.FixedWindow, 10, 6*time.Second, 0)}, 10, 10 * minute, 900, 1000},
		{[2]throttler.Limit{limit(throttler.SlidingLog, 100, minute, 0), limit(throttler.SlidingLog, 10, 6*time.Second, 0)}, 10, 10 * minute, 900, 1000},
		{[2]throttler.Limit{limit(throttler.SlidingWindow, 100, minute, 0), limit(throttler.SlidingWindow, 10, 6*time.Second, 0)}, 10, 10 * minute, 900, 1100},
	} {
		c := &changed{t: t, forms: [2][]throttler.Limit{test.versions[:1], test.versions[1:]}}
		served := 0
		for i := range int(test.lasts / (20 * time.Millisecond)) {
			if allowed, _ := c.take(min(i%test.turns, 1), 1, day+int64(i)*20); allowed {
				served++
			}
		}
		if served < test.least || served > test.most {
			t.Errorf("%+v, one of %d, for %v: %d served, want %d to %d", test.versions, test.turns, test.lasts, served, test.least, test.most)
		}
	}
}

// TestVersionsInBursts lets both versions take as many units as fit, the shorter window first,
// each time that the longer window's record has just ended. As docs/start/algorithms.md says, they
// get one more quota of the shorter window per longer window.
func TestVersionsInBursts(t *testing.T) {
	for _, a := range []quota.Algorithm{throttler.FixedWindow, throttler.SlidingLog} {
		for _, test := range []struct {
			short throttler.Limit
			most  int
		}{
			{throttler.Limit{Algorithm: a, Quota: 10, Window: 6 * time.Second}, 6600},
			{throttler.Limit{Algorithm: a, Quota: 50, Window: 30 * time.Second}, 9000},
		} {
			long := throttler.Limit{Algorithm: a, Quota: 100, Window: time.Minute}
			c := &changed{t: t, forms: [2][]throttler.Limit{{test.short}, {long}}}
			served := 0
			for now := int64(0); now < time.Hour.Milliseconds(); now += 30_001 {
				for version := range int64(2) {
					for allowed := true; allowed; {
						if allowed, _ = c.take(int(version), 1, day+now+version); allowed {
							served++
						}
					}
				}
			}
			if served > test.most {
				t.Errorf("%+v and %+v: %d served in an hour, want at most %d", test.short, long, served, test.most)
			}
		}
	}
}

// TestSequentialLeasesTogether lets processes with two leases of a limit take, renew and settle
// units, at random and by clocks that step back. Units that have not lapsed for their process
// are never more than the larger quota, and a unit that has not lapsed is always renewed.
func TestSequentialLeasesTogether(t *testing.T) {
	rng := testseed.Rand(t, 0)
	for range 400 {
		l := &leases{t: t, rng: rng, now: day, held: make(map[int]*heldUnit)}
		for i := range l.versions {
			window := time.Duration(1+rng.Int64N(1<<(3+rng.IntN(14)))) * time.Millisecond
			l.versions[i] = &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Algorithm: throttler.InFlight, Quota: 1 + rng.Int64N(5), Window: window}}}
		}
		if rng.IntN(3) == 0 {
			l.versions[1].Limits = append(l.versions[1].Limits, throttler.Limit{Quota: 1000, Window: time.Hour})
		}
		for range 200 {
			l.step()
		}
	}
}

type leases struct {
	t        *testing.T
	rng      *rand.Rand
	now      int64
	latest   int64 // of now: a unit that lapsed by one clock is gone
	versions [2]*throttler.Policy
	state    algorithm.State
	held     map[int]*heldUnit
	taken    int
}

type heldUnit struct {
	d      driver.Decision
	lapses int64
}

func (l *leases) step() {
	window := l.versions[l.rng.IntN(2)].Limits[0].Window.Milliseconds()
	switch l.rng.IntN(6) {
	case 0:
		l.now += l.rng.Int64N(window + 1)
	case 1:
		l.now += window/3 + l.rng.Int64N(3) - 1
	case 2:
		l.now -= l.rng.Int64N(window/10 + 1)
	}
	l.latest = max(l.latest, l.now)
	states := []*algorithm.State{&l.state}
	n, number := l.rng.IntN(l.taken+1), 0
	u := l.held[n]
	settlement := driver.Settlement{Now: l.now}
	if u != nil {
		settlement.Charged, settlement.Costs = u.d, []int64{1}
	}
	switch l.rng.IntN(4) {
	case 0, 1:
		p := l.versions[l.rng.IntN(2)]
		d := algorithm.Take(driver.NewRequest(l.now, throttler.Charge{Policy: p, Key: "k", Partition: "k", Cost: 1}), states)
		if l.taken++; d.Allowed {
			l.held[l.taken] = &heldUnit{d, l.now + p.Limits[0].Window.Milliseconds()}
		}
	case 2:
		if u == nil {
			break
		}
		settlement.Renews = true
		d := algorithm.Settle(settlement, states)
		if lapsed := u.lapses <= l.latest; !d.Allowed && !lapsed {
			l.t.Fatalf("%v and %v: a unit that lapses at %d is not renewed at %d", l.versions[0].Limits, l.versions[1].Limits, u.lapses, l.now)
		}
		if d.Allowed {
			u.d, u.lapses = u.d.Renewed(&d), l.now+u.d.Charges()[0].Policy.Limits[0].Window.Milliseconds()
		}
	case 3:
		if u != nil {
			algorithm.Settle(settlement, states)
			delete(l.held, n)
		}
	}
	state, err := algorithm.Parse(l.state.Append(nil))
	if err != nil {
		l.t.Fatal(err)
	}
	l.state = state
	for _, u := range l.held {
		if u.lapses > l.latest {
			number++
		}
	}
	if most := max(l.versions[0].Limits[0].Quota, l.versions[1].Limits[0].Quota); int64(number) > most {
		l.t.Fatalf("%v and %v: %d are in flight, of %d", l.versions[0].Limits, l.versions[1].Limits, number, most)
	}
	if life, needed := l.state.Life(l.now), l.state.ResetAt(l.now)-l.now; life < needed && l.now == l.latest {
		l.t.Fatalf("%v and %v: kept for %d ms, and needed for %d", l.versions[0].Limits, l.versions[1].Limits, life, needed)
	}
}
