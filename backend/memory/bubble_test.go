package memorybackend_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/internal/testkit/skewed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// In a bubble of testing/synctest it is the year 2000, long before the process
// began. Claims expire there too.
func TestClaimsExpireInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memorybackend.NewDefault()
		here, p := handoff.IDOf("here"), &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Second}}}
		take := func(arrivals ...handoff.Arrival) error {
			c := p.Charge("alice")
			c.Partition = c.Key
			_, err := b.TakeAt(t.Context(), driver.NewRequest(time.Now().UnixMilli(), c),
				&handoff.Placement{Backend: here, Version: 1, Keep: time.Minute, Arrivals: arrivals})
			return err
		}
		if err := take(handoff.Arrival{Due: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if err := take(); err != nil {
			t.Errorf("under its claim: %v", err)
		}
		time.Sleep(time.Hour)
		if err := take(); !errors.As(err, new(*handoff.ElsewhereError)) {
			t.Errorf("an hour after its claim: %v; want the count missing", err)
		}
	})
}

// An arriving count written by processes with clocks that are years off ends no later than its
// limits allow, by this process's clock. Nothing else removes it: for decisions here it may be
// live for years.
func TestArrivalFromStrayClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memorybackend.NewDefault()
		counts := skewed.Counts(time.Now())
		most := time.Duration(0)
		take := func(i int, p *handoff.Placement) error {
			c := counts[i].Charge
			c.Key = fmt.Sprint("alice", i)
			c.Partition = c.Key
			d, err := b.TakeAt(t.Context(), driver.NewRequest(time.Now().UnixMilli(), c), p)
			if p == nil && !d.Allowed {
				t.Errorf("%s: refused", counts[i].Name)
			}
			return err
		}
		for i, s := range counts {
			most = max(most, s.Most)
			arrive := &handoff.Placement{Backend: 1, Version: 5, Keep: time.Minute, Arrivals: []handoff.Arrival{{Due: true, State: s.State, ReleaseVersion: 4}}}
			if err := take(i, arrive); err != nil {
				t.Fatal(err)
			}
		}
		if n := b.Stats().Keys; n != len(counts) {
			t.Fatalf("%d counts, want %d", n, len(counts))
		}
		time.Sleep(most + time.Hour + 3*algorithm.Margin)
		for i := range counts {
			if i%2 == 0 {
				if err := take(i, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		added, left := 0, len(counts)
		for left > (len(counts)+1)/2 && added < 1_000_000 { // new keys sweep
			for range 1000 {
				c := counts[0].Charge
				c.Key = fmt.Sprint("new", added)
				c.Partition = c.Key
				if _, err := b.Take(t.Context(), driver.NewRequest(time.Now().UnixMilli(), c)); err != nil {
					t.Fatal(err)
				}
				added++
			}
			left = b.Stats().Keys - added
		}
		if left != (len(counts)+1)/2 {
			t.Errorf("of %d counts that are over, %d are left; want the %d that were charged again", len(counts), left, (len(counts)+1)/2)
		}
	})
}

// So does a count that this process charged by a clock that is years ahead.
func TestTakeByAStrayClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memorybackend.NewDefault()
		c := quota.Charge{Policy: &quota.Policy{Name: "core", Limits: []quota.Limit{{Quota: 1, Window: time.Hour}}}, Key: "alice", Partition: "alice", Cost: 1}
		for _, test := range []struct {
			after, ahead time.Duration
			allowed      bool
		}{
			{0, 10 * 365 * 24 * time.Hour, true},
			{time.Minute, 0, false},
			{time.Hour + 3*algorithm.Margin, 0, true},
			{time.Minute, 0, false},
		} {
			time.Sleep(test.after)
			d, err := b.Take(t.Context(), driver.NewRequest(time.Now().Add(test.ahead).UnixMilli(), c))
			if err != nil || d.Allowed != test.allowed {
				t.Errorf("after %v, by a clock that is %v ahead: allowed %v, %v", test.after, test.ahead, d.Allowed, err)
			}
		}
	})
}

// New keys sweep all counts that have ended, even if there are more new keys than ended counts.
func TestSweepOfAGrowingTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memorybackend.NewDefault()
		take := func(name string, window time.Duration) {
			p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: window}}}
			c := p.Charge(name)
			c.Partition, c.Cost = c.Key, 1
			if _, err := b.Take(t.Context(), driver.NewRequest(time.Now().UnixMilli(), c)); err != nil {
				t.Fatal(err)
			}
		}
		const over, live = 1000, 20_000
		for i := range over {
			take(fmt.Sprint("over", i), time.Second)
		}
		time.Sleep(time.Minute)
		for i := range live {
			take(fmt.Sprint("live", i), time.Hour)
		}
		if n := b.Stats().Keys; n != live {
			t.Errorf("%d counts, want the %d that are live", n, live)
		}
	})
}
