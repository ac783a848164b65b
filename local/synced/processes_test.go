package synced

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/figure"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

var realFor = flag.Duration("real-for", time.Second, "how long real processes are offered load, for each distribution; from 30s on, all distributions, within what is promised")

// promised reports whether the bounds are as documented. Otherwise they are wider, for a short
// run on a busy machine.
func promised() bool { return *realFor >= 30*time.Second }

// Real processes on a real server are offered 1.6 times the quota.
func TestRealProcesses(t *testing.T) {
	t.Parallel() // it waits most of the time
	server := testserver.Redis(t)
	const processes, quota = 8, 1000
	for _, limit := range []throttler.Limit{
		{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: quota / 4},
		{Quota: quota, Window: time.Second, Aligned: true},
	} {
		for _, load := range []string{"even", "one hot", "moving each second"} {
			if !promised() && load != map[bool]string{true: "even", false: "moving each second"}[limit.Aligned] {
				continue // TestSequentialFleetAdmitsTheQuota has them all
			}
			t.Run(fmt.Sprintf("%v/%s", limit, load), func(t *testing.T) {
				// A whole second, and one more to begin with.
				length := realFor.Truncate(time.Second) + time.Second
				j := job{Roots: []string{server.Addr}, Limit: limit, Key: t.Name(), Begin: soon(), For: length, Slot: time.Second}
				jobs := make([]job, processes)
				for i := range jobs {
					jobs[i] = j
					jobs[i].Rate = 1.6 * quota / processes
					switch {
					case load == "one hot" && i == 0:
						jobs[i].Rate = 1.6 * quota * 0.9
					case load == "one hot":
						jobs[i].Rate = 1.6 * quota * 0.1 / (processes - 1)
					case load == "moving each second":
						jobs[i].Rate, jobs[i].Of, jobs[i].Turn = 1.6*quota, processes, i
					}
				}
				reports := fleetOf(t, jobs)()
				total := total(reports)
				n, seconds := sum(total[1:]), len(total)-1
				off := 100 * (float64(n)/float64(quota*seconds) - 1)
				decision, pause := longest(reports)
				t.Logf("%+.2f %% of the quota in %d s, from %d to %d a second; the longest decision took %v, the longest pause %v",
					off, seconds, slices.Min(total[1:]), slices.Max(total[1:]), decision, pause)
				over, under := 25.0, -25.0
				if promised() {
					over, under = 1, -2
				}
				if judged(t, reports) && (off > over || off < under) {
					t.Errorf("%+.2f %% of the quota was admitted; want from %v to %v", off, under, over)
				}
			})
		}
	}
}

// One of two real roots loses its memory, then hangs; then both are killed, and come back
// empty. Eight processes are offered 1.6 times the quota all the time.
func TestRealRootsFail(t *testing.T) {
	t.Parallel() // it waits most of the time
	const processes, quota = 8, 1000
	step := time.Second // of the script, which has eight steps
	if promised() {
		step = 5 * time.Second
	}
	roots := []*testserver.RedisServer{testserver.Redis(t), testserver.Redis(t)}
	const slot = 500 * time.Millisecond
	limit := throttler.Limit{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: quota / 2}
	begin := soon()
	j := job{Limit: limit, Key: "alice", Begin: begin, For: 8 * step, Slot: slot, Rate: 1.6 * quota / processes}
	for _, r := range roots {
		j.Roots = append(j.Roots, r.Addr)
	}
	reports := fleetOf(t, slices.Repeat([]job{j}, processes))
	wait := func(n int) { time.Sleep(time.Until(begin.Add(time.Duration(n) * step))) }
	flush := redisClient(t, roots[0].Addr)
	wait(2)
	if err := flush.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	wait(3)
	roots[0].Pause()
	wait(5)
	roots[0].Kill()
	roots[1].Kill()
	wait(6)
	for _, r := range roots {
		if err := r.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	items := reports()
	admitted := total(items)
	perStep := int(step / slot)
	percent := func(from, to int) float64 {
		n := sum(admitted[from*perStep : to*perStep])
		return 100 * (float64(n)/(quota*float64(to-from)*step.Seconds()) - 1)
	}
	decision, pause := longest(items)
	t.Logf("a second: %v", admitted)
	t.Logf("%+.1f %% before, %+.1f %% after a flush, %+.1f %% while a root hangs, %+.1f %% without roots, %+.1f %% after; the longest decision took %v, the longest pause %v",
		percent(1, 2), percent(2, 3), percent(3, 5), percent(5, 6), percent(6, 8), decision, pause)
	wide := 25.0
	if promised() {
		wide = 5
	}
	for _, bound := range []struct {
		phase    string
		from, to int
		percent  float64
	}{
		{"before", 1, 2, wide}, {"after a flush", 2, 3, wide}, {"while a root hangs", 3, 5, wide},
		{"without roots", 5, 6, 15 + 60/step.Seconds()}, {"when they are back", 6, 8, 2 * wide},
	} {
		if off := percent(bound.from, bound.to); judged(t, items) && (off > bound.percent || off < -bound.percent) {
			t.Errorf("%+.1f %% of the quota %s", off, bound.phase)
		}
	}
	s := step.Seconds()
	write(t, "roots-real", figure.Figure{
		Title:    "Two Redis servers as roots, 8 processes, and a quota of 1,000 a second",
		Subtitle: "Requests admitted a second, measured: 1,600 a second are offered; sync 100 ms",
		Columns:  1, PanelHeight: 190,
		Panels: []figure.Panel{{
			Title: "Roots that fail", Note: fmt.Sprintf("one is flushed at %g s and stopped at %g s; both are killed at %g s, and are back, empty, at %g s", 2*s, 3*s, 5*s, 6*s),
			Series: []figure.Series{bySecond(admitted, slot)},
			Spans: []figure.Span{
				{Name: "empty", From: 2 * s, To: 2*s + 0.5}, {Name: "one stopped", From: 3 * s, To: 5 * s, Color: 2}, {Name: "both killed", From: 5 * s, To: 6 * s, Color: 1},
			},
		}},
	})
}

// A spike uses up a quota. The first process refuses within one sync, and all within two.
func TestRealSpike(t *testing.T) {
	t.Parallel() // it waits most of the time
	server := testserver.Redis(t)
	const processes, quota, slot = 8, 3000, 5 * time.Millisecond
	begin := soon()
	limit := throttler.Limit{Quota: quota, Window: 1000 * time.Hour, Aligned: true}
	j := job{Roots: []string{server.Addr}, Limit: limit, Key: "alice", Begin: begin, For: 2 * time.Second, Slot: slot, Rate: 10_000 / processes}
	reports := fleetOf(t, slices.Repeat([]job{j}, processes))()
	if !judged(t, reports) || !syncsInTime(t, reports) {
		return // a late process may have had no time to be refused
	}
	used, n := 0, 0 // slot in which the quota was used up
	for i, admitted := range total(reports) {
		if n += admitted; n >= quota {
			used = i
			break
		}
	}
	first, last := 1<<30, 0
	for i, r := range reports {
		if r.Refused < 0 {
			t.Fatalf("process %d has refused nothing; it was %v late, its longest decision took %v", i, r.Late, r.Longest)
		}
		first, last = min(first, r.Refused), max(last, r.Refused)
	}
	one, items := time.Duration(first-used)*slot, time.Duration(last-used)*slot
	t.Logf("%d of %d were admitted; the first process refused %v after the quota was used up, the last %v", sum(total(reports)), quota, one, items)
	late := 2 * slot
	if !promised() {
		late = 10 * DefaultSync
	}
	if one > DefaultSync+late || items > 2*DefaultSync+late {
		t.Errorf("the first process refused %v after the quota was used up, the last %v; want %v and %v", one, items, DefaultSync, 2*DefaultSync)
	}
}
