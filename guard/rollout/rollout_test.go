package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/isolated"
	"github.com/open-feature/go-sdk/openfeature/memprovider"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

var t0 = time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.UTC)

var core = &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 20, Window: 10 * time.Second}}}

// watched counts the calls of a backend, and fails them on request.
type watched struct {
	handoff.Store
	breaker         *breaker.Breaker
	calls, releases atomic.Int64
	broken          atomic.Bool
}

var errBroken = fmt.Errorf("broken: %w", throttler.ErrUnavailable)

func newWatched(t *testing.T) *watched {
	w := &watched{Store: memorybackend.NewDefault()}
	w.breaker = newBreaker(t, func(context.Context) error { return w.err() })
	return w
}

func (w *watched) err() error {
	if w.broken.Load() {
		return errBroken
	}
	return nil
}

func (w *watched) Down(string) (since time.Time, down bool) { return w.breaker.Since() }

func (w *watched) TakeAt(ctx context.Context, r driver.Request, p *handoff.Placement) (driver.Decision, error) {
	return guarded(ctx, w.breaker, func() (d driver.Decision, err error) {
		w.calls.Add(1)
		if err = w.err(); err == nil {
			d, err = w.Store.TakeAt(ctx, r, p)
		}
		return d, err
	})
}

func (w *watched) Release(ctx context.Context, r handoff.ReleaseRequest) ([]handoff.Released, error) {
	return guarded(ctx, w.breaker, func() (all []handoff.Released, err error) {
		if !r.ReadOnly {
			w.calls.Add(1)
			w.releases.Add(1)
		}
		if err = w.err(); err == nil {
			all, err = w.Store.Release(ctx, r)
		}
		return all, err
	})
}

// pair is two backends, and a flag that processes see.
type pair struct {
	t        *testing.T
	old, new *watched
	clock    *clock.Manual
}

func newPair(t *testing.T) *pair {
	return &pair{t, newWatched(t), newWatched(t), clock.NewManual(t0)}
}

func (p *pair) both() map[string]handoff.Store {
	return map[string]handoff.Store{"old": p.old, "new": p.new}
}

// newPairAfterMove returns a pair after a process has moved alice from old to new, with one
// take before the move and one after it, and the reset-at of her window.
func newPairAfterMove(t *testing.T) (p *pair, reset time.Time) {
	p, reset = newPair(t), t0.Add(10*time.Second)
	q := p.process("old", rollout.Options{Refresh: time.Minute})
	q.take(t, 1, reset)
	q.see(t, "new")
	q.take(t, 2, reset)
	return p, reset
}

// A process shares the backends, and has its own view of the flag.
type process struct {
	*throttler.Throttler
	rollout *rollout.Backend
	flag    *provider
	wish    atomic.Value // string
}

func (p *pair) process(wish string, o rollout.Options) *process {
	p.t.Helper()
	return p.processWithClock(time.Now, wish, o)
}

// processWithClock returns a process whose clock differs from those of others.
func (p *pair) processWithClock(now func() time.Time, wish string, o rollout.Options) *process {
	p.t.Helper()
	q := &process{}
	q.wish.Store(wish)
	q.flag = &provider{
		value:  func(context.Context, string) openfeature.StringResolutionDetail { return says(q.wish.Load().(string)) },
		events: make(chan openfeature.Event),
	}
	var err error
	if q.rollout, err = rollout.NewWithClock(p.both(), "old", clientOf(p.t, q.flag), &o, now); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(q.rollout.Close)
	q.Throttler = throttler.New(q.rollout, &throttler.Options{Clock: p.clock})
	return q
}

// see sends the process an event with a new value, and returns when the process has
// handled it.
func (q *process) see(t *testing.T, wish string) {
	t.Helper()
	for begun := time.Now().UnixMilli() + 1; time.Now().UnixMilli() <= begun; { // later than other processes began
	}
	probe := func() int64 {
		if _, err := q.Peek(t.Context(), core.Charge("probe")); err != nil {
			t.Fatal(err)
		}
		return q.rollout.Stats().Evaluations
	}
	probe()
	q.wish.Store(wish)
	before := probe()
	q.flag.events <- openfeature.Event{EventType: openfeature.ProviderConfigChange, ProviderName: "test"}
	for deadline := time.Now().Add(time.Minute); probe() == before; {
		if time.Now().After(deadline) {
			t.Fatal("the event was not heard")
		}
	}
}

func (q *process) take(t *testing.T, wantUsed int64, wantReset time.Time) throttler.Decision {
	t.Helper()
	d, err := q.Take(t.Context(), core.Charge("alice"))
	if err != nil {
		t.Fatal(err)
	}
	if s := d.Limit(0); s.Used != wantUsed || !s.ResetAt.Equal(wantReset) {
		t.Errorf("used %d, reset %v; want %d, %v", s.Used, s.ResetAt, wantUsed, wantReset)
	}
	return d
}

func (p *pair) calls() (old, new int64) { return p.old.calls.Swap(0), p.new.calls.Swap(0) }

func (p *pair) wantCalls(t *testing.T, what string, wantOld, wantNew int64) {
	t.Helper()
	if old, new := p.calls(); old != wantOld || new != wantNew {
		t.Errorf("%s: %d calls of the old backend and %d of the new, want %d and %d", what, old, new, wantOld, wantNew)
	}
}

// TestMove follows one client through a flip and back, in two processes that
// see each at different moments, and counts the round trips.
func TestMove(t *testing.T) {
	p := newPair(t)
	first, second := p.process("old", rollout.Options{Refresh: time.Minute}), p.process("old", rollout.Options{Refresh: time.Minute})
	reset := t0.Add(10 * time.Second)

	first.take(t, 1, reset)
	p.wantCalls(t, "a client never seen: is it there, release it elsewhere, begin it", 2, 1)
	second.take(t, 2, reset)
	p.wantCalls(t, "another process finds it", 1, 0)
	taken := first.take(t, 3, reset)
	p.wantCalls(t, "steady", 1, 0)

	first.see(t, "new")
	p.clock.Advance(time.Second)
	first.take(t, 4, reset)
	p.wantCalls(t, "the first decision after the flip", 1, 2)
	first.take(t, 5, reset)
	p.wantCalls(t, "the second", 0, 1)
	second.take(t, 6, reset)
	p.wantCalls(t, "a process that has not seen the flip follows", 1, 1)
	second.take(t, 7, reset)
	p.wantCalls(t, "and remembers", 0, 1)
	d, err := second.Refund(t.Context(), taken)
	if err != nil || d.Limit(0).Used != 6 {
		t.Errorf("refund of what was charged before the flip: used %d, %v; want 6", d.Binding().Used, err)
	}
	p.wantCalls(t, "a refund", 0, 0) // it is neither a Take nor a Release
	second.see(t, "new")
	second.take(t, 7, reset)
	p.wantCalls(t, "the flip, seen late", 0, 1)

	second.see(t, "old")
	second.take(t, 8, reset)
	p.wantCalls(t, "back again", 2, 1)
	first.take(t, 9, reset)
	p.wantCalls(t, "the other follows", 1, 1)
	if d, err := first.Peek(t.Context(), core.Charge("alice")); err != nil || d.Limit(0).Used != 9 {
		t.Errorf("peek: used %d, %v; want 9", d.Binding().Used, err)
	}

	p.clock.Set(reset)
	first.take(t, 1, reset.Add(10*time.Second))
	p.wantCalls(t, "the next window", 1, 0)
	if s := first.rollout.Stats(); s.Moved != 1 || s.Followed != 1 || s.Lost != 0 || s.Served["old"] != 4 || s.Served["new"] != 2 {
		t.Errorf("stats of the first: %+v", s)
	}
}

// A process whose clock is behind moves a count with its first decision after a flip, although the
// last move has a later time.
func TestFlipSeenByAClockThatIsBehind(t *testing.T) {
	p, reset := newPair(t), t0.Add(10*time.Second)
	ahead := p.process("old", rollout.Options{Refresh: time.Minute})
	slow := func() time.Time { return time.Now().Add(-30 * time.Second) }
	behind := p.processWithClock(slow, "old", rollout.Options{Refresh: time.Minute})
	behind.take(t, 1, reset)
	ahead.see(t, "new")
	ahead.take(t, 2, reset)
	behind.take(t, 3, reset) // it follows the move, and learns its version
	behind.see(t, "new")
	behind.take(t, 4, reset)

	behind.see(t, "old")
	behind.take(t, 5, reset)
	if s := behind.rollout.Stats(); s.Moved != 1 {
		t.Errorf("%+v after the flip; want 1 move", s)
	}
	p.calls()
	behind.take(t, 6, reset)
	p.wantCalls(t, "the second decision after the flip", 1, 0)
	ahead.take(t, 7, reset) // it has not seen the flip, and follows
	p.wantCalls(t, "the decision of a process that has not seen the flip", 1, 1)
}

// A count that begins costs two calls more, unless its backend still has its own claim. A count
// that is found costs no more.
func TestWhatBeginningCosts(t *testing.T) {
	p := newPair(t)
	q := p.process("new", rollout.Options{Refresh: time.Minute})
	charge := func(window time.Duration, key string) {
		policy := &throttler.Policy{Name: fmt.Sprint("w", window), Limits: []throttler.Limit{{Quota: 5, Window: window}}}
		if _, err := q.Take(t.Context(), policy.Charge(key)); err != nil {
			t.Fatal(err)
		}
	}
	charge(time.Second, "bob")
	p.wantCalls(t, "it begins", 1, 2)
	charge(time.Second, "bob")
	p.wantCalls(t, "it is found", 0, 1)
	p.clock.Advance(time.Second)
	charge(time.Second, "bob")
	p.wantCalls(t, "its next window begins under its own claim", 0, 1)
}

func TestFlipWithoutAnEvent(t *testing.T) {
	p := newPair(t)
	q := p.process("old", rollout.Options{Refresh: 50 * time.Millisecond})
	reset := t0.Add(10 * time.Second)
	q.take(t, 1, reset)
	q.wish.Store("new")
	flipped := time.Now()
	for q.rollout.Stats().Served["new"] == 0 {
		if time.Since(flipped) > 10*time.Second {
			t.Fatal("the flip took no effect")
		}
		if _, err := q.Peek(t.Context(), core.Charge("alice")); err != nil {
			t.Fatal(err)
		}
		d, err := q.Take(t.Context(), core.Charge("alice"))
		if err != nil || !d.Limit(0).ResetAt.Equal(reset) {
			t.Fatalf("%v, reset %v, want %v", err, d.Binding().ResetAt, reset)
		}
	}
	if s := q.rollout.Stats(); s.Moved != 1 {
		t.Errorf("moved %d counts, want 1", s.Moved)
	}
}

func TestFlagProblems(t *testing.T) {
	fails := func(err openfeature.ResolutionError) func(context.Context, string) openfeature.StringResolutionDetail {
		return func(context.Context, string) openfeature.StringResolutionDetail {
			return openfeature.StringResolutionDetail{ProviderResolutionDetail: openfeature.ProviderResolutionDetail{ResolutionError: err}}
		}
	}
	hung := make(chan struct{})
	t.Cleanup(func() { close(hung) })
	for name, test := range map[string]struct {
		provider openfeature.FeatureProvider
		want     string
	}{
		"no provider":         {nil, "no value"},
		"unknown flag":        {&provider{value: fails(openfeature.NewFlagNotFoundResolutionError("gone"))}, "FLAG_NOT_FOUND"},
		"no string":           {&provider{value: fails(openfeature.NewTypeMismatchResolutionError("an int"))}, "TYPE_MISMATCH"},
		"no backend's name":   {&provider{value: func(context.Context, string) openfeature.StringResolutionDetail { return says("etcd") }}, "unknown backend"},
		"panic":               {&provider{value: func(context.Context, string) openfeature.StringResolutionDetail { panic("oops") }}, "panic"},
		"hangs":               {&provider{value: func(context.Context, string) openfeature.StringResolutionDetail { <-hung; return says("new") }}, "hangs"},
		"a flag of integers":  {inMemory("throttler-backend", 7), "TYPE_MISMATCH"},
		"another flag's name": {inMemory("throttler-backnd", "new"), "FLAG_NOT_FOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			b := newRollout(t, p.both(), "old", clientOf(t, test.provider), nil)
			th := throttler.New(b, &throttler.Options{Clock: p.clock})
			for range 3 {
				if _, err := th.Take(t.Context(), core.Charge("alice")); err != nil {
					t.Fatal(err)
				}
			}
			s := b.Stats()
			if s.Served["old"] != 3 || s.Served["new"] != 0 {
				t.Errorf("served %v, want all by the default, old", s.Served)
			}
			if s.Defaulted[test.want] < 1 || len(s.Defaulted) != 1 {
				t.Errorf("defaulted %v, want %q", s.Defaulted, test.want)
			}
		})
	}
}

// inMemory is the SDK's own provider, with one flag.
func inMemory(flag string, value any) openfeature.FeatureProvider {
	return memprovider.NewInMemoryProvider(map[string]memprovider.InMemoryFlag{
		flag: {State: memprovider.Enabled, DefaultVariant: "v", Variants: map[string]any{"v": value}},
	})
}

// A provider that takes the place of another is noticed by its event.
func TestProviderIsReplaced(t *testing.T) {
	p := newPair(t)
	api := isolated.NewAPI()
	t.Cleanup(func() { _ = api.Shutdown(context.Background()) })
	set := func(name string) {
		t.Helper()
		if err := api.SetProviderAndWait(t.Context(), inMemory(rollout.DefaultFlag, name)); err != nil {
			t.Fatal(err)
		}
	}
	set("old")
	b := newRollout(t, p.both(), "old", api.NewClient(), &rollout.Options{Refresh: time.Hour})
	if got := b.BackendFor(t.Context(), "alice"); got != "old" {
		t.Errorf("wanted on %s, want old", got)
	}
	th := throttler.New(b, &throttler.Options{Clock: p.clock})
	if _, err := th.Take(t.Context(), core.Charge("alice")); err != nil {
		t.Fatal(err)
	}
	set("new")
	for deadline := time.Now().Add(time.Minute); b.Stats().Served["new"] == 0; {
		if _, err := th.Take(t.Context(), core.Charge("alice")); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("the new provider took no effect")
		}
	}
}

// A backend that clients have to leave does not answer: their decisions fail for a while, then
// their windows restart. Other clients do not notice.
func TestAbandonedBackend(t *testing.T) {
	p := newPair(t)
	q := p.process("old", rollout.Options{Refresh: time.Minute, Abandon: 100 * time.Millisecond})
	reset := t0.Add(10 * time.Second)
	q.take(t, 1, reset)
	q.see(t, "new")
	p.old.broken.Store(true)
	p.clock.Advance(time.Second)
	for deadline := time.Now().Add(time.Minute); ; {
		d, err := q.Take(t.Context(), core.Charge("alice"))
		if err == nil {
			if d.Limit(0).Used != 1 || !d.Limit(0).ResetAt.Equal(reset.Add(time.Second)) {
				t.Errorf("used %d, reset %v; want a new window", d.Limit(0).Used, d.Limit(0).ResetAt)
			}
			break
		}
		if !errors.Is(err, throttler.ErrUnavailable) && !errors.Is(err, breaker.ErrOpen) || !strings.Contains(err.Error(), `"old"`) {
			t.Fatalf(`got %v, want an error of "old"`, err)
		}
		if time.Now().After(deadline) {
			t.Fatal("the old backend was not given up")
		}
	}
	if s := q.rollout.Stats(); s.Lost != 1 {
		t.Errorf("lost %d, want 1", s.Lost)
	}
	p.calls()
	for i := range 50 { // and it is not asked each time
		if _, err := q.Take(t.Context(), core.Charge(fmt.Sprint("client", i))); err != nil {
			t.Fatal(err)
		}
	}
	if old, _ := p.calls(); old > 5 {
		t.Errorf("the broken backend was asked %d times", old)
	}
}

// Without the flag, the backend alone continues from its counts, also from a count that is
// about to move.
func TestWithoutTheRollout(t *testing.T) {
	p, reset := newPairAfterMove(t)
	for backend, want := range map[*watched]int64{p.new: 3, p.old: 2} { // the old one remembers the count as it was
		d, err := throttler.New(backend, &throttler.Options{Clock: p.clock}).Take(t.Context(), core.Charge("alice"))
		if err != nil || d.Limit(0).Used != want || !d.Limit(0).ResetAt.Equal(reset) {
			t.Errorf("used %d, reset %v, %v; want %d, %v", d.Binding().Used, d.Binding().ResetAt, err, want, reset)
		}
	}
}

// Many clients under load, while the flag of three processes keeps changing: no
// client gets more than the quota, and no reset-at moves.
func TestNobodyGainsByMoving(t *testing.T) {
	const clients, rounds = 50, 40
	p := newPair(t)
	var all []*process
	for range 3 {
		all = append(all, p.process("old", rollout.Options{Refresh: time.Minute}))
	}
	var allowed [clients]atomic.Int64
	var wg sync.WaitGroup
	for i, q := range all {
		wg.Go(func() {
			for range rounds {
				for c := range clients {
					d, err := q.Take(t.Context(), core.Charge(fmt.Sprint("client", c)))
					if err != nil {
						t.Error(err)
						return
					}
					if d.Allowed {
						allowed[c].Add(1)
					}
					if !d.Limit(0).ResetAt.Equal(t0.Add(10 * time.Second)) {
						t.Errorf("reset %v", d.Limit(0).ResetAt)
					}
				}
			}
		})
		wg.Go(func() {
			for flip := range 10 {
				q.see(t, []string{"new", "old"}[(flip+i/2)%2])
			}
		})
	}
	wg.Wait()
	for c := range clients {
		if n := allowed[c].Load(); n != 20 {
			t.Errorf("client %d was allowed %d, want 20", c, n)
		}
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	m := memorybackend.NewDefault()
	one := map[string]handoff.Store{"a": m}
	many := map[string]handoff.Store{}
	for i := range rollout.MaxBackends + 1 {
		many[fmt.Sprint("b", i)] = m
	}
	c := clientOf(t, nil)
	for _, test := range []struct {
		backends    map[string]handoff.Store
		defaultName string
		options     *rollout.Options
		want        string
	}{
		{nil, "a", nil, "backends has 0 entries; it must have from 1 to 64"},
		{many, "b1", nil, "backends has 65 entries; it must have from 1 to 64"},
		{map[string]handoff.Store{"a": m, "": m}, "a", nil, `backends has the name ""; a name must be a value of the flag, such as "redis"`},
		{map[string]handoff.Store{"a": m, "b": nil}, "a", nil, `backends["b"] is nil; it must be a backend`},
		{one, "", nil, `defaultName is ""; it must be one of the names in backends: a`},
		{one, "b", nil, `defaultName is "b"; it must be one of the names in backends: a`},
		{one, "a", &rollout.Options{Refresh: -time.Second}, "Refresh is -1s; it must be positive, or 0 for 1s"},
		{one, "a", &rollout.Options{Keep: -1}, "Keep is -1ns; it must be positive, or 0 for 1m"},
		{one, "a", &rollout.Options{Abandon: -1}, "Abandon is -1ns; it must be positive, or 0 for 5s"},
		{one, "a", &rollout.Options{MaxKeys: -1}, "MaxKeys is -1; it must be positive, or 0 for 262144"},
	} {
		_, err := rollout.New(test.backends, test.defaultName, c, test.options)
		if want := "rollout: " + test.want; err == nil || err.Error() != want || !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("New did not panic without a client")
		}
	}()
	_, _ = rollout.New(one, "a", nil, nil)
}

// There are more clients at once than evaluations. All clients are served, also if the provider
// hangs.
func TestManyEvaluationsAtOnce(t *testing.T) {
	p := newPair(t)
	var hang atomic.Bool
	hung := make(chan struct{})
	t.Cleanup(func() { close(hung) })
	b := newRollout(t, p.both(), "old", clientOf(t, &provider{value: func(context.Context, string) openfeature.StringResolutionDetail {
		if hang.Load() {
			<-hung
		}
		return says("new")
	}}), nil)
	th := throttler.New(b, &throttler.Options{Clock: p.clock})
	crowd := func(prefix string) {
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if _, err := th.Take(ctx, core.Charge(fmt.Sprint(prefix, i))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	crowd("a")
	if s := b.Stats(); s.Served["new"]+s.Defaulted["hangs"] != 500 {
		t.Errorf("%+v", s)
	}
	hang.Store(true)
	before := b.Stats().Served["old"]
	crowd("b")
	if s := b.Stats(); s.Served["old"]-before != 500 {
		t.Errorf("%+v, want 500 more by the default", s)
	}
}

// A process that does not know the backend that a count went to continues from the
// copy in the backend that it knows.
func TestCountWentToAnUnknownBackend(t *testing.T) {
	p, reset := newPairAfterMove(t)
	for _, wish := range []string{"old", "third"} {
		known := map[string]handoff.Store{"old": p.old, "third": memorybackend.NewDefault()}
		b := newRollout(t, known, "old", clientOf(t, inMemory(rollout.DefaultFlag, wish)), nil)
		d, err := throttler.New(b, &throttler.Options{Clock: p.clock}).Take(t.Context(), core.Charge("alice"))
		if err != nil || d.Limit(0).Used < 2 || !d.Limit(0).ResetAt.Equal(reset) {
			t.Errorf("%s: used %d, reset %v, %v; want the window that was released", wish, d.Binding().Used, d.Binding().ResetAt, err)
		}
	}
}

// Two processes with flags that never agree fetch or follow, and count once.
func TestLastingDisagreement(t *testing.T) {
	p := newPair(t)
	first := p.process("old", rollout.Options{Keep: time.Millisecond, Refresh: time.Millisecond})
	second := p.process("new", rollout.Options{Keep: time.Millisecond, Refresh: time.Millisecond})
	reset := t0.Add(10 * time.Second)
	used := int64(0)
	for began := time.Now(); time.Since(began) < 100*time.Millisecond; {
		for _, q := range []*process{first, second} {
			used++
			q.take(t, min(used, 20), reset)
		}
	}
	if a, b := first.rollout.Stats(), second.rollout.Stats(); a.Moved+a.Followed+b.Moved+b.Followed == 0 {
		t.Error("no count moved or was followed: the test tests nothing")
	}
}
