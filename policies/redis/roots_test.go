package redispolicies_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/policies"
	redispolicies "github.com/weir-go/weir/policies/redis"
	"github.com/weir-go/weir/quota"
)

// versions returns the versions of the servers, "" for a server without a version or an answer.
func (all clients) versions(t *testing.T) (is []string) {
	t.Helper()
	all.each(func(c redis.UniversalClient) {
		is = append(is, c.Get(t.Context(), "{weir:policies}:version").Val())
	})
	return is
}

// mended makes f look until all servers have the same version.
func (all clients) mended(t *testing.T, f *follower) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		_ = f.Refresh(t.Context())
		is := all.versions(t)
		if slices.Sort(is); is[0] != "" && is[0] == is[len(is)-1] {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the roots have %q after 20 s, and a process that looks", all.versions(t))
		}
	}
}

// looks makes f look once for each server.
func looks(t *testing.T, f *follower, all clients) (err error) {
	t.Helper()
	for range all {
		err = errors.Join(err, f.Refresh(t.Context()))
	}
	return err
}

// Roots that are killed, one after the other, lose nothing, and changes continue.
func TestRootsAreKilledInTurn(t *testing.T) {
	t.Parallel()
	at := places(t, 3)
	store, clients, _ := at.open(t)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("orgs", 5), under("core", "orgs", "acme")}, Override: []policies.Override{
		{Policy: "core", Key: "alice", Limits: limits(70)}, {Policy: "core", Key: "a\nb\x00\xff", Limits: limits(80)},
	}})
	f := follow(t, store)
	for i := range 6 {
		server := at[i%3]
		server.Stop()
		version := write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("search", int64(i)+1)}})
		for range 3 {
			refresh(t, f)
			if n := f.quota("search", "k"); n != int64(i)+1 || f.status().Version != version {
				t.Fatalf("round %d: quota %d, %+v; want version %d", i, n, f.status(), version)
			}
		}
		if n := f.quota("core", fmt.Sprint("new-", i)); n != 10 {
			t.Errorf("round %d: the quota of a key without an override is %d", i, n)
		}
		if err := server.Restart(); err != nil { // with nothing
			t.Fatal(err)
		}
		if late := follow(t, store); late.quota("core", "alice") != 70 || late.status().Version != version {
			t.Errorf("round %d: a process that starts has %d for alice, %+v", i, late.quota("core", "alice"), late.status())
		}
		clients.mended(t, f)
	}
	late := follow(t, redispolicies.NewStore(clients[0], "")) // which was killed twice
	for key, want := range map[string]int64{"alice": 70, "a\nb\x00\xff": 80, "bob": 10} {
		if n := late.quota("core", key); n != want {
			t.Errorf("a root that was mended has %d for %q; want %d", n, key, want)
		}
	}
	if p := late.table.View().Policy("core"); p.Parent != "orgs" || p.ParentKey != "acme" {
		t.Errorf("a root that was mended has %+v", p)
	}
	if len(f.warned) != 0 {
		t.Errorf("warnings %q", f.warned)
	}
}

// With half of the roots or fewer, no change is made, and known policies stay in force.
func TestTooFewRoots(t *testing.T) {
	for _, c := range []struct {
		roots, dies int
		changes     bool
	}{{2, 0, false}, {2, 1, true}, {3, 0, true}, {4, 0, true}, {1, 0, false}} {
		at := places(t, c.roots)
		store, clients, _ := at.open(t)
		write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}, Override: []policies.Override{{Policy: "core", Key: "alice", Limits: limits(70)}}})
		f := follow(t, store)
		at[c.dies].Stop()
		_, err := store.Write(t.Context(), redispolicies.Change{Set: []*quota.Policy{hourly("core", 20)}})
		if (err == nil) != c.changes {
			t.Errorf("of %d, %d is away: %v; want a change %t", c.roots, c.dies, err, c.changes)
		}
		want := map[bool]int64{true: 20, false: 10}[c.changes]
		err = looks(t, f, clients)
		if n := f.quota("core", "k"); n != want || (err == nil) != c.changes {
			t.Errorf("of %d, %d is away: quota %d, %v", c.roots, c.dies, n, err)
		}
		if c.roots > 1 {
			if n := f.quota("core", "alice"); n != 70 {
				t.Errorf("of %d, %d is away: the override that a root still has is %d", c.roots, c.dies, n)
			}
			if late := follow(t, store); late.quota("core", "k") != want || late.quota("core", "alice") != 70 {
				t.Errorf("of %d, %d is away: a process that starts has %d", c.roots, c.dies, late.quota("core", "k"))
			}
		}
	}
}

// A change made at too few roots, by a writer that died, is in force nowhere. The next change
// is made at all roots, and takes its place.
func TestAChangeThatWasNotEnded(t *testing.T) {
	store, clients, _ := places(t, 3).open(t)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}})
	f := follow(t, store)
	write(t, redispolicies.NewStore(clients[0], ""), redispolicies.Change{Set: []*quota.Policy{hourly("core", 20), hourly("torn", 1)}})
	if err := looks(t, f, clients); err != nil || f.quota("core", "k") != 10 || len(f.warned) > 0 {
		t.Errorf("%v, quota %d, warnings %q", err, f.quota("core", "k"), f.warned)
	}
	if n := write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("search", 30)}}); n != 2 {
		t.Errorf("version %d", n)
	}
	refresh(t, f)
	if f.quota("search", "k") != 30 || f.quota("core", "k") != 10 || f.quota("torn", "k") != -1 {
		t.Errorf("quotas %d, %d, %d", f.quota("search", "k"), f.quota("core", "k"), f.quota("torn", "k"))
	}
	clients.mended(t, f)
	if late := follow(t, redispolicies.NewStore(clients[0], "")); late.quota("core", "k") != 10 || late.quota("torn", "k") != -1 {
		t.Errorf("the root that had the change has quotas %d and %d", late.quota("core", "k"), late.quota("torn", "k"))
	}
}

// Concurrent writers make one change after the other.
func TestWritersAtOnce(t *testing.T) {
	at := places(t, 3)
	store, clients, _ := at.open(t)
	const writers, each = 6, 8
	var versions sync.Map
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				name := fmt.Sprintf("w%d-%d", w, i)
				n, err := store.Write(t.Context(), redispolicies.Change{Set: []*quota.Policy{hourly(name, 5)}})
				if err != nil {
					t.Error(err)
				} else if other, again := versions.LoadOrStore(n, name); again {
					t.Errorf("%v and %s are both version %d", other, name, n)
				}
			}
		})
	}
	all.Wait()
	f := follow(t, store)
	if s := f.status(); s.Policies != writers*each {
		t.Errorf("%+v; want %d policies", s, writers*each)
	}
	clients.mended(t, f)
}

// A process never goes back, and has all changes, whichever roots are killed, as long as more
// than half of them have the changes.
func TestRandomRoots(t *testing.T) {
	t.Parallel()
	random := testseed.Rand(t, 0)
	at := places(t, 3)
	store, clients, _ := at.open(t)
	written := map[string]int64{}
	all := []*follower{follow(t, store)}
	down, torn := -1, false
	was := write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("first", 1)}})
	for i := range 120 {
		switch random.IntN(8) {
		case 0:
			if torn { // another failure is one too many
				break
			}
			if down >= 0 {
				if err := at[down].Restart(); err != nil {
					t.Fatal(err)
				}
				if down = -1; !torn {
					clients.mended(t, all[0])
				}
			} else {
				down = random.IntN(3)
				at[down].Stop()
			}
		case 1:
			all = append(all, follow(t, store))
		case 2: // a writer dies in the middle
			if n := random.IntN(3); n != down && !torn {
				torn = true
				name := fmt.Sprint("torn-", random.IntN(3))
				_, _ = redispolicies.NewRoots([]redis.UniversalClient{clients[n]}, "").Write(t.Context(), redispolicies.Change{Set: []*quota.Policy{hourly(name, 1)}})
			}
		default:
			name, n := fmt.Sprint("p", random.IntN(4)), int64(i)+2
			version := write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly(name, n)}, Override: []policies.Override{{Policy: name, Key: "k", Limits: limits(n + 1000)}}})
			if version <= was {
				t.Fatalf("step %d: version %d after %d", i, version, was)
			}
			written[name], was = n, version
			if torn && down < 0 {
				clients.mended(t, all[0])
				torn = false
			}
		}
		for _, f := range all {
			before := f.status().Version
			if random.IntN(2) == 0 {
				_ = f.Refresh(t.Context())
			}
			if now := f.status().Version; now < before {
				t.Fatalf("step %d: version %d after %d", i, now, before)
			}
		}
	}
	version := write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("last", 1)}})
	for _, f := range append(all, follow(t, store)) {
		if err := looks(t, f, clients); err != nil || f.status().Version != version {
			t.Errorf("%v, %+v; want version %d", err, f.status(), version)
		}
		for name, n := range written {
			if p, o := f.quota(name, "other"), f.quota(name, "k"); p != n || o != n+1000 {
				t.Errorf("%s has %d, and its override %d; want %d", name, p, o, n)
			}
		}
	}
}

// backup saves the contents of a root, and returns a function that restores them.
func backup(t *testing.T, c redis.UniversalClient) (restore func()) {
	t.Helper()
	was := map[string]string{}
	for _, key := range c.Keys(t.Context(), "*").Val() {
		text, err := c.Dump(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		was[key] = text
	}
	return func() {
		t.Helper()
		c.FlushDB(t.Context())
		for key, text := range was {
			if err := c.Restore(t.Context(), key, 0, text).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// If roots are restored from old backups, one or more than half of them, no process goes back
// while a root has the version in force, and new changes come into force.
func TestRootsFromOldBackups(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		roots    int
		restored []int
		ago      int64 // versions
	}{{3, []int{0}, 1}, {3, []int{1}, 3}, {3, []int{0, 1}, 1}, {3, []int{1, 2}, 3}, {2, []int{0}, 1}, {2, []int{0}, 3}, {5, []int{0, 2, 3}, 2}} {
		store, clients, _ := places(t, c.roots).open(t)
		last, old := int64(0), []func(){}
		for n := range int64(5) {
			last = write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10+n)}})
			if last == 5-c.ago {
				for _, i := range c.restored {
					old = append(old, backup(t, clients[i]))
				}
			}
		}
		early := follow(t, store)
		for _, restore := range old {
			restore()
		}
		for range 3 * c.roots {
			if err := early.Refresh(t.Context()); err != nil || early.quota("core", "k") != 14 {
				t.Fatalf("%+v: %v, quota %d; want 14, as before", c, err, early.quota("core", "k"))
			}
		}
		if c.ago > 1 || len(c.restored)*2 < c.roots { // otherwise it looks like an unfinished change
			clients.mended(t, early)
			if n := follow(t, store).quota("core", "k"); n != 14 {
				t.Errorf("%+v: a process that starts has quota %d", c, n)
			}
		}
		version := write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 99)}})
		if err := looks(t, early, clients); err != nil {
			t.Error(err)
		}
		if s := early.status(); early.quota("core", "k") != 99 || s.Version != version || version < last {
			t.Errorf("%+v: quota %d, %+v; want 99 by version %d, which is not before %d", c, early.quota("core", "k"), s, version, last)
		}
		clients.mended(t, early)
	}
}

// An unfinished change may have been made at a root that is down. So a process that cannot tell
// finishes it.
func TestAChangeIsEnded(t *testing.T) {
	t.Parallel()
	for _, away := range []int{0, 1} {
		at := places(t, 3)
		store, clients, _ := at.open(t)
		write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}})
		early := follow(t, store)
		write(t, redispolicies.NewStore(clients[2], ""), redispolicies.Change{Set: []*quota.Policy{hourly("core", 20)}})
		at[away].Pause()
		f := follow(t, store)
		if n := f.quota("core", "k"); n != 20 {
			t.Errorf("quota %d; want 20, the highest version", n)
		}
		for deadline := time.Now().Add(20 * time.Second); clients[1-away].Get(t.Context(), "{weir:policies}:version").Val() < "2"; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("more than half lack the change after 20 s")
			}
		}
		at[away].Resume()
		clients.mended(t, early)
		if n, version := early.quota("core", "k"), early.status().Version; n != 20 || version != 2 {
			t.Errorf("quota %d of version %d; want 20, as f has", n, version)
		}
		if n := write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 30)}}); n != 3 {
			t.Errorf("version %d", n)
		}
	}
}

// A copy of several pages has parents before their children, whatever their names.
func TestACopyHasParents(t *testing.T) {
	t.Parallel()
	const lines = 600
	store, clients, _ := places(t, 3).open(t)
	for _, level := range []string{"top", "middle", "low"} {
		var c redispolicies.Change
		for i := range lines {
			p := hourly(fmt.Sprint(level, i), 5)
			switch level {
			case "middle":
				p.Parent, p.ParentKey = fmt.Sprint("top", i), "k"
			case "low":
				p.Parent, p.ParentKey = fmt.Sprint("middle", i), "k"
			}
			c.Set = append(c.Set, p)
		}
		write(t, store, c)
	}
	f := follow(t, store)
	clients[0].FlushDB(t.Context())
	clients.mended(t, f)
	copied := follow(t, redispolicies.NewStore(clients[0], ""))
	if s := copied.status(); s.Policies != 3*lines || len(f.warned)+len(copied.warned) > 0 {
		t.Errorf("%+v, warnings %q, %q", s, f.warned, copied.warned)
	}
	for i := range lines {
		if p := copied.table.View().Policy(fmt.Sprint("low", i)); p == nil || p.Parent != fmt.Sprint("middle", i) {
			t.Fatalf("%+v", p)
		}
	}
	// The copy knows the tree, too.
	if _, err := redispolicies.NewStore(clients[0], "").Write(t.Context(), redispolicies.Change{Remove: []string{"top7"}}); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("a parent was removed: %v", err)
	}
}

// notEnded returns three roots, and a process that has read an override from the first root.
// Only that root has the override's change, which is unfinished.
func notEnded(t *testing.T) (store *redispolicies.Store, all clients, traffic *bytes, f *follower) {
	store, all, traffic = places(t, 3).open(t)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}, Override: []policies.Override{{Policy: "core", Key: "bob", Limits: limits(70)}}})
	f = follow(t, store)
	// A process that has just started asks the first root.
	write(t, redispolicies.NewStore(all[0], ""), redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "mallory", Blocked: true}}})
	if n := f.quota("core", "mallory"); n != 0 {
		t.Fatalf("quota %d; want what the root that is asked has", n)
	}
	return store, all, traffic, f
}

// An override read from an unfinished change does not stay when another change takes its place.
// An override that comes into force stays, and is not asked for again.
func TestAnOverrideOfAChangeThatWasNotEnded(t *testing.T) {
	store, clients, traffic, f := notEnded(t)
	write(t, store, redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "alice", Limits: limits(80)}}})
	clients.mended(t, f)
	if m, a := f.quota("core", "mallory"), f.quota("core", "alice"); m != 10 || a != 80 {
		t.Errorf("quotas %d and %d; want the policy's and the override's", m, a)
	}
	before := traffic.n.Load()
	if f.quota("core", "mallory"); traffic.n.Load() != before {
		t.Error("what is in force is asked for again")
	}
}

// An override read from an unfinished change does not stay if no other change is made, either.
func TestAnOverrideOfTheLastChange(t *testing.T) {
	_, clients, _, f := notEnded(t)
	if err := looks(t, f, clients); err != nil {
		t.Fatal(err)
	}
	if m, b := f.quota("core", "mallory"), f.quota("core", "bob"); m != 10 || b != 70 {
		t.Errorf("quotas %d and %d; want the policy's and the override's", m, b)
	}
}

// An override that a server lost in a failover, with its change, does not stay.
func TestAnOverrideThatAServerLost(t *testing.T) {
	at := places(t, 1)
	store, clients, _ := at.open(t)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}, Override: []policies.Override{{Policy: "core", Key: "bob", Limits: limits(70)}}})
	f := follow(t, store)
	lost := backup(t, clients[0])
	write(t, store, redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "mallory", Blocked: true}}})
	if n := f.quota("core", "mallory"); n != 0 {
		t.Fatalf("quota %d; want the override, which is new", n)
	}
	at[0].Kill()
	if err := f.Refresh(t.Context()); err == nil {
		t.Error("a server that is away answered")
	}
	if err := at[0].Restart(); err != nil {
		t.Fatal(err)
	}
	lost()
	refresh(t, f)
	if m, b := f.quota("core", "mallory"), f.quota("core", "bob"); m != 10 || b != 70 {
		t.Errorf("quotas %d and %d; want the policy's and the override's", m, b)
	}
}

// An override of a wrong version, which does not come into force, does not stay when a server
// has lost that version.
func TestAnOverrideOfAWrongVersion(t *testing.T) {
	store, clients, _ := places(t, 1).open(t)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}, Override: []policies.Override{{Policy: "core", Key: "bob", Limits: limits(70)}}})
	f := follow(t, store)
	lost := backup(t, clients[0])
	write(t, store, redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "mallory", Blocked: true}}})
	if _, err := store.WriteText(t.Context(), "core", "{"); err != nil {
		t.Fatal(err)
	}
	if err := f.Refresh(t.Context()); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("a version that is wrong: %v", err)
	}
	if n := f.quota("core", "mallory"); n != 0 {
		t.Fatalf("quota %d; want what the server has", n)
	}
	lost()
	refresh(t, f)
	if m, b := f.quota("core", "mallory"), f.quota("core", "bob"); m != 10 || b != 70 {
		t.Errorf("quotas %d and %d; want the policy's and the override's", m, b)
	}
}

// failing makes the first left commands called name fail with err.
type failing struct {
	name string
	left int
	err  error
}

func (f *failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != f.name || f.left == 0 {
			return next(ctx, cmd)
		}
		f.left--
		cmd.SetErr(f.err)
		return cmd.Err()
	}
}

func (f *failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// busy makes a change after each of the first pages of a copy to a root.
type busy struct {
	change func()
	left   int
	copies atomic.Int64
}

func (h *busy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *busy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "set" {
			h.copies.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (h *busy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "expire" && h.left > 0 { // a page was copied
			h.left--
			h.change()
		}
		return next(ctx, cmds)
	}
}

// A copy contains the changes made during the copying, however many.
func TestACopyCatchesUp(t *testing.T) {
	at := places(t, 3)
	store, clients, _ := at.open(t)
	other, _, _ := at.open(t)
	write(t, store, redispolicies.Change{
		Set:      []*quota.Policy{hourly("orgs", 10), hourly("moves", 10), under("core", "orgs", "acme"), hourly("gone", 5)},
		Override: []policies.Override{{Policy: "core", Key: "alice", Limits: limits(70)}, {Policy: "core", Key: "bob", Limits: limits(80)}},
	})
	f := follow(t, store)
	n := int64(0)
	h := &busy{left: 8, change: func() {
		n++
		c := redispolicies.Change{Set: []*quota.Policy{hourly("search", n), under("core", []string{"orgs", "moves"}[n%2], "k")}, Override: []policies.Override{{Policy: "core", Key: "alice", Limits: limits(n)}}}
		if n == 1 {
			c.Remove, c.RemoveOverrides = []string{"gone"}, []policies.Override{{Policy: "core", Key: "bob"}}
		}
		write(t, other, c)
	}}
	clients[0].AddHook(h)
	clients[0].FlushDB(t.Context())
	for deadline := time.Now().Add(20 * time.Second); clients[0].Get(t.Context(), "{weir:policies}:version").Val() == "" && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if h.copies.Load() == 0 {
			_ = f.Refresh(t.Context())
		}
	}
	late := follow(t, redispolicies.NewStore(clients[0], ""))
	p := late.table.View().Policy("core")
	if late.quota("search", "k") != n || late.quota("core", "alice") != n || late.quota("core", "bob") != 10 || late.quota("gone", "k") != -1 || p == nil || p.Parent != "orgs" {
		t.Errorf("after %d changes: quotas %d, %d, %d and %d, and %+v", n, late.quota("search", "k"), late.quota("core", "alice"), late.quota("core", "bob"), late.quota("gone", "k"), p)
	}
	if is := clients.versions(t); n != 8 || is[0] != is[1] {
		t.Errorf("after %d changes the roots have %q", n, is)
	}
}

var errKilled = errors.New("the root was killed")

// A change made at too few roots, because one did not answer, is tried again. Roots that have
// it do not make it twice.
func TestAChangeIsTriedAgain(t *testing.T) {
	for _, away := range []bool{false, true} {
		at := places(t, 3)
		store, clients, _ := at.open(t)
		write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}})
		early := follow(t, store)
		if away {
			at[0].Stop()
		} else {
			clients[1].AddHook(&failing{"evalsha", 1, errKilled})
		}
		clients[2].AddHook(&failing{"evalsha", 1, errKilled})
		if n := write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 20)}}); n != 2 {
			t.Errorf("version %d; want 2", n)
		}
		if err := looks(t, early, clients); err != nil || early.quota("core", "k") != 20 || early.warnings() > 0 {
			t.Errorf("%v, quota %d, warnings %q", err, early.quota("core", "k"), early.warned)
		}
	}
}

// A process looks again, without a warning, if its root is killed while it is read.
func TestAReadIsTriedAgain(t *testing.T) {
	store, clients, _ := places(t, 3).open(t)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}})
	f := follow(t, store)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 20)}})
	clients[0].AddHook(&failing{"evalsha", 1, errKilled}) // the first root with a version is read
	if err := f.Refresh(t.Context()); err != nil || f.quota("core", "k") != 20 || f.warnings() > 0 {
		t.Errorf("%v, quota %d, warnings %q", err, f.quota("core", "k"), f.warned)
	}
}

// A root that has nothing when it is asked, and is mended right then, is asked again.
func TestALookIsTriedAgain(t *testing.T) {
	at := places(t, 3)
	store, clients, _ := at.open(t)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}})
	f := follow(t, store)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 20)}})
	at[0].Stop()
	clients[2].AddHook(&failing{"get", 1, redis.Nil})
	if err := f.Refresh(t.Context()); err != nil || f.quota("core", "k") != 20 {
		t.Errorf("%v, quota %d; want 20", err, f.quota("core", "k"))
	}
}

// A copy that fails is tried again. If that fails, too, there is one warning.
func TestACopyThatFailsOnce(t *testing.T) {
	for _, c := range []struct{ fail, warnings int }{{1, 0}, {2, 1}, {5, 1}} {
		store, clients, _ := places(t, 3).open(t)
		write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}})
		f := follow(t, store)
		clients[1].AddHook(&failing{"set", c.fail, errKilled})
		clients[1].FlushDB(t.Context())
		clients.mended(t, f)
		f.Close()
		if n := f.warnings(); n != c.warnings {
			t.Errorf("%d copies fail: warnings %q; want %d", c.fail, f.warned, c.warnings)
		}
	}
}

// vanish deletes the keys of the first copy to a root before the copy takes their place, and
// then calls after.
type vanish struct {
	keys  redis.UniversalClient
	after func()
	once  sync.Once
}

func (h *vanish) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *vanish) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *vanish) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if len(args) < 3 || fmt.Sprint(args[2]) != "16" { // it is not copied.lua
			return next(ctx, cmd)
		}
		h.once.Do(func() {
			for _, key := range h.keys.Keys(ctx, "{weir:policies}:copy:*").Val() {
				h.keys.Unlink(ctx, key)
			}
		})
		err := next(ctx, cmd)
		if err == nil && h.after != nil {
			h.after()
			h.after = nil
		}
		return err
	}
}

// A copy whose keys have expired or were evicted does not take the place of a root's policies.
func TestACopyThatIsGone(t *testing.T) {
	at := places(t, 3)
	store, clients, _ := at.open(t)
	_, others, _ := at.open(t)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}})
	f := follow(t, store)
	before := clients.versions(t)[1]
	clients[1].AddHook(&failing{"evalsha", 1, errKilled}) // it misses a change
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 20)}})
	done := make(chan struct{})
	clients[1].AddHook(&vanish{keys: others[1], after: func() {
		defer close(done)
		if is := others.versions(t)[1]; is != before || others[1].HLen(t.Context(), "{weir:policies}:policies").Val() != 1 {
			t.Errorf("a root has version %q and the policies %v; want them as before, version %q", is, others[1].HGetAll(t.Context(), "{weir:policies}:policies").Val(), before)
		}
	}})
	clients.mended(t, f)
	<-done
	if late := follow(t, redispolicies.NewStore(others[1], "")); late.quota("core", "k") != 20 {
		t.Errorf("a root that was mended has the quota %d; want 20", late.quota("core", "k"))
	}
}

// A root that has lost its data does not report that a key has no override.
func TestARootThatLostAllIsNotAsked(t *testing.T) {
	at := places(t, 3)
	store, clients, _ := at.open(t)
	write(t, store, redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "mallory", Blocked: true}}})
	for i := range clients {
		f := follow(t, store)
		clients[i].FlushDB(t.Context())
		if n := f.quota("core", "mallory"); n != 0 {
			t.Errorf("root %d has lost all: the quota of a blocked client is %d", i, n)
		}
		clients.mended(t, f)
	}
}

// split calls before ahead of the first pipeline and, unless that is a transaction, between
// after its first command.
type split struct{ before, between func() }

func (h *split) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *split) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h *split) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		before := h.before
		if h.before = nil; before == nil {
			return next(ctx, cmds)
		}
		before()
		if cmds[0].Name() == "multi" {
			return next(ctx, cmds)
		}
		err := next(ctx, cmds[:1])
		h.between()
		return errors.Join(err, next(ctx, cmds[1:]))
	}
}

// Nor does a root that is mended while it is asked.
func TestARootThatIsMendedMeanwhile(t *testing.T) {
	at := places(t, 3)
	store, clients, _ := at.open(t)
	other, others, _ := at.open(t)
	write(t, store, redispolicies.Change{Override: []policies.Override{{Policy: "core", Key: "mallory", Blocked: true}}})
	f, g := follow(t, store), follow(t, other)
	clients[0].AddHook(&split{ // the first root with the version is asked
		before:  func() { others[0].FlushDB(t.Context()) },
		between: func() { others.mended(t, g) },
	})
	if n := f.quota("core", "mallory"); n != 0 {
		t.Errorf("the quota of a blocked client is %d", n)
	}
}

// A process that may not write an operator's keys cannot mend a root, and warns.
func TestAProcessThatMayNotMend(t *testing.T) {
	at := places(t, 3)
	store, clients, _ := at.open(t)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}})
	var readers []redis.UniversalClient
	for i, c := range clients {
		if err := c.Do(t.Context(), "acl", "setuser", "reader", "on", ">secret", "~{weir:policies}:*", "+get", "+hget", "+hscan", "+hexists", "+zrangebyscore", "+evalsha", "+eval", "+hello", "+client").Err(); err != nil {
			t.Fatal(err)
		}
		r := redis.NewClient(&redis.Options{Addr: at[i].Addr, Username: "reader", Password: "secret"})
		t.Cleanup(func() { _ = r.Close() })
		readers = append(readers, r)
	}
	f := follow(t, redispolicies.NewRoots(readers, ""))
	clients[1].FlushDB(context.Background())
	for deadline := time.Now().Add(10 * time.Second); f.warnings() == 0; time.Sleep(time.Millisecond) {
		refresh(t, f)
		if time.Now().After(deadline) {
			t.Fatal("no warning in 10 s")
		}
	}
	if f.quota("core", "k") != 10 || !strings.Contains(f.warned[0], "cannot be brought up to date") {
		t.Errorf("%q, quota %d", f.warned, f.quota("core", "k"))
	}
}

// refuser refuses the first command of a copy to a root, a SET, left times.
type refuser struct{ left, asked atomic.Int32 }

func (h *refuser) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *refuser) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h *refuser) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "set" {
			h.asked.Add(1)
			if h.left.Add(-1) >= 0 {
				cmd.SetErr(errors.New("refused"))
				return cmd.Err()
			}
		}
		return next(ctx, cmd)
	}
}

// Two failed copies, with a successful one between them, are not two in a row.
func TestACopySucceedsBetweenFailures(t *testing.T) {
	at := places(t, 3)
	store, clients, _ := at.open(t)
	var refused refuser
	clients[1].AddHook(&refused)
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", 10)}})
	f := follow(t, store)
	for n := int32(1); n <= 3; n++ {
		refused.left.Store(1)
		clients[1].FlushDB(t.Context())
		for deadline := time.Now().Add(20 * time.Second); refused.asked.Load() < 2*n; time.Sleep(time.Millisecond) {
			refresh(t, f)
			if time.Now().After(deadline) {
				t.Fatalf("%d copies after 20 s; want %d", refused.asked.Load(), 2*n)
			}
		}
		for deadline := time.Now().Add(20 * time.Second); clients.versions(t)[1] == ""; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("a root has no version 20 s after a copy that was not refused")
			}
		}
	}
	if f.warnings() != 0 {
		t.Errorf("warned: %q", f.warned)
	}
}
