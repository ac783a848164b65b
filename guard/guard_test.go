package guard_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/isolated"
	"github.com/open-feature/go-sdk/openfeature/memprovider"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/weir-go/weir/backend/backendtest"
	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/guard/shadow"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// t0 is the time at which clocks start.
var t0 = time.Date(2030, 1, 2, 3, 0, 0, 0, time.UTC)

var (
	window  = &throttler.Policy{Name: "window", Limits: []throttler.Limit{{Quota: 100, Window: 1000 * time.Hour, Aligned: true}}}
	entries = &throttler.Policy{Name: "log", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour, Algorithm: throttler.SlidingLog}}}
)

// flag returns the client of a flag that selects the store of that name.
func flag(t *testing.T, name string) openfeature.IClient {
	t.Helper()
	api := isolated.NewAPI()
	t.Cleanup(func() { _ = api.Shutdown(context.Background()) })
	err := api.SetProviderAndWait(t.Context(), memprovider.NewInMemoryProvider(map[string]memprovider.InMemoryFlag{
		rollout.DefaultFlag: {State: memprovider.Enabled, Variants: map[string]any{"on": name}, DefaultVariant: "on"},
	}))
	if err != nil {
		t.Fatal(err)
	}
	return api.NewClient()
}

// silentRoot is a root that does not answer.
func silentRoot(t *testing.T) []synced.Root {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		MaxRetries: -1, DialerRetries: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no root") },
	})
	t.Cleanup(func() { _ = client.Close() })
	return []synced.Root{{Name: "root", Client: client}}
}

// everything returns options with all parts. The flag selects the store "other".
func everything(t *testing.T, other handoff.Store) *guard.Options {
	return &guard.Options{
		Rollout: &guard.Rollout{Name: "one", Others: map[string]handoff.Store{"other": other}, Client: flag(t, "other")},
		Shadow:  &guard.Shadow{Candidate: memorybackend.NewDefault()},
		Levels: &guard.Levels{
			Policies: map[*quota.Policy]consistency.Level{window: consistency.Exact, entries: consistency.Exact},
			Leased:   &leased.Options{Busy: 1},
			Synced:   &guard.Synced{Roots: silentRoot(t)},
		},
		Fallback: &fallback.Options{},
		Refusals: &refusals.Options{},
	}
}

func newStack(t *testing.T, store driver.Backend, options *guard.Options) *guard.Stack {
	t.Helper()
	s, err := guard.New(store, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestNothingAroundAStore(t *testing.T) {
	store := memorybackend.NewDefault()
	for _, options := range []*guard.Options{nil, {}} {
		if s := newStack(t, store, options); !reflect.DeepEqual(s, &guard.Stack{Backend: store}) {
			t.Errorf("got %+v, want the store alone", s)
		}
	}
}

func TestTheOrder(t *testing.T) {
	s := newStack(t, memorybackend.NewDefault(), everything(t, memorybackend.NewDefault()))
	if _, ok := s.Backend.(*consistency.Backend); !ok {
		t.Errorf("the outermost is a %T, not what decides by levels", s.Backend)
	}
	if got := s.Refusals.Unwrap(); got != driver.Backend(s.Fallback) {
		t.Errorf("the refusal cache asks a %T, not the fallback", got)
	}
	if got := s.Fallback.Unwrap(); got != driver.Backend(s.Leased) {
		t.Errorf("the fallback asks a %T, not the leases", got)
	}
	want := []string{"fallback", "leased", "refusals", "rollout", "shadow", "synced"}
	if got := slices.Sorted(maps.Keys(s.Stats())); !slices.Equal(got, want) {
		t.Errorf("there are statistics of %v, want %v", got, want)
	}
}

// TestBackend runs the suite of all backends on a store with everything around it but the levels,
// which only route charges.
func TestBackend(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) driver.Backend {
		options := everything(t, memorybackend.NewDefault())
		options.Refusals.MaxAge = 1 // otherwise a refusal's times may be a second old: see package refusals
		return newStack(t, memorybackend.NewDefault(), options).Backend.(driver.Router).Backends()[0]
	})
}

// A decision reaches the innermost part, and the store that the flag selects.
func TestEachPartTakesPart(t *testing.T) {
	other, now := memorybackend.NewDefault(), clock.NewManual(t0)
	options := everything(t, other)
	options.Clock = now
	s := newStack(t, memorybackend.NewDefault(), options)
	take := func(cost int64) throttler.Decision {
		t.Helper()
		d, err := throttler.New(s.Backend, &throttler.Options{Clock: now}).Take(t.Context(), throttler.Charge{Policy: entries, Key: "alice", Cost: cost})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	take(60)
	take(60)
	take(60)
	if n := s.Refusals.Stats().Answered; n != 1 {
		t.Errorf("%d refusals were repeated from memory, want 1", n)
	}
	d, err := throttler.New(other, &throttler.Options{Clock: now}).Peek(t.Context(), entries.Charge("alice"))
	if err != nil || d.Limit(0).Used != 60 {
		t.Errorf("the store of the flag has %v, %v; want 60 used", d, err)
	}
}

// Close refunds leased units that were not spent.
func TestCloseGivesBackLeases(t *testing.T) {
	store, now := memorybackend.NewDefault(), clock.NewManual(t0)
	s, err := guard.New(store, &guard.Options{Clock: now, Levels: &guard.Levels{
		Policies: map[*quota.Policy]consistency.Level{window: consistency.Leased}, Leased: &leased.Options{Busy: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	front, behind := throttler.New(s.Backend, &throttler.Options{Clock: now}), throttler.New(store, &throttler.Options{Clock: now})
	used := func() int64 {
		t.Helper()
		d, err := behind.Peek(t.Context(), window.Charge("alice"))
		if err != nil {
			t.Fatal(err)
		}
		return d.Limit(0).Used
	}
	for range 20 {
		if _, err := front.Take(t.Context(), window.Charge("alice")); err != nil {
			t.Fatal(err)
		}
	}
	if got := used(); got <= 20 {
		t.Errorf("the store has %d used; want more than 20, for a lease", got)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := used(); got != 20 {
		t.Errorf("after Close the store has %d used, want 20", got)
	}
}

// TestErrorsSayWhatWouldBeRight also checks that New closes all that it made before an error:
// TestMain finds leaks.
func TestErrorsSayWhatWouldBeRight(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*guard.Options)
		want   string
	}{
		"flag's value": {func(o *guard.Options) { o.Rollout.Name = "" }, `stack: Rollout.Name is ""; it must be the value of the flag that selects store, such as redis`},
		"same value":   {func(o *guard.Options) { o.Rollout.Name = "other" }, `stack: Rollout.Others["other"] has the Name of store; give it the value of the flag that selects it`},
		"no others":    {func(o *guard.Options) { o.Rollout.Others = nil }, `stack: Rollout.Others is empty; it must have a store to move clients to, or leave Rollout nil`},
		"no client":    {func(o *guard.Options) { o.Rollout.Client = nil }, `stack: Rollout.Client is nil; it must be the OpenFeature client that evaluates the flag`},
		"rollout":      {func(o *guard.Options) { o.Rollout.Options = &rollout.Options{Keep: -1} }, `rollout: Keep is -1ns; it must be`},
		"no candidate": {func(o *guard.Options) { o.Shadow.Candidate = nil }, `stack: Shadow.Candidate is nil; it must be the store that is tried, or leave Shadow nil`},
		"shadow":       {func(o *guard.Options) { o.Shadow.Options = &shadow.Options{Queue: -1} }, `shadow: Queue is -1; it must be`},
		"agree":        {func(o *guard.Options) { o.Levels.Agree = -1 }, `consistency: Agree is -1ns; it must be`},
		"nil policy":   {func(o *guard.Options) { o.Levels.Policies[nil] = consistency.Exact }, `quota: policy is nil`},
		"policy twice": {func(o *guard.Options) {
			o.Levels.Policies[&quota.Policy{Name: "log", Limits: entries.Limits}] = consistency.Exact
		}, `consistency: policy "log" is exact already`},
		"leases": {func(o *guard.Options) { o.Levels.Leased.Leases = func(*quota.Policy) bool { return true } }, `stack: Levels.Leased.Leases is set; leave it nil, and set the level of policies to leased in Levels.Policies`},
		"leased": {func(o *guard.Options) { o.Levels.Leased.Ahead = 1 }, `leased: Ahead is 1ns; it must be`},
		"no leases": {func(o *guard.Options) { o.Levels.Leased, o.Levels.Policies[window] = nil, consistency.Leased },
			`stack: Levels.Policies has "window" leased, and Levels.Leased is nil; set it, or make the policy exact`},
		"no syncs": {func(o *guard.Options) { o.Levels.Synced, o.Levels.Policies[window] = nil, consistency.Synced },
			`stack: Levels.Policies has "window" synced, and Levels.Synced is nil; set it and its Roots, or make the policy exact`},
		"nothing to sync": {func(o *guard.Options) { delete(o.Levels.Policies, window) },
			`stack: Levels.Synced is set, but no policy of Levels.Policies can be synced; add one of token buckets or aligned fixed windows, or leave Synced nil`},
		"no roots": {func(o *guard.Options) { o.Levels.Synced.Roots = nil }, `synced: roots`},
		"synced":   {func(o *guard.Options) { o.Levels.Synced.Options = &synced.Options{Low: 2} }, `synced: Low is 2; it must be`},
		"fallback": {func(o *guard.Options) { o.Fallback.OnFailure = fallback.Local }, `fallback: Processes is 0; Local needs`},
		"refusals": {func(o *guard.Options) { o.Refusals.MaxAge = -1 }, `refusals: MaxAge is -1ns; it must be`},
	} {
		t.Run(name, func(t *testing.T) {
			options := everything(t, memorybackend.NewDefault())
			test.change(options)
			_, err := guard.New(memorybackend.NewDefault(), options)
			if err == nil || !strings.HasPrefix(err.Error(), test.want) || !errors.Is(err, quota.ErrInvalid) {
				t.Errorf("got  %v\nwant %s, as quota.ErrInvalid", err, test.want)
			}
		})
	}
	t.Run("store whose counts cannot move", func(t *testing.T) {
		options := everything(t, memorybackend.NewDefault())
		const want = "stack: store is a struct { driver.Backend }, whose counts cannot move; with Rollout it must be a handoff.Store, such as a Redis, Memcached or memory backend"
		_, err := guard.New(struct{ driver.Backend }{memorybackend.NewDefault()}, options)
		if err == nil || err.Error() != want || !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	})
}

// A level can be set later if the stack has the parts that it needs.
func TestLevelsChangeWhileInUse(t *testing.T) {
	s := newStack(t, memorybackend.NewDefault(), &guard.Options{Levels: &guard.Levels{Policies: map[*quota.Policy]consistency.Level{window: consistency.Exact}}})
	if err := s.Levels.Set(window, consistency.Leased); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("a policy is leased where nothing is: %v", err)
	}
	s = newStack(t, memorybackend.NewDefault(), &guard.Options{Levels: &guard.Levels{
		Policies: map[*quota.Policy]consistency.Level{window: consistency.Exact}, Leased: &leased.Options{},
	}})
	if err := s.Levels.Set(window, consistency.Leased); err != nil {
		t.Error(err)
	}
}

// The parts around a store let it decide about several partitions at once, unless this
// process keeps counts in an outage.
func TestPartitionsAreJoined(t *testing.T) {
	for _, test := range []struct {
		options guard.Options
		want    bool
	}{
		{guard.Options{Fallback: new(fallback.Options), Refusals: new(refusals.Options)}, true},
		{guard.Options{Fallback: &fallback.Options{OnFailure: fallback.Local, Processes: 2}, Refusals: new(refusals.Options)}, false},
		{guard.Options{Fallback: new(fallback.Options), Refusals: new(refusals.Options), Levels: &guard.Levels{Others: true, Leased: new(leased.Options)}}, true},
	} {
		s, err := guard.New(memorybackend.NewDefault(), &test.options)
		if err != nil {
			t.Fatal(err)
		}
		r := driver.NewRequest(0, entries.Charge("alice"), window.Charge("office"))
		for i := range r.Charges() {
			r.Charges()[i].Partition = r.Charges()[i].Key
		}
		store := s.Backend
		if router, ok := store.(driver.Router); ok {
			store = router.Backends()[0]
		}
		if got := driver.Joins(store, &r); got != test.want {
			t.Errorf("%+v: joins partitions: %v", test.options, got)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
