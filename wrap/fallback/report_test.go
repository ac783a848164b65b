package fallback_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/wrap/fallback"
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
