package consistency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// oracle counts what all processes admitted, as one process would have counted it.
type oracle struct {
	limit throttler.Limit
	at    time.Time
	used  float64
	total int64
}

func (o *oracle) admit(now time.Time, units int64) {
	switch {
	case o.limit.Algorithm == throttler.TokenBucket:
		o.used = max(o.used-float64(now.Sub(o.at))/float64(o.limit.Window)*float64(o.limit.Quota), 0)
	case !now.Truncate(o.limit.Window).Equal(o.at.Truncate(o.limit.Window)):
		o.used = 0
	}
	o.at, o.used, o.total = now, o.used+float64(units), o.total+units
}

// refund subtracts the units that d charged, if they still count.
func (o *oracle) refund(d *throttler.Decision) {
	if o.limit.Algorithm == throttler.TokenBucket || d.At().Truncate(o.limit.Window).Equal(o.at.Truncate(o.limit.Window)) {
		o.used = max(o.used-float64(d.Charges()[0].Cost), 0)
	}
}

// A policy changes its level, and back, at a different time in each process, while processes are
// killed and started. Together they admit one quota, and nearly all of it.
func TestNoSecondQuota(t *testing.T) {
	for _, policy := range []*throttler.Policy{window, bucket} {
		for _, hard := range []consistency.Level{consistency.Exact, consistency.Leased} {
			if policy == bucket && hard == consistency.Leased {
				continue // as if it were exact
			}
			t.Run(fmt.Sprintf("%s/%v", policy.Name, hard), func(t *testing.T) {
				t.Parallel()
				changeLevels(t, policy, []consistency.Level{hard, consistency.Synced, hard})
			})
		}
	}
}

// changeLevels runs processes through the levels of sequence, at twice the quota.
func changeLevels(t *testing.T, policy *throttler.Policy, sequence []consistency.Level) {
	r := testseed.Rand(t, 0)
	f := newFleet(t)
	const processes, most = 3, 12 // units in one take
	var all []*process
	for range processes {
		p := f.start()
		f.begin(p, policy, sequence[0])
		all = append(all, p)
	}
	o := &oracle{limit: policy.Limits[0], at: t0}
	over := 0.0
	var refunds []throttler.Decision
	// offer offers load for a while. At step i it calls do[i].
	offer := func(length time.Duration, do map[int]func()) {
		const step = 4 * time.Second
		for i := range int(length / step) {
			f.clock.Advance(step)
			if do[i] != nil {
				do[i]()
			}
			for _, p := range all { // each is asked about the key, and so learns its counts
				f.used(p, policy)
			}
			f.awaitSyncs(all...)
			now := f.clock.Now()
			p := all[r.IntN(processes)]
			for range 2 {
				units := 1 + r.Int64N(most)
				d, err := p.throttler.Take(context.Background(), costing(policy, units))
				if err != nil {
					t.Fatal(err)
				}
				if !d.Allowed {
					continue
				}
				o.admit(now, units)
				over = max(over, o.used-float64(policy.Limits[0].Capacity()))
				if r.IntN(20) == 0 {
					refunds = append(refunds, d)
				}
			}
		}
	}
	offer(80*time.Second, nil)
	for i, level := range sequence[1:] {
		was := sequence[i]
		do := map[int]func(){}
		for n, p := range all { // within a minute
			do[n*5+r.IntN(5)] = func() {
				f.set(p, policy, level)
				if len(refunds) > 0 { // of a decision under the old level
					d := refunds[0]
					refunds = refunds[1:]
					if _, err := p.throttler.Refund(context.Background(), d); err != nil {
						t.Error(err)
					}
					o.refund(&d)
				}
			}
		}
		kill := r.IntN(processes)
		do[25] = func() { // the new process starts after the change
			p := f.start()
			f.begin(p, policy, was)
			f.set(p, policy, level)
			all[kill] = p
		}
		offer(220*time.Second, do)
	}
	seconds := f.clock.Now().Sub(t0).Seconds()
	quota := float64(policy.Limits[0].Quota) / policy.Limits[0].Window.Seconds() * seconds
	t.Logf("admitted %d of %.0f, at most %.1f above the quota", o.total, quota, over)
	if over > 1 {
		t.Errorf("%.1f units above the quota were admitted; it is %v", over, policy.Limits[0])
	}
	if float64(o.total) < 0.8*quota {
		t.Errorf("%d units were admitted of %.0f", o.total, quota)
	}
}

// A change is complete when the old counts are no longer needed. Then they are not asked.
func TestChangeEnds(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	f.begin(p, window, consistency.Exact)
	f.take(p, costing(window, 60))
	f.set(p, window, consistency.Synced)
	if d := f.take(p, costing(window, 41)); d.Allowed {
		t.Errorf("after 60 of 100, 41 more: %v", d)
	}
	d := f.take(p, costing(window, 40))
	if !d.Allowed || d.Limit(0).Used != 100 {
		t.Errorf("after 60 of 100, 40 more: %v, want it allowed and 100 used", d)
	}
	if _, err := p.throttler.Refund(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if got := f.used(p, window); got != 60 {
		t.Errorf("after a refund %d are used, want 60", got)
	}
	f.clock.Advance(2 * time.Minute)
	takes := f.store.takes
	if d := f.take(p, costing(window, 100)); !d.Allowed || f.store.takes != takes {
		t.Errorf("the change is complete: %v, and the store was asked %d times; want it allowed by the synced counts", d, f.store.takes-takes)
	}
}

// Decisions are settled under another level than they were made in.
func TestSettlementsAcrossChanges(t *testing.T) {
	for _, m := range []struct{ from, to consistency.Level }{{consistency.Exact, consistency.Synced}, {consistency.Synced, consistency.Exact}, {consistency.Leased, consistency.Synced}, {consistency.Exact, consistency.Leased}} {
		t.Run(fmt.Sprint(m), func(t *testing.T) {
			f := newFleet(t)
			p := f.start()
			f.begin(p, hour, m.from)
			f.begin(p, window, consistency.Exact)
			var decisions []throttler.Decision
			for range 3 {
				d := f.take(p, costing(hour, 10), costing(window, 1))
				if !d.Allowed {
					t.Fatal(d)
				}
				decisions = append(decisions, d)
			}
			f.set(p, hour, m.to)
			if d := f.take(p, costing(hour, 21)); d.Allowed {
				t.Errorf("21 after 30 of 50: %v", d)
			}
			for i, cost := range []int64{0, 4, 15} { // 19 in all
				if _, err := p.throttler.Settle(t.Context(), decisions[i], cost, 1); err != nil {
					t.Fatal(err)
				}
			}
			if d := f.peek(p, costing(hour, 1)); d.Limit(0).Used != 19 {
				t.Errorf("%v after settlements at 19", d)
			}
			if d := f.take(p, costing(hour, 32)); d.Allowed {
				t.Errorf("32 after 19 of 50: %v", d)
			}
			if d := f.take(p, costing(hour, 31)); !d.Allowed {
				t.Errorf("31 after 19 of 50: %v", d)
			}
		})
	}
}

// A bucket that is always in use is as full after a change as before.
func TestBucketsAreFilled(t *testing.T) {
	for _, sequence := range [][]consistency.Level{{consistency.Exact, consistency.Synced}, {consistency.Synced, consistency.Exact}} {
		for _, policy := range []*throttler.Policy{bucket, several} {
			t.Run(fmt.Sprintf("%s/%v", policy.Name, sequence), func(t *testing.T) {
				f := newFleet(t)
				p := f.start()
				f.begin(p, policy, sequence[0])
				f.take(p, costing(policy, 60))
				f.set(p, policy, sequence[1])
				for range 125 { // seconds, through the change
					f.clock.Advance(time.Second)
					f.take(p, costing(policy, 1))
				}
				if s := p.table.State(policy.Name); f.clock.Now().Before(s.BothUntil) && policy == bucket {
					t.Fatalf("the change lasts until %v", s.BothUntil)
				}
				if got := f.used(p, policy); got < 56 {
					t.Errorf("%d are used of a bucket of 60 that was full all the time", got)
				}
			})
		}
	}
}

// A process that starts after a change finds the counts, whichever level it is given.
func TestStartsDuringAChange(t *testing.T) {
	f := newFleet(t)
	old := f.start()
	f.begin(old, hour, consistency.Synced)
	f.take(old, costing(hour, 40))
	f.awaitSyncs(old)
	f.set(old, hour, consistency.Exact)
	late := f.start()
	f.begin(late, hour, consistency.Synced) // the level before the change
	f.set(late, hour, consistency.Exact)
	f.peek(late, costing(hour, 1))
	f.awaitSyncs(late)
	admitted := []int64{0, 0}
	for i, p := range []*process{late, old} {
		for range 50 {
			if d := f.take(p, costing(hour, 1)); d.Allowed {
				admitted[i]++
			}
		}
		f.awaitSyncs(old, late)
	}
	if sum := admitted[0] + admitted[1]; sum != 10 || !slices.Contains(admitted, 10) {
		t.Errorf("%v were admitted after 40 of 50", admitted)
	}
}

// A policy that is Exact by default changes like any other.
func TestFirstSet(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	f.take(p, costing(hour, 50))
	f.set(p, hour, consistency.Synced)
	if d := f.take(p, costing(hour, 1)); d.Allowed {
		t.Errorf("1 after 50 of 50: %v", d)
	}
}

// A refund that was not sent is made again, and returns its units once.
func TestRefundsThatAreMadeAgain(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	f.begin(p, hour, consistency.Synced)
	first := f.take(p, costing(hour, 10), costing(window, 10))
	f.take(p, costing(hour, 40), costing(window, 40))
	f.store.unsent = true
	for range 3 {
		if _, err := p.throttler.Refund(t.Context(), first); !errors.Is(err, driver.ErrNotSent) {
			t.Fatalf("Refund: %v, want ErrNotSent", err)
		}
	}
	f.store.unsent = false
	if _, err := p.throttler.Refund(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if d := f.peek(p, costing(hour, 1), costing(window, 1)); d.Limit(0).Used != 40 || d.Limit(1).Used != 40 {
		t.Errorf("%v after a refund of 10 of 50, want 40 and 40 used", d)
	}
}

// A settlement at a higher cost that could not be sent to the store, which decides by then, is made
// again, and charges each count once.
func TestHigherCostsThatAreSettledAgain(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	f.begin(p, hour, consistency.Synced)
	d := f.take(p, costing(hour, 10))
	f.set(p, hour, consistency.Exact)
	f.store.unsent = true
	if _, err := p.throttler.Settle(t.Context(), d, 15); !errors.Is(err, driver.ErrNotSent) {
		t.Fatalf("Settle: %v, want ErrNotSent", err)
	}
	f.store.unsent = false
	if _, err := p.throttler.Settle(t.Context(), d, 15); err != nil {
		t.Fatal(err)
	}
	for want, counts := range map[int64]driver.Backend{15: p.soft, 5: f.store} {
		is, err := throttler.New(counts, &throttler.Options{Clock: f.clock}).Peek(t.Context(), costing(hour, 1))
		if err != nil || is.Limit(0).Used != want {
			t.Errorf("%T: %v, %v; want %d used", counts, &is, err, want)
		}
	}
}

// During a change, a refund returns to the counts that were charged if the store or the synced
// counts have no room for the key, and count it together with others.
func TestRefundsToPooledCountsDuringAChange(t *testing.T) {
	for _, full := range []consistency.Level{consistency.Exact, consistency.Synced} {
		f := newFleet(t)
		if f.syncedKeys = 64; full == consistency.Exact {
			memory, err := memorybackend.New(&memorybackend.Options{MaxKeys: 1})
			if err != nil {
				t.Fatal(err)
			}
			f.store.Backend, f.syncedKeys = memory, 0
		}
		p := f.start()
		f.begin(p, bucket, full)
		f.fill(p)
		f.set(p, hour, consistency.Synced)
		d := f.take(p, costing(hour, 50))
		if _, err := p.throttler.Refund(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		for _, counts := range []driver.Backend{p.soft, f.store} {
			is, err := throttler.New(counts, &throttler.Options{Clock: f.clock}).Take(t.Context(), costing(hour, 50))
			if err != nil || !is.Allowed {
				t.Errorf("the %v counts are full: after a refund of 50 of 50, %T: %v, %v; want 50 more", full, counts, &is, err)
			}
		}
	}
}

// A refund returns to the pooled count among the synced counts, even if the settlement charges
// these for another policy, too, because it has become Synced.
func TestRefundsToPooledCountsAfterAChange(t *testing.T) {
	f := newFleet(t)
	f.syncedKeys = 64
	p := f.start()
	f.begin(p, bucket, consistency.Synced)
	f.begin(p, hour, consistency.Synced)
	f.fill(p)
	d := f.take(p, costing(window, 1), costing(hour, 50))
	f.set(p, window, consistency.Synced)
	if _, err := p.throttler.Settle(t.Context(), d, 2, 0); err != nil {
		t.Fatal(err)
	}
	if d := f.take(p, costing(hour, 50)); !d.Allowed {
		t.Errorf("after a refund of 50 of 50: %v; want 50 more", &d)
	}
}

// fill uses up the bucket of new keys until each part of the table of the counts that it is
// counted in has only these.
func (f *fleet) fill(p *process) {
	f.Helper()
	for i := range 2000 {
		f.take(p, throttler.Charge{Policy: bucket, Key: fmt.Sprint("full-", i), Cost: 60})
	}
}
