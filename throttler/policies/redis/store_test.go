package redispolicies_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// bytes counts the bytes that a client sends and receives, and its dials.
type bytes struct{ n, dials atomic.Int64 }

type counted struct {
	net.Conn
	in *bytes
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.in.n.Add(int64(n))
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.in.n.Add(int64(n))
	return n, err
}

// open returns a store at a server, its client, and a count of its traffic.
func open(t testing.TB, server *testserver.RedisServer) (*redispolicies.Store, redis.UniversalClient, *bytes) {
	t.Helper()
	traffic := new(bytes)
	client, err := redisbackend.NewClient(&redis.UniversalOptions{
		Addrs:       []string{server.Addr},
		ReadTimeout: 10 * time.Second, // the machine may be busy
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			traffic.dials.Add(1)
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return counted{conn, traffic}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return redispolicies.NewStore(client, ""), client, traffic
}

// follower is a process that watches a store, and looks only when it is asked to.
type follower struct {
	*redispolicies.Watch
	table  policies.Table
	mu     sync.Mutex
	warned []string
	observe.Nothing
}

func (f *follower) Warned(e observe.Warned) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warned = append(f.warned, e.Text)
}

// warnings returns how often f was warned.
func (f *follower) warnings() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.warned)
}

func follow(t testing.TB, store *redispolicies.Store) *follower {
	t.Helper()
	f := new(follower)
	f.Watch = redispolicies.NewWatch(t.Context(), &f.table, "redis", store, &redispolicies.Options{Every: time.Hour, Timeout: 10 * time.Second, Observer: f})
	t.Cleanup(f.Close)
	return f
}

func (f *follower) status() policies.SourceStatus { return f.table.Status()[0] }

// quota returns the quota of key under a policy: 0 if the key is blocked, and -1 if the policy
// is unknown.
func (f *follower) quota(policy, key string) int64 {
	p, by, _ := f.table.View().Resolve(context.Background(), &quota.Policy{Name: policy}, key, 0)
	switch {
	case by != nil && by.Blocked:
		return 0
	case len(p.Limits) == 0:
		return -1
	}
	return p.Limits[0].Quota
}

func hourly(name string, n int64) *quota.Policy {
	return &quota.Policy{Name: name, Limits: limits(n)}
}

func limits(n int64) []quota.Limit { return []quota.Limit{{Quota: n, Window: time.Hour}} }

func write(t testing.TB, s *redispolicies.Store, c redispolicies.Change) int64 {
	t.Helper()
	version, err := s.Write(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

func refresh(t testing.TB, f *follower) {
	t.Helper()
	if err := f.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestMistakesAreNotWritten(t *testing.T) {
	server := testserver.Redis(t)
	store, _, _ := open(t, server)
	for _, test := range []struct {
		change redispolicies.Change
		want   string
	}{
		{redispolicies.Change{}, "the change has 0 entries; it must have from 1 to 1000"},
		{redispolicies.Change{Remove: make([]string, 1001)}, "the change has 1001 entries"},
		{redispolicies.Change{Set: []*quota.Policy{hourly("core", 1), hourly("a b", 1)}}, `policy name is "a b"`},
		{redispolicies.Change{Set: []*quota.Policy{hourly("core", 1), hourly("core", 2)}}, `two policies "core"`},
		{redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "k"}}}, "it must have one of the three"},
		{redispolicies.Change{RemoveOverrides: []policies.Override{{Policy: "a\nb"}}}, "must have no newline"},
		{redispolicies.Change{Set: []*quota.Policy{under("a", "a", "k")}}, "it is its own parent"},
		{redispolicies.Change{Override: []policies.Override{{Policy: "a", Key: "k", ParentKey: "\xff"}}}, "parent key that is not UTF-8"},
	} {
		if _, err := store.Write(t.Context(), test.change); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v; want an ErrInvalid with %q", err, test.want)
		}
	}
	if all, version, err := store.Read(t.Context()); len(all) != 0 || version != 0 || err != nil {
		t.Errorf("%v, version %d, %v; want nothing", all, version, err)
	}
}

// Changes are read back whole, with keys of any bytes.
func TestUnitsAndEndsAreKept(t *testing.T) {
	server := testserver.Redis(t)
	store, _, _ := open(t, server)
	tokens := hourly("tokens", 5)
	tokens.Unit, tokens.Hidden = quota.Tokens, true
	tokens.Until = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{tokens, hourly("core", 6)}})
	f := follow(t, store)
	for name, want := range map[string]quota.Unit{"tokens": quota.Tokens, "core": quota.Requests} {
		if p := f.table.View().Policy(name); p == nil || p.Unit != want || p.Hidden != (name == "tokens") {
			t.Errorf("%s is %+v, want the unit %v, and only tokens hidden", name, p, want)
		}
		if p := f.table.View().Policy(name); name == "tokens" != p.Until.Equal(tokens.Until) {
			t.Errorf("%s ends at %v", name, p.Until)
		}
	}
}

// Limits that can never refuse are warned of, once for each version.
func TestALimitThatCanNeverRefuse(t *testing.T) {
	server := testserver.Redis(t)
	store, _, _ := open(t, server)
	p := &quota.Policy{Name: "core", Limits: []quota.Limit{{Quota: 10, Window: 10 * time.Second}, {Quota: 600, Window: 10 * time.Minute}}}
	f := follow(t, store)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{p, hourly("search", 5)}})
	for range 2 {
		if err := f.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if f.warnings() != 1 || !strings.Contains(f.warned[0], "limit 1, 600 per 10m0s (fixed-window), can never refuse") {
		t.Errorf("warnings %q; want one about the second limit", f.warned)
	}
}

func TestReadAndFind(t *testing.T) {
	server := testserver.Redis(t)
	store, _, _ := open(t, server)
	p := &quota.Policy{Name: "core", Limits: []quota.Limit{{Quota: 10, Window: time.Minute, Algorithm: quota.TokenBucket, Burst: 20}, {Quota: 100, Window: time.Hour, Aligned: true}}}
	o := policies.Override{Policy: "core", Key: "a\nb\x00\xff{}", Blocked: true, Until: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Owner: "ops", Reason: "floods"}
	if version := write(t, store, redispolicies.Change{Set: []*quota.Policy{p}, Override: []policies.Override{o}}); version != 1 {
		t.Errorf("version %d", version)
	}
	all, version, err := store.Read(t.Context())
	if err != nil || version != 1 || len(all) != 1 || all[0].Name != "core" || !slices.Equal(all[0].Limits, p.Limits) {
		t.Errorf("%v, version %d, %v", all, version, err)
	}
	same := func(got *policies.Override) bool {
		return got != nil && got.Policy == o.Policy && got.Key == o.Key && got.Blocked && got.Until.Equal(o.Until) && got.Owner == o.Owner && got.Reason == o.Reason
	}
	if got, err := store.Find(t.Context(), "core", o.Key); err != nil || !same(got) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := store.FindPolicy(t.Context(), "core"); err != nil || got == nil || got.Name != "core" || !slices.Equal(got.Limits, p.Limits) {
		t.Errorf("%+v, %v", got, err)
	}
	write(t, store, redispolicies.Change{Set: []*quota.Policy{under("child", "core", "acme\n")}})
	if got, err := store.FindPolicy(t.Context(), "child"); err != nil || got == nil || got.Parent != "core" || got.ParentKey != "acme\n" {
		t.Errorf("%+v, %v; want the parent, too", got, err)
	}
	if got, err := store.FindPolicy(t.Context(), "none"); got != nil || err != nil {
		t.Errorf("%+v, %v; want none", got, err)
	}
	n := 0
	if err := store.Overrides(t.Context(), func(got policies.Override) bool { n++; return same(&got) }); err != nil || n != 1 {
		t.Errorf("%d overrides, %v", n, err)
	}
	write(t, store, redispolicies.Change{RemoveOverrides: []policies.Override{o}})
	if got, err := store.Find(t.Context(), "core", o.Key); got != nil || err != nil {
		t.Errorf("%+v, %v; want none", got, err)
	}
}

// under returns a policy that has a parent.
func under(name, parent, key string) *quota.Policy {
	p := hourly(name, 10)
	p.Parent, p.ParentKey = parent, key
	return p
}

// Parents that a process would refuse are not written. Written parents reach processes that
// read all policies, and processes that read changes, with keys of any bytes.
func TestParents(t *testing.T) {
	server := testserver.Redis(t)
	ending := func(p *quota.Policy) *quota.Policy {
		p.Until = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
		return p
	}
	store, _, _ := open(t, server)
	early := follow(t, store)
	var line []*quota.Policy
	for i := range 16 {
		p := hourly(fmt.Sprint("p", i), 10)
		if i > 0 {
			p.Parent, p.ParentKey = fmt.Sprint("p", i-1), "k"
		}
		line = append(line, p)
	}
	slices.Reverse(line)
	for i, step := range []struct {
		change redispolicies.Change
		want   string // or "" if it is no mistake
	}{
		{redispolicies.Change{Set: line}, ""},
		{redispolicies.Change{Set: []*quota.Policy{under("p0", "p2", "k")}}, `the parents of policy "p0" are a cycle: p0, p2, p1, p0`},
		{redispolicies.Change{Set: []*quota.Policy{hourly("ok", 1), under("x", "y", "k")}}, `policy "x" has the parent "y", which the store lacks`},
		{redispolicies.Change{Set: []*quota.Policy{ending(hourly("p0", 1))}}, `policy "p0" has an end, and is the parent of others`},
		{redispolicies.Change{Set: []*quota.Policy{ending(hourly("x", 1)), under("y", "x", "k")}}, `policy "y" has the parent "x", which has an end`},
		{redispolicies.Change{Set: []*quota.Policy{tokens(hourly("p0", 1))}}, `policy "p0" counts tokens, and is the parent of others that count requests`},
		{redispolicies.Change{Set: []*quota.Policy{tokens(under("p15", "p14", "k"))}}, `policy "p15" counts tokens, and its parent "p14" counts requests`},
		{redispolicies.Change{Remove: []string{"p3"}}, `policy "p3" is removed, and is the parent of others`},
		{redispolicies.Change{Set: []*quota.Policy{under("x", "p3", "k"), under("p4", "p2", "k")}, Remove: []string{"p3"}}, `has the parent "p3"`},
		{redispolicies.Change{Set: []*quota.Policy{hourly("acme", 1), under("p4", "acme", "a\nb\xff")}, Remove: []string{"p3"}}, ""},
		{redispolicies.Change{Set: []*quota.Policy{under("x", "acme", "k"), under("y", "acme", "k")}}, ""},
		{redispolicies.Change{Remove: []string{"x"}, Set: []*quota.Policy{hourly("p4", 5)}}, ""},
		{redispolicies.Change{Remove: []string{"acme"}}, "is the parent of others"},
		{redispolicies.Change{Set: []*quota.Policy{tokens(under("y", "acme", "k")), tokens(hourly("acme", 1))}}, ""},
		{redispolicies.Change{Set: []*quota.Policy{hourly("y", 5)}}, ""},
		{redispolicies.Change{Remove: []string{"acme"}}, ""},
		{redispolicies.Change{Set: []*quota.Policy{under("y", "p2", "\x00\xff\n")}, Override: []policies.Override{{Policy: "y", Key: "moved", ParentKey: "blue"}}}, ""},
	} {
		_, before, err := store.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = store.Write(t.Context(), step.change)
		if step.want == "" && err != nil || step.want != "" && (!errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), step.want)) {
			t.Errorf("step %d: %v; want %q", i, err, step.want)
		}
		all, after, err := store.Read(t.Context())
		if err != nil || (after == before) != (step.want != "") {
			t.Errorf("step %d: versions %d and %d, %v", i, before, after, err)
		}
		refresh(t, early)
		for _, f := range []*follower{early, follow(t, store)} {
			if s := f.status(); s.Version != after || s.Policies != len(all) || s.Wrong != "" {
				t.Errorf("step %d: %+v; want %d policies of version %d", i, s, len(all), after)
			}
			for _, p := range all {
				if got := f.table.View().Policy(p.Name); got == nil || got.Parent != p.Parent || got.ParentKey != p.ParentKey {
					t.Errorf("step %d: %+v; want %+v", i, got, p)
				}
			}
		}
	}
	for key, want := range map[string]string{"any": "\x00\xff\n", "moved": "blue"} {
		if _, _, parent := early.table.View().Resolve(t.Context(), hourly("y", 1), key, 0); parent != (policies.Parent{Policy: "p2", Key: want}) {
			t.Errorf("%s: %+v; want p2 %q", key, parent, want)
		}
	}
}

func tokens(p *quota.Policy) *quota.Policy {
	p.Unit = quota.Tokens
	return p
}

// A server refuses the changes that a process with the same policies would refuse.
func TestRandomTreesAreThoseOfATable(t *testing.T) {
	t.Parallel()
	random := testseed.Rand(t, 0)
	store, _, _ := open(t, testserver.Redis(t))
	var table policies.Table
	written, refused := 0, 0
	for range 1500 {
		change := redispolicies.Change{}
		names := random.Perm(30)[:1+random.IntN(4)]
		for _, i := range names {
			p := hourly(fmt.Sprint("p", i), 1)
			switch random.IntN(12) {
			case 0:
				change.Remove = append(change.Remove, p.Name)
				continue
			case 1:
			default: // mostly the one before it, so that lines become long
				if p.Parent = fmt.Sprint("p", (i+29)%30); random.IntN(3) == 0 {
					p.Parent = fmt.Sprint("p", (i+1+random.IntN(29))%30)
				}
			}
			change.Set = append(change.Set, p)
		}
		want := table.Source("code").Edit(func(e *policies.Edit) {
			for _, p := range change.Set {
				e.Set(p)
			}
			for _, name := range change.Remove {
				e.Remove(name)
			}
		})
		_, err := store.Write(t.Context(), change)
		if (err == nil) != (want == nil) || err != nil && !errors.Is(err, quota.ErrInvalid) {
			t.Fatalf("after %d changes: the store says %v, the table %v", written, err, want)
		}
		if err == nil {
			written++
		} else {
			refused++
		}
	}
	if written < 200 || refused < 200 {
		t.Errorf("%d changes written, %d refused; want some hundreds of each", written, refused)
	}
	f := follow(t, store)
	if s := f.status(); s.Wrong != "" || s.Policies != table.Status()[0].Policies {
		t.Errorf("%+v; want the policies of %+v", s, table.Status())
	}
}

// A policy without overrides causes no calls, and a process that knows the version receives
// less than 100 bytes, however many policies there are.
func TestNothingNewCostsNothing(t *testing.T) {
	server := testserver.Redis(t)
	store, _, traffic := open(t, server)
	early := follow(t, store)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("p0-0", 1)}})
	refresh(t, early)
	for i := range 8 {
		var c redispolicies.Change
		for j := range 500 {
			c.Set = append(c.Set, hourly(fmt.Sprintf("p%d-%d", i, j), int64(j)+1))
			c.Override = append(c.Override, policies.Override{Policy: "other", Key: fmt.Sprintf("k%d-%d", i, j), Limits: limits(5)})
		}
		write(t, store, c)
	}
	refresh(t, early) // by several pages of changes
	f := follow(t, store)
	for _, f := range []*follower{early, f} {
		if s := f.status(); s.Policies != 4000 || s.Version != 9 || s.Overrides != 0 || s.Found != 0 || f.quota("p7-499", "k") != 500 {
			t.Errorf("%+v", s)
		}
	}
	before := traffic.n.Load()
	refresh(t, f)
	if n := traffic.n.Load() - before; n >= 100 {
		t.Errorf("a look at an old version takes %d bytes; want less than 100", n)
	}
	t.Logf("a look at an old version takes %d bytes", traffic.n.Load()-before)
	before = traffic.n.Load()
	for i := range 100 {
		f.quota(fmt.Sprintf("p1-%d", i), "k")
	}
	if n := traffic.n.Load() - before; n != 0 {
		t.Errorf("decisions under policies without overrides take %d bytes", n)
	}
	if n := f.quota("other", "k7-7"); n != 5 {
		t.Errorf("the quota of an override is %d", n)
	}
	before = traffic.n.Load()
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("p1-1", 77)}})
	refresh(t, f)
	if n := traffic.n.Load() - before; n > 1000 || f.quota("p1-1", "k") != 77 {
		t.Errorf("one change takes %d bytes, quota %d", n, f.quota("p1-1", "k"))
	}
}

// Values that operators have written by hand have each key once, and no null.
func TestValuesWrittenByHand(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	defer func() { _ = c.Close() }()
	store := redispolicies.NewStore(c, "")
	for text, want := range map[string]string{
		`{"limits": "8 per 1h"}`:                   "",
		`{"blocked": true, "blocked": false}`:      `"blocked" appears twice`,
		`{"limits": ["8 per 1h"], "until": null}`:  `"until" is null`,
		`{"limits": ["8 per 1h"], "Limits": null}`: `"limits" appears twice`,
	} {
		c.HSet(t.Context(), "{weir:policies}:overrides", "core\nbob", text)
		o, err := store.Find(t.Context(), "core", "bob")
		if want == "" && (err != nil || len(o.Limits) != 1) || want != "" && (!errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %+v, %v; want an error with %q", text, o, err, want)
		}
	}
}

// A wrong version at the server leaves the known version in force.
func TestAWrongVersionIsNotInForce(t *testing.T) {
	server := testserver.Redis(t)
	store, client, traffic := open(t, server)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}})
	old := follow(t, store)
	client.HSet(t.Context(), "{weir:policies}:policies", "search", `["10 pr 1m"]`) // by hand
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 20)}})
	late := follow(t, store)
	for range 3 {
		before := traffic.n.Load()
		if err := late.Refresh(t.Context()); traffic.n.Load()-before >= 100 {
			t.Errorf("%v; a version that is known to be wrong is read again", err)
		} else if !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), `policy "search"`) {
			t.Errorf("%v", err)
		}
	}
	if len(late.warned) != 1 || !strings.Contains(late.status().Wrong, "search") || late.quota("core", "k") != -1 {
		t.Errorf("warnings %q, %+v", late.warned, late.status())
	}
	refresh(t, old)
	if n := old.quota("core", "k"); n != 20 {
		t.Errorf("the quota is %d", n)
	}
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("search", 5)}})
	refresh(t, late)
	if late.status().Wrong != "" || late.quota("search", "k") != 5 {
		t.Errorf("%+v", late.status())
	}
}

// Known policies and overrides hold while the server is down, and when it is back without data.
func TestAwayAndBack(t *testing.T) {
	server := testserver.Redis(t)
	store, _, traffic := open(t, server)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}, Override: []policies.Override{
		{Policy: "core", Key: "alice", Limits: limits(70)}, {Policy: "core", Key: "bob", Limits: limits(80)},
	}})
	f := follow(t, store)
	if n := f.quota("core", "alice"); n != 70 {
		t.Errorf("the quota of alice is %d", n)
	}
	server.Stop()
	for range 3 {
		if err := f.Refresh(t.Context()); err == nil {
			t.Error("a server that is away answered")
		}
	}
	check := func() {
		t.Helper()
		dials := traffic.dials.Load()
		if a, b := f.quota("core", "alice"), f.quota("core", "bob"); a != 70 || b != 10 || len(f.warned) != 1 || f.status().Wrong == "" {
			t.Errorf("alice has %d, bob, who is not known, %d; warnings %q", a, b, f.warned)
		}
		if traffic.dials.Load() > dials {
			t.Error("a decision asked a server that is away")
		}
	}
	check()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := f.Refresh(t.Context()); err == nil {
		t.Error("a server that has lost everything is believed")
	}
	check()
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 11)}})
	refresh(t, f)
	if a, b := f.quota("core", "alice"), f.quota("core", "bob"); a != 11 || b != 11 || f.status().Wrong != "" {
		t.Errorf("alice has %d, bob %d, %+v; want what was written since", a, b, f.status())
	}
}

// A server that hangs costs one decision its time, not each.
func TestAHangCostsOneDecision(t *testing.T) {
	server := testserver.Redis(t)
	store, _, traffic := open(t, server)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}, Override: []policies.Override{{Policy: "core", Key: "alice", Blocked: true}}})
	f := new(follower)
	f.Watch = redispolicies.NewWatch(t.Context(), &f.table, "redis", store, &redispolicies.Options{Every: time.Hour, Observer: f})
	defer f.Close()
	server.Pause()
	defer server.Resume()
	if n := f.quota("core", "alice"); n != 10 {
		t.Errorf("the quota is %d; want the policy's", n)
	}
	before, dials := traffic.n.Load(), traffic.dials.Load()
	for i := range 100 {
		f.quota("core", fmt.Sprint("k", i))
	}
	if traffic.n.Load() > before || traffic.dials.Load() > dials {
		t.Error("decisions ask a server that has just not answered")
	}
}

// state is the content of a store at a version.
type state struct{ policies, overrides map[string]int64 }

func (s *state) quota(policy, key string) int64 {
	if n, ok := s.overrides[policy+" "+key]; ok {
		return n
	}
	if n, ok := s.policies[policy]; ok {
		return n
	}
	return -1
}

// write makes a random change, and returns the state after it.
func (s *state) write(t *testing.T, random *rand.Rand, store *redispolicies.Store) *state {
	t.Helper()
	next := &state{maps.Clone(s.policies), maps.Clone(s.overrides)}
	var c redispolicies.Change
	for _, i := range random.Perm(8)[:1+random.IntN(8)] {
		name, n := fmt.Sprint("p", i), 1+random.Int64N(1000)
		key := fmt.Sprint("k", random.IntN(3))
		switch random.IntN(5) {
		case 0:
			c.Remove = append(c.Remove, name)
			delete(next.policies, name)
		case 1, 2:
			c.Set = append(c.Set, hourly(name, n))
			next.policies[name] = n
		case 3:
			c.Override = append(c.Override, policies.Override{Policy: name, Key: key, Limits: limits(n)})
			next.overrides[name+" "+key] = n
		case 4:
			c.RemoveOverrides = append(c.RemoveOverrides, policies.Override{Policy: name, Key: key})
			delete(next.overrides, name+" "+key)
		}
	}
	write(t, store, c)
	return next
}

// Each process has the policies of one whole version: after a look, the last one, with no older
// override. So do processes that look seldom, or begin late, and processes with a short log.
func TestRandomChanges(t *testing.T) {
	server := testserver.Redis(t)
	random := testseed.Rand(t, 0)
	store, _, _ := open(t, server)
	store.SetMaxLog(12)
	history := []*state{{map[string]int64{}, map[string]int64{}}}
	all := []*follower{follow(t, store)}
	check := func(f *follower, looked bool) {
		t.Helper()
		version := f.status().Version
		if looked && version != int64(len(history)-1) {
			t.Fatalf("version %d of %d is in force", version, len(history)-1)
		}
		was := history[version]
		for i := range 8 {
			name := fmt.Sprint("p", i)
			if p := f.table.View().Policy(name); (p != nil) != (was.policies[name] > 0) || p != nil && p.Limits[0].Quota != was.policies[name] {
				t.Fatalf("at version %d, %s is %v; want quota %d", version, name, p, was.policies[name])
			}
			for k := range 4 {
				key := fmt.Sprint("k", k)
				if got, want := f.quota(name, key), was.quota(name, key); looked && got != want {
					t.Fatalf("at version %d, %s has %d under %s; want %d", version, key, got, name, want)
				}
			}
		}
	}
	for range 250 {
		history = append(history, history[len(history)-1].write(t, random, store))
		f := all[random.IntN(len(all))]
		check(f, false)
		if random.IntN(2) == 0 {
			refresh(t, f)
			check(f, true)
		}
		if random.IntN(60) == 0 {
			f = follow(t, store)
			all = append(all, f)
			check(f, true)
		}
	}
	for _, f := range all {
		refresh(t, f)
		check(f, true)
	}
}

// A watch looks by itself.
func TestAWatchLooks(t *testing.T) {
	server := testserver.Redis(t)
	store, _, _ := open(t, server)
	var table policies.Table
	w := redispolicies.NewWatch(t.Context(), &table, "redis", store, &redispolicies.Options{Every: time.Millisecond})
	defer w.Close()
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 7)}})
	for deadline := time.Now().Add(10 * time.Second); table.View().Policy("core") == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a change was not seen in 10 s")
		}
	}
}

// A server that has lost its last writes, and then took others, has another version of the
// same number.
func TestAnotherServerInItsPlace(t *testing.T) {
	server := testserver.Redis(t)
	store, client, _ := open(t, server)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10), hourly("gone", 10)}})
	f := follow(t, store)
	client.FlushDB(t.Context()) // of this test's own servers
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 20)}})
	refresh(t, f)
	if n := f.quota("core", "k"); n != 20 || f.quota("gone", "k") != -1 || f.status().Version != 1 {
		t.Errorf("quota %d, %+v; want what the server has now", n, f.status())
	}
}

// Its number is higher than the lost version's, so it looks as if it followed it.
func TestMoreChangesInItsPlace(t *testing.T) {
	server := testserver.Redis(t)
	store, client, _ := open(t, server)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10), hourly("gone", 10)}})
	f := follow(t, store)
	client.FlushDB(t.Context()) // of this test's own servers
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 20)}})
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("search", 5)}})
	refresh(t, f)
	if core, search := f.quota("core", "k"), f.quota("search", "k"); core != 20 || search != 5 || f.quota("gone", "k") != -1 || f.status().Version != 2 {
		t.Errorf("quotas %d and %d, %+v; want what the server has now", core, search, f.status())
	}
}

// BenchmarkRefresh changes 50,000 policies, and puts them in force.
func BenchmarkRefresh(b *testing.B) {
	const policies = 50_000
	store, _, traffic := open(b, testserver.Redis(b))
	f := follow(b, store)
	var took, sent time.Duration
	var bytes int64
	for n := int64(1); b.Loop(); n++ {
		began := time.Now()
		for i := 0; i < policies; i += redispolicies.MaxChange {
			var c redispolicies.Change
			for j := range redispolicies.MaxChange {
				c.Set = append(c.Set, hourly(fmt.Sprintf("policy-%05d", i+j), n))
			}
			write(b, store, c)
		}
		wrote, before := time.Now(), traffic.n.Load()
		refresh(b, f)
		took, sent, bytes = time.Since(wrote), wrote.Sub(began), traffic.n.Load()-before
	}
	b.ReportMetric(float64(took.Milliseconds()), "refresh-ms")
	b.ReportMetric(float64(sent.Milliseconds()), "write-ms")
	b.ReportMetric(float64(bytes)/policies, "bytes/policy")
}
