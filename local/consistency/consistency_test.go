package consistency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// t0 is where clocks start.
var t0 = time.Date(2030, 1, 2, 3, 0, 0, 0, time.UTC)

var (
	window  = &throttler.Policy{Name: "window", Limits: []throttler.Limit{{Quota: 100, Window: time.Minute, Aligned: true}}}
	bucket  = &throttler.Policy{Name: "bucket", Limits: []throttler.Limit{{Quota: 60, Window: time.Minute, Algorithm: throttler.TokenBucket, Burst: 60}}}
	hour    = &throttler.Policy{Name: "hour", Limits: []throttler.Limit{{Quota: 50, Window: time.Hour, Aligned: true}}}
	several = &throttler.Policy{Name: "several", Limits: []throttler.Limit{
		{Quota: 60, Window: time.Minute, Algorithm: throttler.TokenBucket, Burst: 60}, {Quota: 5000, Window: time.Hour, Aligned: true},
	}}
)

const syncEvery = 10 * time.Millisecond

// A fleet is processes with one store and one root, on a clock that the test moves. Syncs
// happen in real time, and the test waits for them.
type fleet struct {
	*testing.T
	clock      *clock.Manual
	store      *switchable
	root       *testserver.RedisServer
	syncedKeys int // synced.Options.MaxKeys
}

type process struct {
	backend   *consistency.Backend
	table     *consistency.Table
	soft      *synced.Backend
	throttler *throttler.Throttler
	policies  *policies.Table
}

// switchable is a store that does not answer while it is down.
type switchable struct {
	driver.Backend
	down         bool
	open         bool // it allows takes without counts
	apart        bool // it is asked about one partition after the other
	unsent       bool // settlements are not sent
	takes, peeks int
}

func (s *switchable) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if s.takes++; s.down {
		return driver.Decision{}, fmt.Errorf("down: %w", throttler.ErrUnavailable)
	}
	if s.open {
		return driver.Decision{Allowed: true, Degraded: true}, nil
	}
	return s.Backend.Take(ctx, r)
}

func (s *switchable) Joins(r driver.Request) bool { return !s.apart && driver.Joins(s.Backend, &r) }

func (s *switchable) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if s.peeks++; s.down {
		return driver.Decision{}, fmt.Errorf("down: %w", throttler.ErrUnavailable)
	}
	return s.Backend.Peek(ctx, r)
}

func (s *switchable) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	if s.unsent {
		return driver.Decision{}, &driver.UnavailableError{Backend: "levels_test", Shard: "a", Err: driver.ErrNotSent}
	}
	if s.apart && st.Charged.Request.IsSplit() {
		return driver.Decision{}, errors.New("a settlement of several partitions")
	}
	return s.Backend.Settle(ctx, st)
}

func newFleet(t *testing.T) *fleet {
	return &fleet{T: t, clock: clock.NewManual(t0), store: &switchable{Backend: memorybackend.NewDefault()}, root: testserver.Redis(t)}
}

func (f *fleet) start() *process {
	f.Helper()
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{f.root.Addr}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = client.Close() })
	soft, err := synced.New([]synced.Root{{Name: "root", Client: client}}, &synced.Options{Sync: syncEvery, MaxKeys: f.syncedKeys, Clock: f.clock})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(soft.Close)
	table, err := consistency.NewTable(&consistency.Options{Clock: f.clock})
	if err != nil {
		f.Fatal(err)
	}
	store, err := leased.New(f.store, &leased.Options{Clock: f.clock, Leases: table.Leases})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = store.Close(context.Background()) })
	backend, err := consistency.New(store, soft, table)
	if err != nil {
		f.Fatal(err)
	}
	inForce := new(policies.Table)
	return &process{backend, table, soft, throttler.New(backend, &throttler.Options{Clock: f.clock, Policies: inForce}), inForce}
}

// awaitSyncs returns once the root, and the processes that were asked about it, know all that
// processes have added.
func (f *fleet) awaitSyncs(processes ...*process) {
	f.Helper()
	for round := range 2 { // one to send, one to hear
		before := make([]int64, len(processes))
		for i, p := range processes {
			before[i] = p.soft.Stats().Syncs
		}
		deadline := time.Now().Add(time.Minute)
		for i, p := range processes {
			for p.soft.Stats().Syncs < before[i]+2-int64(round) { // one may have begun before
				if time.Now().After(deadline) {
					f.Fatal("no sync in a minute")
				}
				time.Sleep(syncEvery / 5)
			}
		}
	}
}

func (f *fleet) begin(p *process, policy *throttler.Policy, m consistency.Level) {
	f.Helper()
	if err := p.table.Begin(policy, m); err != nil {
		f.Fatal(err)
	}
}

func (f *fleet) set(p *process, policy *throttler.Policy, m consistency.Level) {
	f.Helper()
	if err := p.table.Set(policy, m); err != nil {
		f.Fatal(err)
	}
}

func (f *fleet) take(p *process, charges ...throttler.Charge) throttler.Decision {
	f.Helper()
	d, err := p.throttler.Take(context.Background(), charges...)
	if err != nil {
		f.Fatal(err)
	}
	return d
}

func (f *fleet) peek(p *process, charges ...throttler.Charge) throttler.Decision {
	f.Helper()
	d, err := p.throttler.Peek(context.Background(), charges...)
	if err != nil {
		f.Fatal(err)
	}
	return d
}

// used returns the units used of a policy's first limit.
func (f *fleet) used(p *process, policy *throttler.Policy) int64 {
	f.Helper()
	d := f.peek(p, costing(policy, 1))
	return d.Limit(0).Used
}

// costing returns a charge of alice.
func costing(p *throttler.Policy, cost int64) throttler.Charge {
	return throttler.Charge{Policy: p, Key: "alice", Cost: cost}
}

// While the store does not answer, a decision is about all of its charges, or about none, also
// if the throttler has to ask about one partition after the other.
func TestSeveralLevelsWithoutTheStore(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	f.begin(p, window, consistency.Synced)
	f.begin(p, hour, consistency.Exact)
	f.store.apart = true
	for _, others := range [][]throttler.Charge{nil, {window.Charge("bob")}} {
		f.store.down = true
		refused := append([]throttler.Charge{costing(window, 1000), costing(hour, 1)}, others...)
		for verb, d := range map[string]throttler.Decision{"take": f.take(p, refused...), "peek": f.peek(p, refused...)} {
			if d.Allowed || !d.Degraded || len(d.Charges()) != len(refused) || !d.Limit(0).Refused || d.Limit(1).Refused {
				t.Errorf("a %s of %d charges: %v; want a degraded refusal by the synced counts", verb, len(refused), &d)
			}
		}
		f.store.down, f.store.open = false, true
		d := f.take(p, append([]throttler.Charge{costing(window, 1), costing(hour, 1)}, others...)...)
		if !d.Allowed || !d.Degraded || len(d.Charges()) != 0 {
			t.Errorf("%d others, the store is open: %v; want it allowed without counts", len(others), &d)
		}
		if _, err := p.throttler.Refund(t.Context(), d); err != nil {
			t.Error(err)
		}
		f.store.open = false
	}
}

// A Backend behind a wrapper decides nothing: the throttler does not see that it routes charges.
func TestWrapped(t *testing.T) {
	p := newFleet(t).start()
	wrapped := throttler.New(struct{ driver.Backend }{p.backend}, nil)
	charge := costing(window, 1)
	_, takes := wrapped.Take(t.Context(), charge)
	_, peeks := wrapped.Peek(t.Context(), charge)
	for _, err := range []error{takes, peeks, wrapped.Reset(t.Context(), charge), wrapped.Pause(t.Context(), time.Now(), charge)} {
		if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "give it to throttler.New, without a wrapper") {
			t.Errorf("got %v", err)
		}
	}
}

func TestTakesOfSeveralLevels(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	f.begin(p, window, consistency.Synced)
	f.begin(p, hour, consistency.Exact)
	used := func() string {
		d := f.peek(p, costing(window, 1), costing(hour, 1))
		return fmt.Sprint(d.Limit(0).Used, " ", d.Limit(1).Used)
	}
	want := func(when, want string) {
		t.Helper()
		if got := used(); got != want {
			t.Errorf("%s: %s are used; want %s", when, got, want)
		}
	}
	d := f.take(p, costing(window, 30), costing(hour, 20))
	if !d.Allowed || d.Limit(0).Used != 30 || d.Limit(1).Used != 20 {
		t.Errorf("got %v, want it allowed, 30 and 20 used", d)
	}
	want("after a take", "30 20")
	if after, err := p.throttler.Refund(t.Context(), d); err != nil || after.Limit(0).Used != 0 || after.Limit(1).Used != 0 {
		t.Errorf("a refund: %v, %v; want nothing used", after, err)
	}
	want("after its refund", "0 0")

	d = f.take(p, costing(window, 30), costing(hour, 51))
	if d.Allowed || d.Limit(0).Refused || !d.Limit(1).Refused {
		t.Errorf("got %v, want it refused by the exact policy alone", d)
	}
	want("after the store refused", "0 0")
	d = f.take(p, costing(hour, 10), costing(window, 101))
	if d.Allowed || d.Limit(0).Refused || !d.Limit(1).Refused || d.Limit(1).Policy != window {
		t.Errorf("got %v, want it refused by the synced policy alone", d)
	}
	want("after the synced counts refused", "0 0")

	d = f.take(p, costing(window, 10), costing(hour, 10))
	if after, err := p.throttler.Settle(t.Context(), d, 15, 4); err != nil || after.Limit(0).Used != 15 || after.Limit(1).Used != 4 {
		t.Errorf("a settlement: %v, %v; want 15 and 4 used", after, err)
	}
	want("after a settlement", "15 4")

	f.store.down = true
	if _, err := p.throttler.Take(t.Context(), costing(window, 1), costing(hour, 1)); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("the store is down: error %v, want ErrUnavailable", err)
	}
	if d := f.take(p, costing(window, 1)); !d.Allowed || d.Limit(0).Used != 16 {
		t.Errorf("the store is down: a synced take: %v, want it allowed, 16 used", d)
	}
	d = f.take(p, costing(window, 99), costing(hour, 1))
	if d.Allowed || !d.Degraded || !d.Limit(0).Refused || d.Limit(1).Refused {
		t.Errorf("the store is down, the synced counts refuse: %v, want a degraded refusal by them", d)
	}
	if d := f.peek(p, costing(window, 99), costing(hour, 1)); d.Allowed || !d.Degraded || !d.Limit(0).Refused || d.Limit(1).Refused {
		t.Errorf("the store is down, the synced counts refuse: a peek: %v, want a degraded refusal by them", d)
	}
	if _, err := p.throttler.Peek(t.Context(), costing(window, 1), costing(hour, 1)); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("the store is down: a peek: error %v, want ErrUnavailable", err)
	}
	f.store.down = false
	want("the store is back", "16 4")

	takes, peeks := f.store.takes, f.store.peeks
	for range 10 {
		f.take(p, costing(window, 1))
		f.peek(p, costing(window, 1))
	}
	if f.store.takes != takes || f.store.peeks != peeks {
		t.Error("the store was asked about a synced policy")
	}
}

func TestSet(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	log := &throttler.Policy{Name: "log", Limits: []throttler.Limit{{Quota: 1, Window: time.Second, Algorithm: throttler.SlidingLog}}}
	if err := p.table.Set(log, consistency.Synced); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("a synced log: %v, want ErrInvalid", err)
	}
	if err := p.table.Set(log, 3); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("level 3: %v, want ErrInvalid", err)
	}
	f.begin(p, window, consistency.Synced)
	if err := p.table.Begin(window, consistency.Exact); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("a second Begin: %v, want ErrInvalid", err)
	}
	for _, step := range []struct {
		level consistency.Level
		until time.Time
	}{
		{consistency.Synced, time.Time{}},
		{consistency.Leased, t0.Add(2 * time.Minute)}, // a minute to agree, one for the window
		{consistency.Exact, t0.Add(2 * time.Minute)},
		{consistency.Synced, t0.Add(2 * time.Minute)},
	} {
		f.set(p, window, step.level)
		if s := p.table.State("window"); s.Level != step.level || !s.BothUntil.Equal(step.until) {
			t.Errorf("%v: %+v, want until %v", step.level, s, step.until)
		}
	}
	shorter := *window
	shorter.Limits = []throttler.Limit{{Quota: 100, Window: time.Second, Aligned: true}}
	f.set(p, &shorter, consistency.Exact)
	if s := p.table.State("window"); !s.BothUntil.Equal(t0.Add(2 * time.Minute)) {
		t.Errorf("a change with a shorter window: %+v; the one before it is not complete", s)
	}
	for _, m := range []consistency.Level{consistency.Exact, consistency.Leased, consistency.Synced} {
		var back consistency.Level
		if text, err := m.MarshalText(); err != nil || back.UnmarshalText(text) != nil || back != m {
			t.Errorf("%v is the text %q, error %v, and back %v", m, text, err, back)
		}
	}
	if err := new(consistency.Level).UnmarshalText([]byte("hard")); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("UnmarshalText of no level: %v, want ErrInvalid", err)
	}
	if _, err := consistency.Level(9).MarshalText(); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("MarshalText of no level: %v, want ErrInvalid", err)
	}
	if err := new(consistency.Level).UnmarshalText([]byte("hard")); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("UnmarshalText: %v, want ErrInvalid", err)
	}
}

// A decision about charges of several levels reports the limits in the order of the charges,
// also if the store does not answer.
func TestEachLimitIsReportedInItsPlace(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	for policy, level := range map[*throttler.Policy]consistency.Level{window: consistency.Synced, several: consistency.Synced} {
		if err := p.table.Begin(policy, level); err != nil {
			t.Fatal(err)
		}
	}
	charge := func(p *throttler.Policy, cost int64) throttler.Charge {
		c := p.Charge("alice")
		c.Cost = cost
		return c
	}
	take := func(cost int64) throttler.Decision {
		t.Helper()
		d, err := p.throttler.Take(t.Context(), charge(bucket, 2), charge(window, cost), charge(hour, 4), charge(several, 5))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := take(3)
	for i, want := range []int64{2, 3, 4, 5, 5} {
		if s := d.Limit(i); s.Used != want {
			t.Errorf("of limit %d, %d are used; want %d", i, s.Used, want)
		}
	}
	f.store.down = true
	d = take(100) // refused by the synced counts
	if d.Allowed || !d.Degraded {
		t.Fatalf("%v; want a degraded refusal", &d)
	}
	for i, want := range []int64{0, 3, 0, 5, 5} {
		if s := d.Limit(i); s.Used != want {
			t.Errorf("without the store, of limit %d, %d are used; want %d", i, s.Used, want)
		}
	}
}
