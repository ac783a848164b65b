package shadow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/shadow"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// faulty fails some calls, before they have charged or afterwards.
type faulty struct {
	handoff.Store
	fails func() (before, after bool)
	calls atomic.Int64
}

func (f *faulty) TakeAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	f.calls.Add(1)
	before, after := f.fails()
	if before {
		return driver.Decision{}, errFailing
	}
	d, err := f.Store.TakeAt(ctx, r, p)
	if after {
		return driver.Decision{}, errFailing
	}
	return d, err
}

// A candidate that decides as the serving backend does is never seen to differ, whichever takes
// it was not shown and however often it failed.
func TestOutOfStepIsKnown(t *testing.T) {
	seed := testseed.Of(t)
	for _, algorithm := range []quota.Algorithm{throttler.FixedWindow, throttler.SlidingWindow, throttler.SlidingLog, throttler.TokenBucket, throttler.LeakyBucket} {
		rng := rand.New(rand.NewPCG(seed, uint64(algorithm)))
		candidate := &faulty{Store: memorybackend.NewDefault()}
		candidate.fails = func() (bool, bool) { n := rng.IntN(150); return n == 0, n == 1 }
		b := newShadow(t, memorybackend.NewDefault(), candidate, &shadow.Options{
			Workers: 1, Queue: 4096,
			OnDifference: func(serving, candidate decision.Decision) {
				t.Errorf("%v: serving %+v, candidate %+v", algorithm, serving, candidate)
			},
		})
		clk := clock.NewManual(t0)
		th := throttler.New(b, &throttler.Options{Clock: clk})
		p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Quota: 5, Window: 10 * time.Second, Algorithm: algorithm}}}
		pace := rand.New(rand.NewPCG(seed, 100))
		for i := range int64(1000) {
			clk.Advance(time.Duration(pace.IntN(1500)) * time.Millisecond)
			d, err := th.Take(t.Context(), p.Charge(fmt.Sprint("client", pace.IntN(4))))
			if err != nil {
				t.Fatal(err)
			}
			shown(t, b, i+1)
			if d.Allowed && pace.IntN(4) == 0 {
				if _, err := th.Refund(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
		}
		if s := b.Stats(); s.NotInStep == 0 || s.Failed == 0 || s.Agreed < 100 {
			t.Errorf("%v: %+v; want some failed, some not in step and many in agreement", algorithm, s)
		}
	}
}

// The memory for a client with a decision that the candidate missed does not grow with the
// length of its key.
func TestLongKeysOutOfStep(t *testing.T) {
	const keys, each = 4000, 300
	b := newShadow(t, memorybackend.NewDefault(), &faulty{Store: memorybackend.NewDefault(), fails: func() (bool, bool) { return true, false }}, nil)
	th := throttler.New(b, nil)
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5, Window: time.Hour}}}
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, long := heap(), strings.Repeat("x", 8000)
	for i := range keys {
		if _, err := th.Take(t.Context(), policy.Charge(fmt.Sprint(i, long))); err != nil {
			t.Fatal(err)
		}
		shown(t, b, int64(i)+1)
	}
	grown := (heap() - before) / keys
	t.Logf("%d bytes a key, with the serving backend's count", grown)
	if grown > each+300 {
		t.Errorf("%d bytes a key", grown)
	}
	runtime.KeepAlive(b)
}
