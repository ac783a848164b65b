package leased_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-go/weir/fleet/leased"
	"github.com/weir-go/weir/internal/testkit/plot"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
)

var plots = flag.String("plots", "", "the directory to write the simulation's plot to, such as ../../docs/consistency")

// The simulation of docs/consistency.md: what the store has charged is never less than what the
// processes have admitted, and the difference is what they hold.
func TestPlot(t *testing.T) {
	const length, every, offered, processes = 3 * time.Second, 10 * time.Millisecond, 1600, 8
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1000, Window: time.Second, Aligned: true}}}
	charge := policy.Charge("alice")
	f, r := newFleet(t, processes, leased.Options{}), testseed.Rand(t, 0)
	store := throttler.New(f.store, &throttler.Options{Clock: f.clock})
	charged := plot.Series{Name: "charged by the store", Class: plot.Plain}
	admitted := plot.Series{Name: "admitted", Class: plot.Ours}
	decisions, inWindow := 0, 0
	next := time.Duration(r.ExpFloat64() / offered * float64(time.Second))
	for at := time.Duration(0); at < length; at += every {
		if at%time.Second == 0 {
			inWindow = 0
		}
		for ; next < at+every; next += time.Duration(r.ExpFloat64() / offered * float64(time.Second)) {
			f.clock.Set(t0.Add(next))
			d, err := f.processes[r.IntN(processes)].throttler.Take(context.Background(), charge)
			if err != nil {
				t.Fatal(err)
			}
			decisions++
			if d.Allowed {
				inWindow++
			}
		}
		d, err := store.Peek(context.Background(), charge)
		if err != nil {
			t.Fatal(err)
		}
		used := d.Limit(0).Used
		if int64(inWindow) > used || used > 1000 {
			t.Errorf("after %v, %d are admitted, and %d charged; want at most so many, and at most 1000", at, inWindow, used)
		}
		for s, n := range map[*plot.Series]float64{&charged: float64(used), &admitted: float64(inWindow)} {
			s.X, s.Y = append(s.X, (at+every).Seconds()), append(s.Y, n)
		}
		if (at+every)%(50*time.Millisecond) == 0 {
			for _, p := range f.processes {
				p.backend.Sweep()
			}
		}
	}
	calls := int64(0)
	for _, p := range f.processes {
		calls += p.backend.Stats().Asked
	}
	if *plots == "" {
		return
	}
	figure := plot.Figure{
		Title:    "8 processes lease a quota of 1,000 in each second",
		Subtitle: fmt.Sprintf("Units of the window, simulated: 1,600 requests a second are offered; %d decisions took %d calls to the store", decisions, calls),
		Columns:  1, PanelHeight: 240,
		Panels: []plot.Panel{plot.Timeline{
			Title: "What is charged before it is admitted is held", Note: "the gap between the lines: leases that processes hold",
			Seconds: length.Seconds(), Series: []plot.Series{charged, admitted},
		}},
	}
	if err := os.WriteFile(filepath.Join(*plots, "leased.svg"), figure.SVG(), 0o644); err != nil {
		t.Fatal(err)
	}
}
