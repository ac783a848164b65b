package stats_test

import (
	"sync"
	"testing"

	"github.com/weir-go/weir/internal/stats"
)

// No change is lost, or seen in part.
func TestCounts(t *testing.T) {
	var counts stats.Counts[struct{ one, two int }]
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				counts.Change(func(c *struct{ one, two int }) { c.one++; c.two += 2 })
				if now := counts.Now(); now.two != 2*now.one {
					t.Errorf("%+v: one half of a change", now)
				}
			}
		})
	}
	wg.Wait()
	if now := counts.Now(); now.one != 400 {
		t.Errorf("%d changes of 400", now.one)
	}
}
