package redispolicies_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// Concurrent writers, each as if it were alone, make no cycle together, and do not remove a
// parent that another has just given a child.
func TestWritersMakeNoCycleTogether(t *testing.T) {
	server := testserver.Redis(t)
	first, _, _ := open(t, server)
	second, _, _ := open(t, server)
	f := follow(t, first)
	for i := range 12 {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		write(t, first, redispolicies.Change{Set: []*quota.Policy{hourly(a, 5), hourly(b, 5)}})
		other := redispolicies.Change{Set: []*quota.Policy{under(b, a, "k")}}
		if i%2 == 0 {
			other = redispolicies.Change{Remove: []string{b}}
		}
		var errs [2]error
		var both sync.WaitGroup
		both.Go(func() {
			_, errs[0] = first.Write(t.Context(), redispolicies.Change{Set: []*quota.Policy{under(a, b, "k")}})
		})
		both.Go(func() { _, errs[1] = second.Write(t.Context(), other) })
		both.Wait()
		if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs[:]...), quota.ErrInvalid) {
			t.Errorf("round %d: %v; want one change, and an ErrInvalid", i, errs)
		}
		refresh(t, f)
	}
	if f.warnings() > 0 {
		t.Errorf("warnings %q", f.warned)
	}
}

// Foreign data in the hashes does no harm: an invalid policy keeps the last good version in
// force until it is mended, and the rest is not read, or is left out.
func TestForeignFields(t *testing.T) {
	server := testserver.Redis(t)
	store, client, _ := open(t, server)
	ended := policies.Override{Policy: "core", Key: "ended", Blocked: true, Until: time.Unix(1, 0)}
	write(t, store, redispolicies.Change{
		Set:      []*quota.Policy{hourly("orgs", 5), under("core", "orgs", "acme")},
		Override: []policies.Override{{Policy: "core", Key: "alice", Limits: limits(70)}, ended},
	})
	f := follow(t, store)
	client.HSet(t.Context(), "{weir:policies}:policies", "orgs", "{", "junk", "[]", "a b\n\xff", "7", "none", "")
	client.HSet(t.Context(), "{weir:policies}:overrides", "no newline", "{}", "core\nbob", "{", "core\ncarol", `{"limits": 7}`, "\n", "")
	client.HSet(t.Context(), "{weir:policies}:marks", "\xff", "x", "", "7")
	client.HSet(t.Context(), "{weir:policies}:parents", "orphan", "orgs\nk", "loop", "loop")
	client.HSet(t.Context(), "{weir:policies}:children", "orphan", "1", "orgs", "x")
	client.ZAdd(t.Context(), "{weir:policies}:log", redis.Z{Score: 1, Member: ""}, redis.Z{Score: 2, Member: "x"}, redis.Z{Score: 2, Member: "zebra"}, redis.Z{Score: 2, Member: ""})
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("search", 9)}})
	refresh(t, f) // it reads only the changes
	for _, key := range []string{"bob", "carol", "dora"} {
		if n := f.quota("core", key); n != 10 {
			t.Errorf("%s has %d", key, n)
		}
	}
	if n := f.quota("core", "alice"); n != 70 || f.quota("search", "k") != 9 {
		t.Errorf("quotas %d and %d", n, f.quota("search", "k"))
	}
	late := follow(t, store)
	if wrong := late.status().Wrong; !strings.Contains(wrong, `"orgs"`) || !strings.Contains(wrong, `"junk"`) || !strings.Contains(wrong, `"none"`) {
		t.Errorf("a process that starts says %q", wrong)
	}
	seen := 0
	if err := store.Overrides(t.Context(), func(policies.Override) bool { seen++; return true }); seen != 2 || !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("%d overrides, %v; want those that are some, and an error", seen, err)
	}
	if n, err := store.RemoveEnded(t.Context(), time.Now()); n != 1 || err != nil {
		t.Errorf("%d have ended, %v", n, err)
	}
	write(t, store, redispolicies.Change{Set: []*quota.Policy{hourly("orgs", 6)}, Remove: []string{"junk", "a b\n\xff", "none"}})
	for _, f := range []*follower{f, late} {
		if err := f.Refresh(t.Context()); err != nil || f.quota("orgs", "k") != 6 || f.quota("core", "alice") != 70 {
			t.Errorf("%v, %+v: quotas %d and %d", err, f.status(), f.quota("orgs", "k"), f.quota("core", "alice"))
		}
	}
}
