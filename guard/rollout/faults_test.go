package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// In each of these tests, a process that believes its last view would give a client a fresh
// window, or keep it out. The tests run in virtual time.

// flagged is a process with a flag that the test sets, with events and without.
type flagged struct {
	openfeature.IClient
	*throttler.Throttler
	rollout  *rollout.Backend
	value    atomic.Value // string
	fails    atomic.Bool
	handlers []openfeature.EventCallback
}

func newFlagged(t *testing.T, value string, backends map[string]handoff.Store, o rollout.Options) *flagged {
	f := &flagged{}
	f.value.Store(value)
	f.rollout = newRollout(t, backends, "old", f, &o)
	f.Throttler = throttler.New(f.rollout, nil)
	return f
}

func (f *flagged) AddHandler(e openfeature.EventType, h openfeature.EventCallback) {
	if e == openfeature.ProviderConfigChange {
		f.handlers = append(f.handlers, h)
	}
}

func (f *flagged) RemoveHandler(openfeature.EventType, openfeature.EventCallback) {}

func (f *flagged) StringValueDetails(_ context.Context, _, unset string, _ openfeature.EvaluationContext, _ ...openfeature.Option) (openfeature.StringEvaluationDetails, error) {
	if f.fails.Load() {
		return openfeature.StringEvaluationDetails{Value: unset}, fmt.Errorf("no answer")
	}
	return openfeature.StringEvaluationDetails{Value: f.value.Load().(string)}, nil
}

func (f *flagged) flip(value string) {
	f.value.Store(value)
	for _, h := range f.handlers {
		(*h)(openfeature.EventDetails{})
	}
}

// allowed takes until a refusal, and returns the number of allowed takes.
func (f *flagged) allowed(t *testing.T, charges ...throttler.Charge) int {
	t.Helper()
	for n := 0; ; n++ {
		d, err := f.Take(t.Context(), charges...)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			return n
		}
	}
}

func want(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %d were allowed, want %d", what, got, want)
	}
}

var hourly = &throttler.Policy{Name: "hourly", Limits: []throttler.Limit{{Quota: 5, Window: time.Hour}}}

// mortal is a backend of two shards that can fail, or hang, each by itself.
type mortal struct {
	handoff.Store
	breakers [2]*breaker.Breaker
	dead     [2]atomic.Bool
	hangs    atomic.Bool // when dead
	calls    atomic.Int64
}

func newMortal(t *testing.T) *mortal {
	m := &mortal{Store: memorybackend.NewDefault()}
	for shard := range m.breakers {
		m.breakers[shard] = newBreaker(t, func(context.Context) error {
			if m.dead[shard].Load() {
				return errBroken // at once, also if it hangs: see explore_test.go about goroutines
			}
			return nil
		})
	}
	return m
}

func (m *mortal) Down(partition string) (since time.Time, down bool) {
	return m.breakers[shardOf(partition)].Since()
}

func shardOf(partition string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(partition))
	return int(h.Sum32() % 2)
}

func (m *mortal) err(ctx context.Context, shard int) error {
	switch {
	case !m.dead[shard].Load():
		return nil
	case m.hangs.Load():
		<-ctx.Done()
		return ctx.Err()
	}
	return errBroken
}

func (m *mortal) TakeAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	shard := shardOf(r.Charges()[0].Partition)
	return guarded(ctx, m.breakers[shard], func() (d driver.Decision, err error) {
		m.calls.Add(1)
		if err = m.err(ctx, shard); err == nil {
			d, err = m.Store.TakeAt(ctx, r, p)
		}
		return d, err
	})
}

func (m *mortal) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	shard := shardOf(r.Charges[0].Partition)
	if r.ServerTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.ServerTime)
		defer cancel()
	}
	return guarded(ctx, m.breakers[shard], func() (all []handoff.Released, err error) {
		m.calls.Add(1)
		if err = m.err(ctx, shard); err == nil {
			all, err = m.Store.Release(ctx, r)
		}
		return all, err
	})
}

func (m *mortal) die(both bool) {
	m.dead[0].Store(true)
	m.dead[1].Store(both)
}

// clientOn returns the n-th key with counts in that shard.
func clientOn(shard, n int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("client", i); shardOf(key) == shard {
			if n--; n < 0 {
				return key
			}
		}
	}
}

// oldAndNew runs a test with two backends in virtual time.
func oldAndNew(t *testing.T, f func(t *testing.T, old, new *mortal, both map[string]handoff.Store)) {
	synctest.Test(t, func(t *testing.T) {
		old, new := newMortal(t), newMortal(t)
		f(t, old, new, map[string]handoff.Store{"old": old, "new": new})
	})
}

// Two processes see one flip at different times. The process that follows a shared count does
// not know where the members' own counts are.
func TestFlipAndMembersOfAPartition(t *testing.T) {
	oldAndNew(t, func(t *testing.T, _, _ *mortal, both map[string]handoff.Store) {
		a := newFlagged(t, "old", both, rollout.Options{Refresh: time.Minute})
		b := newFlagged(t, "old", both, rollout.Options{Refresh: time.Minute})
		acme := &throttler.Policy{Name: "acme", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour}}}
		member := func(i int) []throttler.Charge {
			return []throttler.Charge{acme.Charge("acme"), hourly.Charge(fmt.Sprint("member", i))}
		}
		time.Sleep(3 * time.Hour) // the flag has not changed for long
		for i := range 10 {
			want(t, "before the flip", b.allowed(t, member(i)...), 5)
		}
		a.flip("new")
		if _, err := a.Take(t.Context(), acme.Charge("acme")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		for i := range 10 {
			want(t, fmt.Sprint("member ", i, " by the process that follows"), b.allowed(t, member(i)...), 0)
		}
		b.flip("new")
		for i := range 10 {
			want(t, fmt.Sprint("member ", i, " by the other"), a.allowed(t, member(i)...), 0)
		}
	})
}

// A take of several counts ends, although one of them is moved while the others
// are on their way. The hook moves one at each release.
func TestSeveralCountsDoNotAlternate(t *testing.T) {
	oldAndNew(t, func(t *testing.T, old, new *mortal, both map[string]handoff.Store) {
		a := newFlagged(t, "old", both, rollout.Options{})
		b := newFlagged(t, "new", both, rollout.Options{})
		x, y := hourly.Charge("x"), hourly.Charge("y")
		x.Partition, y.Partition = "p", "p"
		for range 2 {
			if _, err := a.Take(t.Context(), x); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Take(t.Context(), y); err != nil {
				t.Fatal(err)
			}
			old.calls.Store(0)
			new.calls.Store(0)
			d, err := a.Take(t.Context(), x, y)
			if err != nil || !d.Allowed {
				t.Fatal(d.Allowed, err)
			}
			if n := old.calls.Load() + new.calls.Load(); n > 6 {
				t.Errorf("%d calls for one decision, want at most 6", n)
			}
			a, b = b, a
		}
		if d, _ := a.Peek(t.Context(), x, y); d.Limit(0).Used != 4 || d.Limit(1).Used != 4 {
			t.Errorf("used %d and %d, want 4 and 4", d.Limit(0).Used, d.Limit(1).Used)
		}
	})
}

// An arrival that was not stored, because another count of the take was moved in
// the meantime, is asked for again.
func TestArrivalThatWasNotStored(t *testing.T) {
	backend := memorybackend.NewDefault()
	now := t0.Truncate(time.Millisecond)
	x, y := hourly.Charge("x"), hourly.Charge("y")
	x.Partition, y.Partition, x.Cost, y.Cost = "p", "p", 1, 1
	_, err := backend.Release(t.Context(), handoff.ReleaseRequest{Now: now.UnixMilli(), Charges: []throttler.Charge{y}, To: 7, Version: 9, Keep: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	_, err = backend.TakeAt(t.Context(), driver.NewRequest(now.UnixMilli(), x, y), &handoff.Placement{
		Backend: 1, Version: 5, Keep: time.Minute, Arrivals: []handoff.Arrival{{Due: true}, {Due: true}},
	})
	var away *handoff.ElsewhereError
	if !errors.As(err, &away) || away.Counts[0] != (handoff.Location{Missing: true}) || away.Counts[1] != (handoff.Location{Owner: 7, Version: 9}) {
		t.Errorf("got %v, %+v; want the first missing and the second elsewhere", err, away)
	}
}

// The flag is rolled back hours later, by a process that saw none of it.
func TestRollbackHoursLater(t *testing.T) {
	oldAndNew(t, func(t *testing.T, _, _ *mortal, both map[string]handoff.Store) {
		for i, o := range []rollout.Options{{}, {Refresh: time.Minute}} {
			alice := hourly.Charge(fmt.Sprint("alice", i))
			a := newFlagged(t, "old", both, o)
			b := newFlagged(t, "old", both, o)
			want(t, "at first", b.allowed(t, alice), 5)
			time.Sleep(2 * time.Hour)
			a.flip("new")
			want(t, "by the process that sees the flip", a.allowed(t, alice), 5)
			time.Sleep(30 * time.Minute)
			a.flip("old")
			b.flip("old")
			want(t, "after the rollback, by one that saw nothing", b.allowed(t, alice), 0)
			time.Sleep(2 * time.Hour)
			want(t, "in the next window", b.allowed(t, alice), 5)
			want(t, "in the next window, by the other", a.allowed(t, alice), 0)
		}
	})
}

// A value changes before its event is heard; then an evaluation fails.
func TestValueBeforeItsEvent(t *testing.T) {
	oldAndNew(t, func(t *testing.T, _, _ *mortal, both map[string]handoff.Store) {
		a := newFlagged(t, "old", both, rollout.Options{Refresh: time.Minute})
		time.Sleep(3 * time.Hour)
		alice, bob := hourly.Charge("alice"), hourly.Charge("bob")
		want(t, "alice at first", a.allowed(t, alice), 5)
		a.value.Store("new")
		want(t, "bob, on new", a.allowed(t, bob), 5)
		a.flip("new")
		want(t, "alice, after the event", a.allowed(t, alice), 0)
		time.Sleep(2 * time.Minute)
		a.fails.Store(true)
		want(t, "alice, with an evaluation that fails", a.allowed(t, alice), 0)
		want(t, "bob, with an evaluation that fails", a.allowed(t, bob), 0)
		a.fails.Store(false)
		time.Sleep(2 * time.Minute)
		want(t, "alice, afterwards", a.allowed(t, alice), 0)
	})
}

// A window that ended here long ago, and was never released, hides nothing.
func TestDeadLeftover(t *testing.T) {
	oldAndNew(t, func(t *testing.T, old, _ *mortal, both map[string]handoff.Store) {
		alice := hourly.Charge("alice")
		want(t, "before there was a rollout", throttlerAllowed(t, throttler.New(old.Store, nil), alice), 5)
		time.Sleep(time.Hour - time.Millisecond)
		a := newFlagged(t, "new", both, rollout.Options{})
		time.Sleep(time.Millisecond) // the window has ended, and old still has it
		want(t, "on new", a.allowed(t, alice), 5)
		time.Sleep(2 * time.Minute) // old has forgotten that the count went to new
		a.flip("old")
		time.Sleep(2 * time.Second)
		want(t, "back on old", a.allowed(t, alice), 0)
	})
}

func throttlerAllowed(t *testing.T, th *throttler.Throttler, c throttler.Charge) int {
	f := &flagged{Throttler: th}
	return f.allowed(t, c)
}

// A backend that clients have to leave is abandoned 5 s after three requests in a row have
// opened its breaker, however rare they are. Counts on its other shard are not lost.
func TestAbandonedByTheClock(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		oldAndNew(t, func(t *testing.T, old, _ *mortal, both map[string]handoff.Store) {
			a := newFlagged(t, "old", both, rollout.Options{Refresh: time.Minute})
			lost, kept := hourly.Charge(clientOn(0, 0)), hourly.Charge(clientOn(1, 0))
			want(t, "at first", a.allowed(t, lost), 5)
			want(t, "at first", a.allowed(t, kept), 5)
			old.hangs.Store(hangs)
			old.die(false)
			a.flip("new")
			failed := 0
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				if _, err := a.Take(ctx, lost); err != nil {
					failed++
				}
				cancel()
				time.Sleep(3 * time.Second)
			}
			if failed > 4 {
				t.Errorf("hangs %t: %d of 100 failed in 300 s, want the three that open the breaker, and those of the 5 s after", hangs, failed)
			}
			want(t, "on the shard that lives", a.allowed(t, kept), 0)
			if s := a.rollout.Stats(); s.Lost != 1 {
				t.Errorf("lost %d counts, want 1", s.Lost)
			}
		})
	}
}

// After a rollback from a backend that died, a process that met the client neither during the
// flip nor since moves it back.
func TestRollbackFromADeadBackend(t *testing.T) {
	oldAndNew(t, func(t *testing.T, _, new *mortal, both map[string]handoff.Store) {
		a := newFlagged(t, "old", both, rollout.Options{Refresh: time.Minute})
		b := newFlagged(t, "old", both, rollout.Options{Refresh: time.Minute})
		alice := hourly.Charge("alice")
		if _, err := a.Take(t.Context(), alice); err != nil {
			t.Fatal(err)
		}
		a.flip("new")
		if _, err := a.Take(t.Context(), alice); err != nil {
			t.Fatal(err)
		}
		new.die(true)
		a.flip("old")
		failed := 0
		for range 700 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if _, err := b.Take(ctx, alice); err != nil {
				failed++
			}
			cancel()
			time.Sleep(5 * time.Second)
		}
		if failed > 4 {
			t.Errorf("%d of 700 failed over 58 minutes, want the three that open the breaker, and those of the 5 s after", failed)
		}
	})
}

// A dead candidate that nothing has named costs clients only a part of three decisions' time
// for each of its two shards, until their breakers open.
func TestDeadCandidate(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		oldAndNew(t, func(t *testing.T, _, new *mortal, both map[string]handoff.Store) {
			new.hangs.Store(hangs)
			new.die(true)
			a := newFlagged(t, "old", both, rollout.Options{Refresh: time.Minute})
			slow := 0
			for i := range 60 {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				if _, err := a.Take(ctx, hourly.Charge(fmt.Sprint("newcomer", i))); err != nil {
					t.Errorf("hangs %t: newcomer %d: %v", hangs, i, err)
				}
				cancel()
				if time.Since(began) > 0 {
					slow++
				}
				time.Sleep(17 * time.Second)
			}
			if slow > 6 {
				t.Errorf("hangs %t: %d of 60 waited, want three for each shard", hangs, slow)
			}
			if s := a.rollout.Stats(); s.Lost != 0 {
				t.Errorf("lost %d, want none: it never had a count", s.Lost)
			}
		})
	}
}
