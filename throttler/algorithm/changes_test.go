package algorithm_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

// changed is a key with two forms of its policy, and processes of both kinds side by
// side. The second form has other windows and quotas.
type changed struct {
	t     *testing.T
	forms [2][]throttler.Limit
	state algorithm.State

	charged [2]bool // by form; a form that was not charged counts adopted units
}

func (c *changed) look(form int, cost, now int64) (bool, []driver.Result) {
	results := make([]driver.Result, len(c.forms[form]))
	fits := c.state.Evaluate(c.forms[form], cost, now, results)
	return fits, results
}

func (c *changed) used(form int, now int64) int64 {
	_, r := c.look(form, 0, now)
	return r[0].Used
}

// take is a take as a store makes it: the state goes through its stored form.
func (c *changed) take(form int, cost, now int64) (bool, []driver.Result) {
	allowed, r := take(&c.state, c.forms[form], cost, now)
	state, err := algorithm.Parse(c.state.Append(nil))
	if err != nil {
		c.t.Fatal(err)
	}
	c.state = state
	c.charged[form] = c.charged[form] || allowed
	return allowed, r
}

func (c *changed) refund(form int, cost, takenAt, now int64, r []driver.Result) {
	marks := make([]driver.Mark, len(r))
	for i := range r {
		marks[i] = r[i].Mark
	}
	results := make([]driver.Result, len(r))
	c.state.Settle(c.forms[form], algorithm.Settlement{TakenAt: takenAt, Marks: marks, Charged: cost}, now, results)
}

func changeOf(l throttler.Limit, rng *rand.Rand) throttler.Limit {
	for {
		n := l
		switch rng.IntN(3) {
		case 0:
			n.Window = l.Window/time.Duration(1+rng.IntN(70)) + time.Duration(rng.IntN(20))*time.Millisecond
		case 1:
			n.Window = l.Window*time.Duration(1+rng.IntN(70)) + time.Duration(rng.IntN(20))*time.Millisecond
		}
		if rng.IntN(2) == 0 {
			n.Quota = 1 + rng.Int64N(3*l.Quota)
		}
		n.Window = n.Window.Truncate(time.Millisecond)
		if l.Algorithm == throttler.FixedWindow {
			n.Aligned = rng.IntN(2) == 0
		}
		if (&throttler.Policy{Name: "p", Limits: []throttler.Limit{n}}).Validate() == nil {
			return n
		}
	}
}

// longest returns the maximum time in ms for l to refuse a cost that fits its capacity.
func longest(l throttler.Limit) int64 {
	w, lasts := l.Window.Milliseconds(), algorithm.Lifetime(l).Milliseconds()
	if l.Algorithm.Drains() {
		return max(lasts, w) + 1 // two times are rounded up, one of them by Lifetime
	}
	return lasts
}

// Both kinds of processes take and refund. Until the next charge, a retry time of one
// holds for both, unless quotas were lowered. Reset times stay. No client is refused
// for longer than both windows. Under either policy, a refund returns no more units
// than were charged.
func TestSequentialStatedTimesOutliveChanges(t *testing.T) {
	rng := testseed.Rand(t, 0)
	for range 5000 {
		l := throttler.Limit{
			Algorithm: algorithms[rng.IntN(len(algorithms))],
			Quota:     1 + rng.Int64N(30),
			Window:    time.Duration(1+rng.Int64N(1<<(3+rng.IntN(16)))) * time.Millisecond,
		}
		if l.Algorithm.Drains() && rng.IntN(2) == 0 {
			l.Burst = 1 + rng.Int64N(2*l.Quota)
		}
		c := &changed{t: t, forms: [2][]throttler.Limit{{l}, {changeOf(l, rng)}}}
		forms := [2]throttler.Limit{c.forms[0][0], c.forms[1][0]}
		bound := max(longest(forms[0]), longest(forms[1]))
		now := int64(day) + rng.Int64N(1e9)
		type charge struct {
			form     int
			cost, at int64
			results  []driver.Result
		}
		var charges []charge
		for range 30 {
			form := rng.IntN(2)
			switch rng.IntN(8) {
			case 0:
				if len(charges) == 0 {
					break
				}
				ch := charges[rng.IntN(len(charges))]
				before := [2]int64{c.used(0, now), c.used(1, now)}
				c.refund(ch.form, ch.cost, ch.at, now, ch.results)
				for form := range forms {
					// The straight line that a longer sliding window adopts may last
					// longer after a refund to the first of two windows, but never
					// exceeds the estimate itself.
					most := before[form]
					if l.Algorithm == throttler.SlidingWindow {
						most = max(most, c.used(1-form, now))
					}
					// The units adopted for a longer window also change with the record that they come from.
					exact := l.Algorithm != throttler.LeakyBucket && (l.Algorithm != throttler.SlidingWindow || c.charged[form])
					if l.Algorithm == throttler.TokenBucket { // units of two sizes, rounded up
						before[form]--
					}
					if used := c.used(form, now); used > most || exact && used < before[form]-ch.cost {
						t.Fatalf("%v: form %d used %d, then a refund of %d: %d", forms, form, before[form], ch.cost, used)
					}
				}
			default:
				cost := 1 + rng.Int64N(min(forms[0].Capacity(), forms[1].Capacity()))
				before := [2]int64{c.used(0, now), c.used(1, now)}
				allowed, r := c.take(form, cost, now)
				if !allowed {
					c.checkRefusal(forms, form, cost, now, bound, r[0])
					break
				}
				if used := c.used(form, now); used != before[form]+cost {
					t.Fatalf("%v: form %d used %d, then was charged %d: %d", forms, form, before[form], cost, used)
				}
				charges = append(charges, charge{form: form, cost: cost, at: now, results: r})
			}
			for form := range forms {
				_, first := c.look(form, 0, now)
				if first[0].ResetAt-now > bound {
					t.Fatalf("%v at %d: form %d resets at %d, later than either window", forms, now, form, first[0].ResetAt)
				}
				later := now + rng.Int64N(max(first[0].ResetAt-now, 1))
				if _, then := c.look(form, 0, later); then[0].ResetAt != first[0].ResetAt && first[0].ResetAt > later {
					t.Fatalf("%v: form %d resets at %d, seen at %d, and at %d, seen at %d", forms, form, first[0].ResetAt, now, then[0].ResetAt, later)
				}
			}
			now += rng.Int64N(1 << rng.IntN(20))
			if rng.IntN(3) == 0 {
				now += rng.Int64N(2*forms[rng.IntN(2)].Window.Milliseconds() + 1)
			}
		}
	}
}

func (c *changed) checkRefusal(forms [2]throttler.Limit, form int, cost, now, bound int64, r driver.Result) {
	c.t.Helper()
	if r.RetryAt <= now || r.RetryAt-now > bound {
		c.t.Fatalf("%v at %d: form %d is to retry at %d, later than either window", forms, now, form, r.RetryAt)
	}
	for other := range forms {
		looser := forms[other].Quota >= forms[form].Quota && forms[other].Capacity() >= forms[form].Capacity()
		isQueue := forms[other].Algorithm == throttler.LeakyBucket // its charges stay until their starts
		if other != form && (c.charged[other] || isQueue || !looser) {
			continue
		}
		if fits, _ := c.look(other, cost, r.RetryAt); !fits {
			c.t.Fatalf("%v at %d: form %d was to retry %d at %d, when form %d refuses it", forms, now, form, cost, r.RetryAt, other)
		}
	}
}

// Processes of both kinds, at 60 % of the rate that both allow, refuse no request.
func TestSequentialBothKindsOfProcessesAgree(t *testing.T) {
	for _, a := range algorithms {
		for _, n := range []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute, 7 * time.Minute} {
			forms := [2][]throttler.Limit{
				{{Algorithm: a, Quota: 60, Window: time.Minute}},
				{{Algorithm: a, Quota: int64(n / time.Second), Window: n}},
			}
			c := &changed{t: t, forms: forms}
			for i := range 3600 {
				now := int64(day) + int64(i)*5000/3
				form := 0
				if i > 600 {
					form = i % 2
				}
				if allowed, r := c.take(form, 1, now); !allowed {
					t.Errorf("%v: request %d of form %d is refused: %+v", forms, i, form, r[0])
					break
				}
			}
		}
	}
}

// An operator lowers or raises a window while clients are at work.
func TestChangedWindowExamples(t *testing.T) {
	limit := func(quota int64, window time.Duration) throttler.Limit {
		return throttler.Limit{Quota: quota, Window: window}
	}
	t.Run("a client that used it all is served at its retry time", func(t *testing.T) {
		for _, a := range algorithms {
			minute, second := limit(10, time.Minute), limit(10, time.Second)
			minute.Algorithm, second.Algorithm = a, a
			c := &changed{t: t, forms: [2][]throttler.Limit{{minute}, {second}}}
			c.take(0, 10, day)
			allowed, r := c.take(1, 1, day+100)
			if _, again := c.look(1, 1, day+150); !allowed && again[0] != r[0] {
				t.Errorf("%v: %+v, and 50 ms later %+v", a, r[0], again[0])
			}
			if allowed {
				continue // a bucket that drains ten units a second has room for one
			}
			if allowed, r := c.take(1, 1, r[0].RetryAt); !allowed {
				t.Errorf("%v: refused again: %+v", a, r[0])
			}
		}
	})
	t.Run("the limit with the nearest window continues, the other refuses no client", func(t *testing.T) {
		for _, a := range algorithms {
			limits := []throttler.Limit{limit(1000, time.Hour), limit(60, time.Minute), limit(2000, 2*time.Hour)}
			for i := range limits {
				limits[i].Algorithm = a
			}
			c := &changed{t: t, forms: [2][]throttler.Limit{limits[:1], limits[1:]}}
			const now = day + 20*60*1000 // aligned windows, too, opened a while ago
			c.take(0, 1, day)
			c.take(0, 99, now)
			_, r := c.look(1, 1, now+1000)
			if r[1].Used < 80 || r[1].Used > 100 { // an estimate sinks in a straight line now
				t.Errorf("%v: the limit of 2 h has used %d, want nearly 100", a, r[1].Used)
			}
			if r[0].RetryAt > now+2*60*1000 && a != throttler.LeakyBucket { // its starts were returned
				t.Errorf("%v: the limit of 1 m refuses for %d s", a, (r[0].RetryAt-now)/1000)
			}
		}
	})
	t.Run("a record that only others charge is given up", func(t *testing.T) {
		for _, a := range algorithms {
			forms := [2][]throttler.Limit{{{Algorithm: a, Quota: 60, Window: time.Minute}}, {{Algorithm: a, Quota: 120, Window: 2 * time.Minute}}}
			c := &changed{t: t, forms: forms}
			c.take(0, 5, day)
			one := len(c.state.Append(nil))
			for now := int64(day); now < day+5*60*1000; now += 5000 {
				c.take(1, 1, now)
			}
			if a == throttler.SlidingLog {
				one += 10 * 23 // two minutes of charges
			}
			if n := len(c.state.Append(nil)); n > one+8 {
				t.Errorf("%v: the state has %d bytes, with one record %d", a, n, one)
			}
		}
	})
}
