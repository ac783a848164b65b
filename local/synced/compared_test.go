package synced

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/internal/testkit/figure"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
)

// request is the time and the process of a request in a stream.
type request struct {
	arrival time.Duration
	process int
}

// course contains the units of each window at the end of each step: the units that the store
// knew, and the admitted units.
type course struct {
	counted, admitted figure.Series
}

// The comparison of docs/reference/consistency.md: three processes decide the same stream of one key,
// leased and synced. Leased units are charged before they are admitted. Synced units are known
// afterwards.
func TestLeasedAndSyncedCompared(t *testing.T) {
	const processes, quota, offered = 3, 1000, 1600
	const length, step = 3 * time.Second, 10 * time.Millisecond
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Aligned: true}}}
	charge := policy.Charge("alice")
	random := testseed.Rand(t, 1)
	next := func() time.Duration { return time.Duration(random.ExpFloat64() / offered * float64(time.Second)) }
	var stream []request
	for arrival := next(); arrival < length; arrival += next() {
		stream = append(stream, request{arrival, random.IntN(processes)})
	}

	// play decides the stream, and records the units that the store knows after each step.
	play := func(counted string, throttlers []*throttler.Throttler, advance func(to time.Duration), used func() int) course {
		c := course{counted: figure.Series{Name: counted, Class: figure.Plain}, admitted: figure.Series{Name: "admitted", Class: figure.Ours}}
		waiting, admitted := stream, 0
		for end := step; end <= length; end += step {
			if (end-step)%time.Second == 0 {
				admitted = 0
			}
			for ; len(waiting) > 0 && waiting[0].arrival < end; waiting = waiting[1:] {
				advance(waiting[0].arrival)
				d, err := throttlers[waiting[0].process].Take(context.Background(), charge)
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed {
					admitted++
				}
			}
			advance(end - time.Nanosecond) // in the same window
			for s, n := range map[*figure.Series]int{&c.counted: used(), &c.admitted: admitted} {
				s.X, s.Y = append(s.X, end.Seconds()), append(s.Y, float64(n))
			}
		}
		return c
	}

	var leases course
	calls := int64(0)
	synctest.Test(t, func(t *testing.T) { // timers return leases
		begin, store := time.Now(), memorybackend.NewDefault()
		var throttlers []*throttler.Throttler
		for range processes {
			b, err := leased.New(store, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				calls += b.Stats().Asked
				if err := b.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			throttlers = append(throttlers, throttler.New(b, nil))
		}
		exact := throttler.New(store, nil)
		leases = play("charged by the store", throttlers, func(to time.Duration) { time.Sleep(time.Until(begin.Add(to))) }, func() int {
			d, err := exact.Peek(context.Background(), charge)
			if err != nil {
				t.Fatal(err)
			}
			return int(d.Limit(0).Used)
		})
	})
	for i, charged := range leases.counted.Y {
		if n := leases.admitted.Y[i]; n > charged || charged > quota {
			t.Errorf("leased, after %v s: %v are admitted, and %v charged; want at most so many, and at most %d", leases.counted.X[i], n, charged, quota)
		}
	}

	f := newFleet(t, processes, 1, Options{})
	var throttlers []*throttler.Throttler
	for _, p := range f.processes {
		throttlers = append(throttlers, p.throttler)
	}
	syncs := play("reported to the root", throttlers, f.advance, func() int {
		for _, c := range f.roots[0].counters { // one: the window, since the epoch, and its units
			if c[0] == float64(f.clock.Now().Unix()) {
				return int(c[1])
			}
		}
		return 0
	})
	for i, counted := range syncs.counted.Y {
		if n := syncs.admitted.Y[i]; counted > n || n > quota*1.05 {
			t.Errorf("synced, after %v s: %v are admitted, and %v known; want at least so many, and at most 5 %% above %d", syncs.counted.X[i], n, counted, quota)
		}
	}

	panel := func(title, note string, c course) figure.Panel {
		return figure.Panel{Title: title, Note: note, Top: 1.1 * quota, Series: []figure.Series{c.counted, c.admitted}}
	}
	write(t, "compared", figure.Figure{
		Title:    "The same requests, leased and synced",
		Subtitle: "Units of the window, simulated: 1,600 requests a second at 3 processes, a quota of 1,000 in each second",
		Columns:  1, PanelHeight: 250,
		Panels: []figure.Panel{
			panel("Leased", fmt.Sprintf("charged before it is admitted: the gap is what processes hold; %d decisions took %d calls", len(stream), calls), leases),
			panel("Synced", "admitted before it is reported: the gap is what no process has sent; each syncs ten times a second", syncs),
		},
	})
}
