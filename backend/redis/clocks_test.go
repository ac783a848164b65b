package redisbackend_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

var clocksRuns = flag.Int("clocks-runs", 4, "random tests of clocks for each algorithm")

// Processes with clocks that differ by up to Margin, step back and forth and stop decide as
// over a store that never forgets: no key expires while it matters to any of them. No reset
// time moves back, and no key lives forever.
func TestSequentialClocksWithinMargin(t *testing.T) {
	spread := algorithm.Margin - time.Second // the test takes some time itself
	runClocks(t, spread, func(r *clocksRun) {
		if !r.equal() {
			t.Fatalf("a store that never forgets decides otherwise:\n%s", r)
		}
		if r.back {
			t.Fatalf("the reset time has moved back:\n%s", r)
		}
	})
}

// Beyond Margin a count may be forgotten early, but nothing worse happens.
func TestSequentialClocksBeyondMargin(t *testing.T) {
	for _, spread := range []time.Duration{3 * algorithm.Margin, 2 * time.Hour, 50 * 365 * 24 * time.Hour} {
		runClocks(t, spread, func(*clocksRun) {})
	}
}

// A clocksRun is a run of random decisions about one count. Time passes for its key and for
// the processes' clocks.
type clocksRun struct {
	*rand.Rand
	t       *testing.T
	backend *redisbackend.Backend
	client  *redis.Client
	charge  throttler.Charge
	key     string

	spread time.Duration // of the clocks
	now    time.Time
	left   time.Duration // until the key expires; -1 if it does not
	clocks [3]struct {
		ahead   time.Duration
		stopped bool
	}

	model   algorithm.State // never forgets
	charged []driver.Decision
	reset   int64 // the latest
	back    bool  // a reset time was earlier than the latest
	debts   int64 // the most units charged beyond the quota

	what      string // the last call
	got, want driver.Decision
}

func runClocks(t *testing.T, spread time.Duration, check func(*clocksRun)) {
	t.Logf("clocks up to %v apart", spread)
	rng := testseed.Rand(t, 0)
	c := newClient(t, testserver.Redis(t).Addr)
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, nil)
	for _, a := range quota.Algorithms() {
		for i := range *clocksRuns {
			window := []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, time.Minute}[rng.IntN(4)]
			r := &clocksRun{
				Rand: rng, t: t, backend: b, client: c, spread: spread, now: time.UnixMilli(4e12),
				charge: policy(fmt.Sprintf("%v.%v.%d", spread, a, i), throttler.Limit{Quota: 1 + rng.Int64N(9), Window: window, Algorithm: a}).Charge("alice"),
			}
			r.charge.Partition = "alice"
			r.key = b.Locate(r.charge).Key
			for range 80 {
				r.step()
				r.readExpiry()
				r.checkExpiry()
				check(r)
				if t.Failed() {
					return
				}
			}
		}
	}
}

func (r *clocksRun) step() {
	window := r.charge.Policy.Limits[0].Window
	passes := time.Duration(r.Int64N(int64(window/3))) + 1
	if r.IntN(12) == 0 {
		passes = time.Duration(r.Int64N(int64(2*window + 2*algorithm.Margin)))
	}
	r.pass(passes.Truncate(time.Millisecond))
	i := r.IntN(len(r.clocks))
	switch c := &r.clocks[i]; r.IntN(20) {
	case 0: // it steps
		c.ahead = time.Duration(r.Int64N(int64(r.spread))) - r.spread/2
	case 1:
		c.ahead = r.spread/2 - 1
	case 2:
		c.ahead = -r.spread / 2
	case 3:
		c.stopped = !c.stopped
	}
	now := max(r.now.Add(r.clocks[i].ahead).UnixMilli(), 0)
	charge := r.charge
	charge.Cost = 1 + r.Int64N(min(3, charge.Policy.Limits[0].Quota))
	request := driver.NewRequest(now, charge)
	ctx, states := r.t.Context(), []*algorithm.State{&r.model}
	var err error
	switch op := r.IntN(10); {
	case op < 6:
		r.what = "take"
		r.got, err = r.backend.Take(ctx, request)
		r.want = algorithm.Take(request, states)
		if r.got.Allowed {
			r.charged = append(r.charged, r.got)
		}
		r.notice(r.got)
	case op < 8 || len(r.charged) == 0:
		r.what = "peek"
		r.got, err = r.backend.Peek(ctx, request)
		r.want = algorithm.Evaluate(request, states)
		r.notice(r.got)
	default:
		last := len(r.charged) - 1
		s := driver.Settlement{Now: now, Charged: r.charged[last], Costs: []int64{r.Int64N(6)}}
		r.charged = r.charged[:last]
		r.what = fmt.Sprintf("settlement at %d", s.Costs[0])
		r.got, err = r.backend.Settle(ctx, s)
		r.want = algorithm.Settle(s, states)
		r.reset = 0 // it may refund units
		r.debts += s.Costs[0]
	}
	r.what += fmt.Sprintf(" by process %d, %v ahead", i, r.clocks[i].ahead)
	if err != nil {
		r.t.Fatalf("%s: %v", r, err)
	}
}

// pass lets time pass for the clocks that have not stopped, and for the key.
func (r *clocksRun) pass(d time.Duration) {
	r.now = r.now.Add(d)
	for i := range r.clocks {
		if c := &r.clocks[i]; c.stopped {
			c.ahead = max(c.ahead-d, -r.spread/2)
		}
	}
	if r.left > 0 {
		r.left -= d
		r.client.PExpire(r.t.Context(), r.key, r.left) // an expiry in the past deletes it
	}
}

// readExpiry sets left to the time until the key expires, if the last decision has changed
// that. The time that the test itself takes does not count.
func (r *clocksRun) readExpiry() {
	const slow = 500 * time.Millisecond
	if left := r.client.PTTL(r.t.Context(), r.key).Val(); left < 0 || left > r.left || left < r.left-slow {
		r.left = left
	}
}

// notice records the reset time of an answer with used units.
func (r *clocksRun) notice(d driver.Decision) {
	if result := d.Results()[0]; result.Used > 0 {
		r.back = result.ResetAt < r.reset
		r.reset = max(r.reset, result.ResetAt)
	}
}

func (r *clocksRun) equal() bool {
	return r.got.Allowed == r.want.Allowed && reflect.DeepEqual(r.got.Results(), r.want.Results())
}

// checkExpiry fails the test if the key lives longer than its limit, debts and twice the
// margin allow, however far the clocks are apart.
func (r *clocksRun) checkExpiry() {
	r.t.Helper()
	l := r.charge.Policy.Limits[0]
	longest := 2*l.Window + time.Duration(r.debts)*l.Window/time.Duration(l.Quota) + min(r.spread, algorithm.Margin) + algorithm.Margin
	switch {
	case r.left == -1:
		r.t.Fatalf("the key lives for ever:\n%s", r)
	case r.left > longest:
		r.t.Fatalf("the key lives for %v, want at most %v:\n%s", r.left, longest, r)
	}
}

func (r *clocksRun) String() string {
	l := r.charge.Policy.Limits[0]
	return fmt.Sprintf("%d per %v, %v; %s\ngot  %v %+v\nwant %v %+v\nlatest reset %d", l.Quota, l.Window, l.Algorithm, r.what,
		r.got.Allowed, r.got.Results(), r.want.Allowed, r.want.Results(), r.reset)
}
