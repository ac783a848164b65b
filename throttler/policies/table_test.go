package policies_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

func policy(name string, limits ...quota.Limit) *quota.Policy {
	return &quota.Policy{Name: name, Limits: limits}
}

func hourly(units int64) quota.Limit { return quota.Limit{Quota: units, Window: time.Hour} }

func edit(t testing.TB, s *policies.Source, change func(*policies.Edit)) {
	t.Helper()
	if err := s.Edit(change); err != nil {
		t.Fatal(err)
	}
}

// quotaOf returns the first quota that holds for key under the policy core. The program's own
// is 1.
func quotaOf(table *policies.Table, key string, now time.Time) (n int64, by *policies.Override) {
	p, by, _ := table.View().Resolve(context.Background(), policy("core", hourly(1)), key, now.UnixMilli())
	if len(p.Limits) == 0 {
		return 0, by
	}
	return p.Limits[0].Quota, by
}

var t0 = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func TestALaterSourceHidesAnEarlierOne(t *testing.T) {
	var table policies.Table
	want := func(key string, want int64) {
		t.Helper()
		if got, _ := quotaOf(&table, key, t0); got != want {
			t.Errorf("the quota of %s is %d; want %d", key, got, want)
		}
	}
	want("alice", 1)
	file, remote := table.Source("file"), table.Source("remote")
	if table.Source("file") != file {
		t.Error("a second source of one name")
	}
	edit(t, file, func(e *policies.Edit) {
		e.Set(policy("core", hourly(2)))
		e.Override(policies.Override{Policy: "core", Key: "bob", Limits: []quota.Limit{hourly(20)}})
	})
	want("alice", 2)
	want("bob", 20)
	edit(t, remote, func(e *policies.Edit) { e.Set(policy("core", hourly(3))) })
	want("alice", 3)
	want("bob", 20) // an override is for the key, whichever policy there is
	edit(t, remote, func(e *policies.Edit) {
		e.Override(policies.Override{Policy: "core", Key: "bob", Limits: []quota.Limit{hourly(30)}, Until: t0.Add(time.Minute)})
	})
	want("bob", 30)
	if got, _ := quotaOf(&table, "bob", t0.Add(time.Minute)); got != 20 {
		t.Errorf("after the end of an override the quota is %d; want the earlier source's 20", got)
	}
	edit(t, remote, func(e *policies.Edit) { e.Remove("core") })
	want("alice", 2)
	if p := table.View().Policy("core"); p == nil || p.Limits[0].Quota != 2 {
		t.Errorf("the policy in force is %v", p)
	}
	edit(t, remote, func(e *policies.Edit) { e.RemoveOverride("core", "bob") })
	edit(t, file, func(e *policies.Edit) { e.Clear() })
	want("alice", 1)
	want("bob", 1)
}

// A policy that has ended is as if the table did not have it.
func TestAPolicyThatTheTableLacks(t *testing.T) {
	var table policies.Table
	edit(t, table.Source("a"), func(e *policies.Edit) { e.Set(policy("search", hourly(5))); e.Set(policy("core", hourly(6))) })
	if p, err := table.Policy("core"); err != nil || p.Limits[0].Quota != 6 {
		t.Errorf("%+v, %v", p, err)
	}
	p, err := table.Policy("cor")
	if want := `policies: the table has no policy "cor"; it has ["core" "search"]`; p != nil || !errors.Is(err, quota.ErrInvalid) || err.Error() != want {
		t.Errorf("%v, %v; want %s", p, err, want)
	}
}

func TestPoliciesEnd(t *testing.T) {
	var table policies.Table
	edit(t, table.Source("file"), func(e *policies.Edit) { e.Set(policy("core", hourly(2))) })
	ends := policy("core", hourly(3))
	ends.Until = t0.Add(time.Minute)
	edit(t, table.Source("remote"), func(e *policies.Edit) { e.Set(ends) })
	for at, want := range map[time.Time]int64{t0: 3, ends.Until.Add(-time.Millisecond): 3, ends.Until: 2, t0.Add(time.Hour): 2} {
		if got, _ := quotaOf(&table, "alice", at); got != want {
			t.Errorf("at %v the quota is %d; want %d", at, got, want)
		}
		if p := table.View().PolicyAt("core", at.UnixMilli()); p == nil || p.Limits[0].Quota != want {
			t.Errorf("at %v the policy is %+v; want a quota of %d", at, p, want)
		}
	}
	edit(t, table.Source("file"), func(e *policies.Edit) { e.Clear() })
	if got, _ := quotaOf(&table, "alice", t0.Add(time.Minute)); got != 1 {
		t.Errorf("the quota is %d; want the program's, 1", got)
	}
	if table.View().PolicyAt("core", ends.Until.UnixMilli()) != nil || table.View().Policy("core") != ends {
		t.Error("Policy has one that has ended, and PolicyAt does not")
	}
	// When a plan has ended, the policy's own limits hold.
	plan := policy("pro", hourly(5))
	plan.Until = ends.Until
	edit(t, table.Source("file"), func(e *policies.Edit) {
		e.Set(plan)
		e.Plan("core", func(context.Context, string) string { return "pro" })
	})
	for at, want := range map[time.Time]bool{t0: true, plan.Until: false} {
		_, by, _ := table.View().Resolve(t.Context(), policy("core", hourly(1)), "alice", at.UnixMilli())
		if (by != nil) != want || by != nil && by.Err() != nil {
			t.Errorf("at %v the plan is %+v", at, by)
		}
	}
}

func TestOverrides(t *testing.T) {
	var table policies.Table
	s := table.Source("code")
	all := policy("core", hourly(1),
		quota.Limit{Quota: 2, Window: time.Minute, Algorithm: quota.SlidingWindow},
		quota.Limit{Quota: 3, Window: time.Second, Algorithm: quota.SlidingLog},
		quota.Limit{Quota: 4, Window: time.Second, Algorithm: quota.TokenBucket},
		quota.Limit{Quota: 5, Window: time.Second, Algorithm: quota.LeakyBucket})
	edit(t, s, func(e *policies.Edit) {
		e.Set(all)
		e.Override(policies.Override{Policy: "core", Key: "free", Unlimited: true})
		e.Override(policies.Override{Policy: "core", Key: "out", Blocked: true, Until: t0.Add(time.Second)})
	})
	resolve := func(key string) (*quota.Policy, *policies.Override) {
		p, by, _ := table.View().Resolve(t.Context(), policy("core"), key, t0.UnixMilli())
		return p, by
	}
	if p, by := resolve("free"); by == nil || p.Validate() != nil || len(p.Limits) != 2 ||
		p.Limits[0] != hourly(quota.MaxQuota) || p.Limits[1].Quota != quota.MaxQuota || p.Limits[1].Window != time.Minute {
		t.Errorf("unlimited: %+v; want the two windows, which count on", p)
	}
	if p, by := resolve("out"); by == nil || !by.Blocked || p != all || by.RetryAt() != t0.Add(time.Second).UnixMilli() {
		t.Errorf("blocked: %+v, %+v", p, by)
	}
	if p, by := resolve("alice"); p != all || by != nil {
		t.Errorf("without an override: %+v, %+v", p, by)
	}
}

func TestMistakesAreListedAndNothingChanges(t *testing.T) {
	var table policies.Table
	s := table.Source("code")
	edit(t, s, func(e *policies.Edit) { e.Set(policy("core", hourly(7))) })
	for _, test := range []struct {
		change func(*policies.Edit)
		want   []string
	}{
		{func(e *policies.Edit) { e.Set(policy("core", hourly(8))); e.Set(policy("a b")); e.Set(nil) },
			[]string{`policy name is "a b"`, "policy is nil"}},
		{func(e *policies.Edit) { e.Clear(); e.Override(policies.Override{Policy: "core", Key: "secret"}) },
			[]string{`override of policy "core" has 0 limits, blocked false and unlimited false; it must have one of the three`}},
		{func(e *policies.Edit) {
			e.Override(policies.Override{Policy: "core", Key: "secret", Blocked: true, Unlimited: true})
		}, []string{"blocked true and unlimited true"}},
		{func(e *policies.Edit) {
			e.Override(policies.Override{Policy: "core", Key: "secret", Limits: []quota.Limit{hourly(0)}})
		}, []string{`override: quota: policy "core": limit 0: quota is 0`}},
		{func(e *policies.Edit) { e.Override(policies.Override{Policy: "core", Blocked: true}) },
			[]string{`override of policy "core" has no key; an override is for one key`}},
		{func(e *policies.Edit) { e.Override(policies.Override{Key: "secret", Blocked: true}) }, []string{`policy name is ""`}},
		{func(e *policies.Edit) { e.Find("core", true) }, []string{`source "code" cannot find overrides of policy "core"`}},
		{func(e *policies.Edit) {
			e.Replace(policies.Content{
				Policies:  []*quota.Policy{policy("core", hourly(9)), policy("core", hourly(9))},
				Overrides: []policies.Override{{Policy: "core", Key: "secret", Blocked: true}, {Policy: "core", Key: "secret", Unlimited: true}, {}},
			})
		}, []string{`there are two policies "core"`, `override 1, of policy "core", is for the same key as an earlier one`, "override 2: "}},
		{func(e *policies.Edit) {
			for range 100 {
				e.Set(nil)
			}
		}, []string{"80 more"}},
	} {
		before := table.Status()
		err := s.Edit(test.change)
		if !errors.Is(err, quota.ErrInvalid) {
			t.Errorf("%v; want an ErrInvalid with %q", err, test.want)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %q in it", err, want)
			}
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%v has a key, and may go to a log", err)
		}
		if n, by := quotaOf(&table, "secret", t0); n != 7 || by != nil || !slices.Equal(table.Status(), before) {
			t.Errorf("after %q: quota %d, override %v, %+v; want nothing changed", test.want, n, by, table.Status())
		}
	}
}

// A view is one state, while edits replace it.
func TestViewsAreAtomic(t *testing.T) {
	t.Parallel()
	var table policies.Table
	s := table.Source("code")
	replace := func(n int64) {
		edit(t, s, func(e *policies.Edit) {
			for i := range 50 {
				e.Set(policy(fmt.Sprint("p", i), hourly(n)))
			}
		})
	}
	replace(1)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, quotas := table.View(), map[int64]bool{}
				for i := range 50 {
					p, _, _ := v.Resolve(t.Context(), policy(fmt.Sprint("p", i)), "k", 0)
					quotas[p.Limits[0].Quota] = true
				}
				if len(quotas) != 1 {
					t.Errorf("one view has the quotas %v", slices.Collect(maps.Keys(quotas)))
					return
				}
			}
		})
	}
	for n := int64(2); n < 300; n++ {
		replace(n)
	}
	close(stop)
	readers.Wait()
	if st := table.Status(); len(st) != 1 || st[0].Version != 299 || st[0].Policies != 50 {
		t.Errorf("%+v", st)
	}
}

func TestStatusAndLists(t *testing.T) {
	var table policies.Table
	below, above := table.Source("below"), table.Source("above")
	edit(t, below, func(e *policies.Edit) {
		e.Set(policy("core", hourly(1)))
		e.Set(policy("search", hourly(2)))
		e.Override(policies.Override{Policy: "core", Key: "alice", Blocked: true, Owner: "ops", Reason: "test"})
	})
	edit(t, above, func(e *policies.Edit) {
		e.Set(policy("core", hourly(3)))
		e.SetVersion(40)
	})
	edit(t, above, func(*policies.Edit) {})
	var lines []string
	for source, p := range table.View().Policies() {
		lines = append(lines, fmt.Sprint(source, " ", p.Name, " ", p.Limits[0].Quota))
	}
	for source, o := range table.View().Overrides() {
		lines = append(lines, fmt.Sprint(source, " ", o.Key, " ", o.Owner, " ", o.Reason))
	}
	slices.Sort(lines)
	if want := []string{"above core 3", "below alice ops test", "below search 2"}; !slices.Equal(lines, want) {
		t.Errorf("%q; want %q", lines, want)
	}
	below.Wrong(errors.New("no such file"))
	st := table.Status()
	if len(st) != 2 || st[0].Name != "above" || st[0].Version != 41 || st[1].Version != 1 || st[1].Policies != 2 || st[1].Overrides != 1 || st[1].Wrong != "no such file" || st[1].Since.IsZero() {
		t.Errorf("%+v", st)
	}
	if n := table.Stats(); n.Version["above"] != 41 || n.Wrong["below"] != 1 || n.Policies["below"] != 2 {
		t.Errorf("%+v", n)
	}
	edit(t, below, func(e *policies.Edit) { e.Clear() })
	if st := table.Status()[1]; st.Policies != 0 || st.Overrides != 0 || st.Wrong != "" {
		t.Errorf("%+v", st)
	}
}
