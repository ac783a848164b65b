package synced

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/figure"
	"github.com/weir-go/weir/throttler"
)

var plots = flag.String("plots", "", "the directory to write the simulations' figures to, such as ../../docs/reference/consistency")

// bySecond returns a series of admitted requests a second, from counts in steps.
func bySecond(admitted []int, step time.Duration) figure.Series {
	s := figure.Series{Name: "admitted", Class: figure.Ours}
	for i, n := range admitted {
		s.X = append(s.X, (time.Duration(i) * step).Seconds())
		s.Y = append(s.Y, float64(n)/step.Seconds())
	}
	return s
}

// The simulations of docs/reference/consistency.md: a level rate, an echo after a spike, a spike
// that is shorter than a sync, and roots that fail.
func TestSequentialSimulations(t *testing.T) {
	const step = 500 * time.Millisecond
	limit := throttler.Limit{Quota: 50, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 500}
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{limit}}
	charge := policy.Charge("alice")
	drawn := figure.Figure{
		Title:    "300 processes and one quota of 50 a second",
		Subtitle: "Requests admitted a second, simulated: 100 a second are offered, each to a random process; burst 500, sync 1 s",
		Columns:  1, PanelHeight: 190,
	}
	for _, low := range []float64{1, 0.2} {
		f := newFleet(t, 300, 1, Options{Low: low, Sync: time.Second})
		choose := f.loads()["even"]
		level := f.offer(100, 40*time.Second, step, charge, choose)
		if n := sum(level[20:]); n < 1300 || n > 1700 {
			t.Errorf("low %v: %d were admitted in 30 s; the quota is 1500", low, n)
		}
		spike := f.offer(1000, 41*time.Second, step, charge, choose)
		echo := f.offer(100, 70*time.Second, step, charge, choose)
		if n := sum(level) + sum(spike) + sum(echo); n < 3500 || n > 4300 {
			t.Errorf("low %v: %d were admitted in 70 s; the quota is 3500, and the burst 500", low, n)
		}
		items := append(append(level, spike...), echo...)
		drawn.Panels = append(drawn.Panels, figure.Panel{
			Title:  fmt.Sprintf("Low %g", low),
			Note:   "a second of 1,000 requests a second at 40 s",
			Series: []figure.Series{bySecond(items, step)},
			Spans:  []figure.Span{{Name: "spike", From: 40, To: 41}},
		})
	}
	write(t, "level", drawn)

	// A spike shorter than a sync passes: no process has heard of the others.
	f := newFleet(t, 300, 1, Options{Sync: time.Second})
	f.advance(5 * time.Second)
	passed := sum(f.offer(3000, f.elapsed+100*time.Millisecond, step, charge, f.loads()["even"]))
	if passed < 200 {
		t.Errorf("%d of some 300 requests of a spike of 100 ms were admitted; want nearly all", passed)
	}

	drawn = figure.Figure{
		Title:    "Two roots, 8 processes, and a quota of 1,000 a second",
		Subtitle: "Requests admitted a second, simulated: 1,600 a second are offered; sync 100 ms",
		Columns:  1, PanelHeight: 190,
	}
	f = newFleet(t, 8, 2, Options{})
	choose := f.loads()["even"]
	var admitted []int
	until := func(seconds int) {
		n := f.offer(1600, time.Duration(seconds)*time.Second, step, perSecond.Charge("alice"), choose)
		admitted = append(admitted, n...)
	}
	until(10)
	f.roots[0].flush()
	until(20)
	f.roots[0].down = true
	until(30)
	f.roots[1].down = true
	until(45)
	f.roots[0].down, f.roots[1].down = false, false
	until(60)
	drawn.Panels = append(drawn.Panels, figure.Panel{
		Title: "Roots that fail", Note: "one loses its memory at 10 s and hangs from 20 s; the other hangs from 30 s; both are back at 45 s",
		Series: []figure.Series{bySecond(admitted, step)},
		Spans:  []figure.Span{{Name: "empty", From: 10, To: 10.5}, {Name: "one hangs", From: 20, To: 30, Color: 2}, {Name: "both hang", From: 30, To: 45, Color: 1}},
	})
	write(t, "roots", drawn)
}

func write(t *testing.T, name string, f figure.Figure) {
	t.Helper()
	if err := f.Write(*plots, name); err != nil {
		t.Fatal(err)
	}
}
