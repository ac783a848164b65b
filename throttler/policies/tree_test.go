package policies_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// child returns a policy of that name under parent, for its key "k".
func child(name, parent string) *quota.Policy {
	p := policy(name, hourly(1))
	if p.Parent = parent; parent != "" {
		p.ParentKey = "k"
	}
	return p
}

// ending returns such a child with an end.
func ending(name, parent string) *quota.Policy {
	p := child(name, parent)
	p.Until = t0
	return p
}

// line sets n policies in a line: p1 is the parent of p2, and so on.
func line(e *policies.Edit, n int) {
	e.Set(child("p1", ""))
	for i := 2; i <= n; i++ {
		e.Set(child(fmt.Sprint("p", i), fmt.Sprint("p", i-1)))
	}
}

func TestATreeIsValidatedAsAWhole(t *testing.T) {
	for name, test := range map[string]struct {
		before, change func(*policies.Edit)
		want           string // or "" if it is no mistake
	}{
		"a parent with an end":     {nil, func(e *policies.Edit) { e.Set(ending("a", "")); e.Set(child("b", "a")) }, `policy "b" has the parent "a", which has an end`},
		"a parent gets an end":     {func(e *policies.Edit) { line(e, 2) }, func(e *policies.Edit) { e.Set(ending("p1", "")) }, `policy "p1" has an end, and is the parent of 1 others`},
		"a leaf with an end":       {func(e *policies.Edit) { line(e, 2) }, func(e *policies.Edit) { e.Set(ending("p2", "p1")) }, ""},
		"children before parents":  {nil, func(e *policies.Edit) { e.Set(child("b", "a")); e.Set(child("a", "")) }, ""},
		"a parent that is missing": {nil, func(e *policies.Edit) { e.Set(child("b", "a")) }, `policy "b" has the parent "a", which the source lacks`},
		"its own parent":           {nil, func(e *policies.Edit) { e.Set(child("a", "a")) }, `"a": it is its own parent`},
		"another unit":             {nil, func(e *policies.Edit) { a := child("a", ""); a.Unit = quota.Tokens; e.Set(a); e.Set(child("b", "a")) }, `policy "b" counts requests, and its parent "a" counts tokens`},
		"a parent's unit changes":  {func(e *policies.Edit) { line(e, 3) }, func(e *policies.Edit) { a := child("p1", ""); a.Unit = quota.Tokens; e.Set(a) }, `policy "p1" counts tokens, and is the parent of 1 others that count requests`},
		"one child's does not": {func(e *policies.Edit) { line(e, 2); e.Set(child("x", "p1")) }, func(e *policies.Edit) {
			for _, p := range []*quota.Policy{child("p1", ""), child("p2", "p1")} {
				p.Unit = quota.Tokens
				e.Set(p)
			}
		}, `policy "p1" counts tokens, and is the parent of 1 others that count requests`},
		"a leaf's unit changes": {func(e *policies.Edit) { line(e, 2) }, func(e *policies.Edit) { b := child("p2", "p1"); b.Unit = quota.Tokens; e.Set(b) }, `policy "p2" counts tokens, and its parent "p1" counts requests`},
		"all units change": {func(e *policies.Edit) { line(e, 3) }, func(e *policies.Edit) {
			for _, p := range []*quota.Policy{child("p2", "p1"), child("p1", ""), child("p3", "p2")} {
				p.Unit = quota.Tokens
				e.Set(p)
			}
		}, ""},
		"a cycle of two":               {nil, func(e *policies.Edit) { e.Set(child("b", "a")); e.Set(child("a", "b")) }, `the parents of policy "a" are a cycle: a, b, a`},
		"a cycle through what was set": {func(e *policies.Edit) { line(e, 3) }, func(e *policies.Edit) { e.Set(child("p1", "p3")) }, `policy "p1" are a cycle: p1, p3, p2, p1`},
		"a longer cycle":               {func(e *policies.Edit) { line(e, 40) }, func(e *policies.Edit) { e.Set(child("p3", "p40")); e.Set(child("x", "p9")) }, `policy "p10" are a cycle: p10, p9, `},
		"the other way round":          {func(e *policies.Edit) { line(e, 3) }, func(e *policies.Edit) { line(e, 0); e.Set(child("p2", "p3")); e.Set(child("p3", "p1")) }, ""},
		"a parent is removed":          {func(e *policies.Edit) { line(e, 2); e.Set(child("x", "p1")) }, func(e *policies.Edit) { e.Remove("p1") }, `policy "p1" is removed, and is the parent of 2 others`},
		"with its children":            {func(e *policies.Edit) { line(e, 3) }, func(e *policies.Edit) { e.Remove("p2"); e.Remove("p3") }, ""},
		"and set again":                {func(e *policies.Edit) { line(e, 3) }, func(e *policies.Edit) { e.Remove("p1"); e.Set(child("p1", "")) }, ""},
		"children elsewhere":           {func(e *policies.Edit) { line(e, 2) }, func(e *policies.Edit) { e.Remove("p1"); e.Set(child("x", "")); e.Set(child("p2", "x")) }, ""},
		"children without":             {func(e *policies.Edit) { line(e, 2) }, func(e *policies.Edit) { e.Remove("p1"); e.Set(child("p2", "")) }, ""},
		"all replaced": {func(e *policies.Edit) { line(e, 5) }, func(e *policies.Edit) {
			e.Replace(policies.Content{Policies: []*quota.Policy{child("p1", "p2"), child("p2", "")}})
		}, ""},
		"back in one change": {func(e *policies.Edit) { line(e, 3) }, func(e *policies.Edit) { e.Set(child("p3", "")); e.Set(child("p3", "p2")) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var table policies.Table
			s := table.Source("code")
			if test.before != nil {
				edit(t, s, test.before)
			}
			before := parents(&table)
			err := s.Edit(test.change)
			if test.want == "" && err != nil {
				t.Error(err)
			}
			if test.want != "" && (!errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), test.want) || !maps.Equal(before, parents(&table))) {
				t.Errorf("%v, now %v; want an ErrInvalid with %q, and nothing changed", err, parents(&table), test.want)
			}
		})
	}
}

// parents returns the names of all policies with their parents'.
func parents(table *policies.Table) map[string]string {
	all := map[string]string{}
	for _, p := range table.View().Policies() {
		all[p.Name] = p.Parent
	}
	return all
}

// naive reports whether parents are a tree, by looking at all of it.
func naive(parents map[string]string) bool {
	for name := range parents {
		n := 0
		for at := name; at != ""; at = parents[at] {
			if _, ok := parents[at]; !ok {
				return false
			}
			if n++; n > len(parents) {
				return false
			}
		}
	}
	return true
}

// Random changes are refused if and only if a look at the whole tree finds a mistake.
func TestRandomTrees(t *testing.T) {
	t.Parallel()
	random := testseed.Rand(t, 0)
	var table policies.Table
	s := table.Source("code")
	model, refused := map[string]string{}, 0
	for range 5_000 {
		next := maps.Clone(model)
		err := s.Edit(func(e *policies.Edit) {
			if random.IntN(400) == 0 {
				e.Clear()
				clear(next)
			}
			for range 1 + random.IntN(4) {
				name, parent := fmt.Sprint("p", random.IntN(40)), ""
				if random.IntN(8) == 0 {
					e.Remove(name)
					delete(next, name)
					continue
				}
				if all := slices.Sorted(maps.Keys(next)); len(all) > 0 && random.IntN(6) > 0 {
					parent = all[random.IntN(len(all))]
					for random.IntN(4) > 0 { // to the leaves, so that trees become deep
						i := slices.IndexFunc(all, func(c string) bool { return next[c] == parent && c != name })
						if i < 0 {
							break
						}
						parent = all[i]
						if random.IntN(20) == 0 {
							break
						}
					}
				}
				if parent == name {
					parent = ""
				}
				e.Set(child(name, parent))
				next[name] = parent
			}
		})
		if (err == nil) != naive(next) {
			t.Fatalf("%v to %v: %v", model, next, err)
		}
		if err == nil {
			model = next
		} else {
			refused++
		}
		if got := parents(&table); !maps.Equal(got, model) {
			t.Fatalf("%v; want %v", got, model)
		}
	}
	if refused < 1000 || refused > 4000 {
		t.Errorf("%d of 5,000 changes were refused; the test is of few of one kind", refused)
	}
}

// An override may replace the policy's parent key for its key, while it lasts. The latest
// source with a parent key counts, also if another source has the limits.
func TestParentKeys(t *testing.T) {
	var table policies.Table
	file, remote := table.Source("file"), table.Source("remote")
	edit(t, file, func(e *policies.Edit) {
		e.Set(policy("orgs", hourly(9)))
		e.Set(&quota.Policy{Name: "core", Limits: []quota.Limit{hourly(2)}, Parent: "orgs"})
		e.Set(&quota.Policy{Name: "one", Limits: []quota.Limit{hourly(2)}, Parent: "orgs", ParentKey: "acme"})
		for _, o := range []policies.Override{
			{Policy: "core", Key: "linked", ParentKey: "acme"},
			{Policy: "core", Key: "both", ParentKey: "acme", Limits: []quota.Limit{hourly(7)}},
			{Policy: "core", Key: "limited", ParentKey: "acme"},
			{Policy: "core", Key: "moved", ParentKey: "acme"},
			{Policy: "one", Key: "moved", ParentKey: "blue"},
			{Policy: "orgs", Key: "moved", ParentKey: "none"},
		} {
			e.Override(o)
		}
	})
	edit(t, remote, func(e *policies.Edit) {
		e.Override(policies.Override{Policy: "core", Key: "limited", Limits: []quota.Limit{hourly(8)}})
		e.Override(policies.Override{Policy: "core", Key: "moved", ParentKey: "blue", Until: t0.Add(time.Second)})
	})
	for _, test := range []struct {
		policy, key string
		now         time.Time
		quota       int64
		parent      string
	}{
		{"core", "other", t0, 2, ""},
		{"core", "linked", t0, 2, "acme"},
		{"core", "both", t0, 7, "acme"},
		{"core", "limited", t0, 8, "acme"},
		{"core", "moved", t0, 2, "blue"},
		{"core", "moved", t0.Add(time.Second), 2, "acme"},
		{"one", "other", t0, 2, "acme"},
		{"one", "moved", t0, 2, "blue"},
		{"orgs", "moved", t0, 9, ""},
	} {
		want := policies.Parent{Policy: "orgs", Key: test.parent}
		if test.parent == "" {
			want = policies.Parent{}
		}
		p, _, parent := table.View().Resolve(t.Context(), policy(test.policy), test.key, test.now.UnixMilli())
		if parent != want || p.Limits[0].Quota != test.quota {
			t.Errorf("%s of %s at %v: %+v, quota %d; want %+v, %d", test.key, test.policy, test.now, parent, p.Limits[0].Quota, want, test.quota)
		}
	}
}

func TestAFileHasParents(t *testing.T) {
	var table policies.Table
	watch(t, &table, `{
		"policies": [
			{"name": "bucket-7", "limits": ["100 per 1s"], "parent": "orgs", "parent_key": "acme"},
			{"name": "orgs", "limits": ["1000 per 1s"]}
		],
		"overrides": [{"policy": "bucket-7", "key": "moved", "parent_key": "blue"}]}`, nil)
	for key, want := range map[string]string{"any": "acme", "moved": "blue"} {
		if _, by, parent := table.View().Resolve(t.Context(), policy("bucket-7"), key, 0); by != nil || parent != (policies.Parent{Policy: "orgs", Key: want}) {
			t.Errorf("%s: %+v, %+v; want orgs %s", key, by, parent, want)
		}
	}
}
