package fallback_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

// reported counts failures.
type reported struct {
	observe.Nothing
	mu  sync.Mutex
	all map[observe.Failed]int
}

func (r *reported) Failed(e observe.Failed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = make(map[observe.Failed]int)
	}
	r.all[e]++
}

// want checks the failures reported since the last call.
func (r *reported) want(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for e, n := range r.all {
		got = append(got, fmt.Sprint(n, " ", e.Backend, "/", e.Shard, " ", e.Policy, ": ", e.Cause, ", ", e.Result))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("reported\n  %q\nwant\n  %q", got, want)
	}
	r.all = nil
}

// Takes that Open and Local decide are reported with the shard and the cause. Peeks are not
// requests, and a decision by Closed is an error of the take, which its caller reports.
func TestWhatIsReported(t *testing.T) {
	seen := &reported{}
	f := newFixture(t, 1, fallback.Options{Observer: seen, Policies: map[string]fallback.Choice{"local": fallback.Local, "closed": fallback.Closed}})
	limit := throttler.Limit{Quota: 2, Window: time.Hour}
	opened, counted, closed := policy("open", limit), policy("local", limit), policy("closed", limit)
	f.takes(0, 1, opened, "alice")
	seen.want(t)

	f.fail(refusing)
	f.takes(0, 1, opened, "alice")
	f.fail(down)
	f.takes(0, 2, opened, "alice")
	f.takes(0, 3, counted, "alice") // the last is refused
	if _, err := f.processes[0].Take(t.Context(), closed.Charge("alice")); err == nil {
		t.Error("closed: no error")
	}
	for _, p := range []*throttler.Policy{opened, counted} {
		if _, err := f.processes[0].Peek(t.Context(), p.Charge("alice")); err != nil {
			t.Error(err)
		}
	}
	seen.want(t,
		"1 flaky/a open: connection refused, served_without_limit",
		"2 flaky/a open: breaker open, served_without_limit",
		"3 flaky/a local: breaker open, decided_locally")

	f.recover()
	seen.want(t)
}

// Charges that are not handed over are reported: when a key makes room, or a process ends.
func TestWhatIsNotHandedOverIsReported(t *testing.T) {
	seen := &reported{}
	f := newFixture(t, 1, fallback.Options{Observer: seen, OnFailure: fallback.Local, MaxKeys: 2})
	f.fail(down)
	for _, key := range []string{"alice", "bob", "carol"} {
		f.takes(0, 1, core, key)
	}
	seen.want(t, "1 flaky/a core: not handed over, not_charged", "3 flaky/a core: breaker open, decided_locally")
	f.backends[0].Close()
	seen.want(t, "1 flaky/a : not handed over, not_charged")
	if s := f.backends[0].Stats(); s.Lost != 1 {
		t.Errorf("%+v; want one unit lost, of the key that made room", s)
	}
}

// asking is an observer that asks about the key of each failure.
type asking struct {
	observe.Nothing
	th     *throttler.Throttler
	failed atomic.Int64 // failures whose calls have returned
}

func (a *asking) Failed(e observe.Failed) {
	if _, err := a.th.Peek(context.Background(), core.Charge("alice")); err != nil {
		panic(err)
	}
	if e.Result == observe.ResultNotCharged {
		a.failed.Add(1)
	}
}

// An observer may ask about counts.
func TestAnObserverThatAsks(t *testing.T) {
	for name, do := range map[string]func(f *fixture){
		"a key makes room": func(f *fixture) {
			f.takes(0, 1, core, "bob")
		},
		"a hand-over with an unknown outcome": func(f *fixture) {
			f.fail(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 1, local)
			h := &held{f.flaky, make(chan struct{}, 1), make(chan error, 1)}
			h.fails <- lost.err
			seen := new(asking)
			f.backends[0] = open(t, h, &fallback.Options{OnFailure: fallback.Local, Processes: 1, MaxKeys: 1, Observer: seen})
			f.processes[0] = throttler.New(f.backends[0], &throttler.Options{Clock: f.clock})
			seen.th = f.processes[0]
			f.fail(down)
			f.takes(0, 1, core, "alice")
			do(f)
			eventually(t, "a failure was reported", func() bool { return seen.failed.Load() == 1 })
			f.fail(nil)
		})
	}
}
