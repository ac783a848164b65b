package fallback_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// TestNothingIsLostOrDoubled takes and refunds from many goroutines while the backend fails and
// answers, always without having made the charge. In the end the backend counts exactly the
// units that were allowed and not refunded.
func TestNothingIsLostOrDoubled(t *testing.T) {
	day, hour := throttler.Limit{Quota: 3 << 40, Window: 24 * time.Hour}, throttler.Limit{Quota: 3 << 40, Window: time.Hour}
	t.Run("leased", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, 3, local)
		f.leased(local)
		nothingIsLostOrDoubled(f, policy("core", day, hour))
	})
	hour.Algorithm = throttler.SlidingWindow
	t.Run("exact", func(t *testing.T) {
		t.Parallel()
		nothingIsLostOrDoubled(newFixture(t, 3, local), policy("core", day, hour))
	})
}

func nothingIsLostOrDoubled(f *fixture, p *throttler.Policy) {
	t := f.T
	const keys = 5
	var allowed [keys]atomic.Int64
	var done atomic.Bool
	var all sync.WaitGroup
	for g := range 12 {
		all.Go(func() {
			for i := 0; !done.Load(); i++ {
				key := (g + i) % keys
				c := p.Charge(fmt.Sprint("key", key))
				c.Cost = int64(1 + i%3)
				process := f.processes[(g+i)%3]
				d, err := process.Take(t.Context(), c)
				if err != nil || !d.Allowed {
					t.Errorf("got %v, %v", d, err)
					return
				}
				allowed[key].Add(c.Cost)
				if i%7 == 0 { // a higher cost is charged, here or there
					if _, err := process.Settle(t.Context(), d, c.Cost+2); err == nil {
						allowed[key].Add(2)
					}
				}
				time.Sleep(500 * time.Microsecond)
			}
		})
	}
	for i := range 6 {
		f.fail([]*failure{down, refusing}[i%2])
		time.Sleep(100 * time.Millisecond)
		f.fail(nil)
		time.Sleep(time.Duration(i) * 150 * time.Millisecond) // from within to beyond the time of the hand-over
	}
	done.Store(true)
	all.Wait()
	f.recover()
	for _, l := range f.leases {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for key := range keys {
		if got, want := f.used(p, fmt.Sprint("key", key)), allowed[key].Load(); got != want {
			t.Errorf("key %d: the backend counts %d, and %d were allowed", key, got, want)
		}
	}
	for i, b := range f.backends {
		s := b.Stats()
		t.Logf("process %d: %+v", i, s)
		if s.Local == 0 || s.Lost != 0 {
			t.Errorf("process %d: got %+v, want local decisions, and nothing lost", i, s)
		}
	}
}
