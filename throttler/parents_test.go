package throttler_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// under returns p with a parent.
func under(p *throttler.Policy, parent, key string) *throttler.Policy {
	p.Parent, p.ParentKey = parent, key
	return p
}

// withTree returns a throttler over b with a table, and a function that edits the table.
func withTree(t *testing.T, b driver.Backend) (*throttler.Throttler, func(func(*policies.Edit))) {
	table := new(policies.Table)
	return throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0), Policies: table}), func(change func(*policies.Edit)) {
		t.Helper()
		if err := table.Source("code").Edit(change); err != nil {
			t.Fatal(err)
		}
	}
}

// used returns the used units of the first limit of p for key.
func used(t *testing.T, th *throttler.Throttler, p *throttler.Policy, key string) int64 {
	t.Helper()
	d, err := th.Peek(t.Context(), p.Charge(key))
	if err != nil {
		t.Fatal(err)
	}
	return d.Limit(0).Used
}

// bucket returns the policy that the program charges, which has no parent.
func bucket() *throttler.Policy { return policy("bucket", per(5, time.Hour)) }

// A bucket that moves to another organization, by its policy or by an override of its key,
// keeps its count, and so do the organizations.
func TestABucketMovesToAnotherOrganization(t *testing.T) {
	orgs := policy("orgs", per(3, time.Hour))
	for name, link := range map[string]func(e *policies.Edit, org string){
		"by policy": func(e *policies.Edit, org string) { e.Set(under(bucket(), "orgs", org)) },
		"by override": func(e *policies.Edit, org string) {
			e.Override(policies.Override{Policy: "bucket", Key: "b7", ParentKey: org})
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, b driver.Backend) {
				th, edit := withTree(t, b)
				edit(func(e *policies.Edit) { e.Set(orgs); e.Set(under(bucket(), "orgs", "")); link(e, "acme") })
				for range 3 {
					if d := take(t, th, bucket().Charge("b7")); !d.Allowed || d.NumLimits() != 2 || d.Added != 1 || d.Charges()[1].Key != "acme" || d.Charges()[1].Partition != "acme" {
						t.Errorf("%v, added %d", d, d.Added)
					}
				}
				if d := take(t, th, bucket().Charge("b7")); d.Allowed || d.Binding().Policy.Name != "orgs" || d.Limit(0).Used != 3 {
					t.Errorf("%v; want a refusal by the organization, and 3 of the bucket", d)
				}
				edit(func(e *policies.Edit) { link(e, "blue") })
				if d := take(t, th, bucket().Charge("b7")); !d.Allowed || d.Limit(0).Used != 4 || d.Limit(1).Used != 1 {
					t.Errorf("%v; want 4 of the bucket, and 1 of the other organization", d)
				}
				if n := used(t, th, orgs, "acme"); n != 3 {
					t.Errorf("the first organization has used %d; want 3", n)
				}
			})
		})
	}
}

// Parents can be overridden, and have parents themselves. They are charged even for a key that
// is not charged.
func TestParentsAreInForceAsAllAre(t *testing.T) {
	log := policy("log", throttler.Limit{Quota: 1, Window: time.Hour, Algorithm: throttler.SlidingLog})
	both(t, func(t *testing.T, b driver.Backend) {
		th, edit := withTree(t, b)
		edit(func(e *policies.Edit) {
			e.Set(policy("all", per(100, time.Hour)))
			e.Set(under(policy("orgs", per(3, time.Hour)), "all", "all"))
			e.Set(under(bucket(), "orgs", "acme"))
			e.Set(under(log, "orgs", "acme"))
		})
		if d := take(t, th, bucket().Charge("b7"), log.Charge("l")); !d.Allowed || d.Added != 2 || d.NumLimits() != 4 || d.Limit(2).Used != 2 || d.Limit(3).Used != 2 {
			t.Errorf("%v; want 2 for acme, and 2 for all", d)
		}
		edit(func(e *policies.Edit) {
			e.Override(policies.Override{Policy: "log", Key: "l", Unlimited: true})
			e.Override(policies.Override{Policy: "orgs", Key: "acme", Limits: []throttler.Limit{per(30, time.Hour)}})
		})
		d := take(t, th, throttler.Charge{Policy: log, Key: "l", Cost: 4})
		if !d.Allowed || d.Added != 2 || d.NumLimits() != 2 || d.Limit(0).Used != 6 || d.Limit(0).Limit.Quota != 30 {
			t.Errorf("%v; want 6 of 30 for acme, and nothing of the log", d)
		}
		if _, err := th.Settle(t.Context(), d, 4, 4); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("two costs for the one charge that was given: %v", err)
		}
		if after, err := th.Settle(t.Context(), d, 3); err != nil || after.Limit(0).Used != 6 {
			t.Errorf("%v, %v; want what an unlimited key cost its parent to stay", after, err)
		}
		d = take(t, th, log.Charge("l"))
		if after, err := th.Refund(t.Context(), d); err != nil || after.Limit(0).Used != 6 || after.Added != 2 {
			t.Errorf("refunded: %v, %v; want 6", after, err)
		}
		edit(func(e *policies.Edit) { e.Override(policies.Override{Policy: "orgs", Key: "acme", Blocked: true}) })
		if d := take(t, th, bucket().Charge("b7")); d.Allowed || !d.Blocked || len(d.Charges()) != 1 || d.Charges()[0].Key != "acme" {
			t.Errorf("%v; want a block of acme", d)
		}
		edit(func(e *policies.Edit) { e.Override(policies.Override{Policy: "bucket", Key: "b7", Blocked: true}) })
		if d := take(t, th, bucket().Charge("b7")); !d.Blocked || len(d.Charges()) != 1 || d.Charges()[0].Key != "b7" {
			t.Errorf("%v; want a block of the bucket", d)
		}
	})
}

// Parents are settled to the costs of their children.
func TestParentsAreSettledWithTheirChildren(t *testing.T) {
	orgs, b1, b2 := policy("orgs", per(1000, time.Hour)), policy("b1", per(100, time.Hour)), policy("b2", per(100, time.Hour))
	for _, test := range []struct {
		name    string
		charges []throttler.Charge
		costs   []int64
		want    []int64 // used, by charge, after the settlement
	}{
		{"up", []throttler.Charge{b1.Charge("k")}, []int64{7}, []int64{7, 7}},
		{"down", []throttler.Charge{{Policy: b1, Key: "k", Cost: 9}}, []int64{2}, []int64{2, 2}},
		{"two of one parent", []throttler.Charge{b1.Charge("k"), b2.Charge("k")}, []int64{7, 3}, []int64{7, 3, 10}},
		{"two that add up", []throttler.Charge{b1.Charge("k"), b1.Charge("k")}, []int64{7}, []int64{7, 7}},
		{"the parent, too", []throttler.Charge{orgs.Charge("acme"), b1.Charge("k")}, []int64{2, 7}, []int64{9, 7}},
		{"one without a parent", []throttler.Charge{bucket().Charge("k"), b1.Charge("k")}, []int64{2, 7}, []int64{2, 7, 7}},
		{"nothing", []throttler.Charge{b1.Charge("k"), b2.Charge("k")}, []int64{0, 0}, []int64{0, 0, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			both(t, func(t *testing.T, b driver.Backend) {
				th, edit := withTree(t, b)
				edit(func(e *policies.Edit) {
					e.Set(orgs)
					e.Set(under(policy("b1", b1.Limits...), "orgs", "acme"))
					e.Set(under(policy("b2", b2.Limits...), "orgs", "acme"))
				})
				d := take(t, th, test.charges...)
				after, err := th.Settle(t.Context(), d, test.costs...)
				if err != nil || len(after.Charges()) != len(test.want) {
					t.Fatalf("%v, %v", after, err)
				}
				for i, want := range test.want {
					if after.Limit(i).Used != want {
						t.Errorf("charge %d has used %d; want %d", i, after.Limit(i).Used, want)
					}
				}
			})
		})
	}
}

// A limited charge below an unlimited one is settled at the charges above both.
func TestSettledAboveAnUnlimitedParent(t *testing.T) {
	both(t, func(t *testing.T, b driver.Backend) {
		th, edit := withTree(t, b)
		edit(func(e *policies.Edit) {
			e.Set(policy("all", per(1000, time.Hour)))
			e.Set(under(policy("orgs", throttler.Limit{Quota: 100, Window: time.Hour, Algorithm: throttler.TokenBucket}), "all", "all"))
			e.Set(under(policy("leaf", per(1000, time.Hour)), "orgs", "acme"))
			e.Override(policies.Override{Policy: "orgs", Key: "acme", Unlimited: true})
		})
		d := take(t, th, policy("leaf", per(1000, time.Hour)).Charge("k"))
		after, err := th.Settle(t.Context(), d, 500)
		if err != nil || len(after.Charges()) != 2 || after.Limit(0).Used != 500 || after.Limit(1).Used != 500 {
			t.Errorf("%v, %v; want 500 used of the leaf and of all", after, err)
		}
	})
}

func TestParentsThatCannotBeCharged(t *testing.T) {
	orgs := policy("orgs", per(9, time.Hour))
	child := under(bucket(), "orgs", "acme")
	th, edit := withTree(t, apart{})
	for _, charges := range [][]throttler.Charge{{child.Charge("k")}, {child.Charge("k"), orgs.Charge("k")}} {
		for what, th := range map[string]*throttler.Throttler{"the table of policies lacks": th, "there is no table of policies": newThrottler()} {
			if _, err := th.Take(t.Context(), charges...); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), `policy "bucket" has the parent "orgs"`) {
				t.Errorf("%v; want an ErrInvalid with %q", err, what)
			}
		}
	}
	edit(func(e *policies.Edit) { // the program's policy has another unit
		tokens := policy("orgs", per(9, time.Hour))
		tokens.Unit = quota.Tokens
		e.Set(tokens)
	})
	if _, err := th.Take(t.Context(), child.Charge("k")); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "they must count the same") {
		t.Errorf("a parent of another unit: %v", err)
	}
	edit(func(e *policies.Edit) {
		e.Set(orgs)
		for i := range 16 {
			e.Set(under(policy(fmt.Sprint("b", i), per(1, time.Hour)), "orgs", "acme"))
		}
	})
	var charges []throttler.Charge
	for i := range 16 {
		charges = append(charges, policy(fmt.Sprint("b", i)).Charge("k"))
	}
	if _, err := th.Take(t.Context(), charges...); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "17 charges, with those of the policies' parents") {
		t.Errorf("17 charges: %v", err)
	}
	th, edit = withTree(t, memorybackend.NewDefault())
	edit(func(e *policies.Edit) {
		e.Set(policy("p0", per(9, time.Hour)))
		for i := range 15 {
			e.Set(under(policy(fmt.Sprint("p", i+1), per(9, time.Hour)), fmt.Sprint("p", i), "k"))
		}
	})
	if d := take(t, th, policy("p15").Charge("k")); !d.Allowed || d.Added != 15 || d.Limit(15).Used != 1 {
		t.Errorf("%v; want the most that a line may have", d)
	}
	room := make([]throttler.Charge, 1, 9)
	room[0] = policy("p15").Charge("k")
	if take(t, th, room...); room[:2][1].Policy != nil {
		t.Error("the caller's slice is changed")
	}
	edit(func(e *policies.Edit) { // 40 more above them
		for i := range 40 {
			e.Set(under(policy(fmt.Sprint("p", -i), per(9, time.Hour)), fmt.Sprint("p", -i-1), "k"))
		}
		e.Set(policy("p-40", per(9, time.Hour)))
	})
	for name, want := range map[string]string{"p15": "33 charges", "p-23": "18 charges"} {
		if _, err := th.Take(t.Context(), policy(name).Charge("k")); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), want+", with those of the policies' parents") {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
	}
	if d := take(t, th, policy("p-25").Charge("k")); !d.Allowed || d.Added != 15 {
		t.Errorf("p-25: %v; want 16 charges", d)
	}
}

// Random charges in a changing random tree have the counts of a model that walks up the
// tree.
func TestRandomTreesOfCharges(t *testing.T) {
	both(t, func(t *testing.T, b driver.Backend) {
		random, now := testseed.Rand(t, 0), clock.NewManual(t0)
		table := new(policies.Table)
		th := throttler.New(b, &throttler.Options{Clock: now, Policies: table})
		edit := func(change func(*policies.Edit)) {
			if err := table.Source("code").Edit(change); err != nil {
				t.Fatal(err)
			}
		}
		const n, quota = 8, 30 // two lines are at most 16 charges
		type count struct{ policy, key int }
		var parent, parentKey [n]int // of policy i: less than i, or -1 if it has no parent
		counts := map[count]int64{}
		name := func(i int) string { return fmt.Sprint("p", i) }
		set := func(e *policies.Edit, i int) {
			p := policy(name(i), per(quota, time.Hour))
			if parent[i] = random.IntN(i+1) - 1; parent[i] >= 0 {
				parentKey[i] = random.IntN(2)
				under(p, name(parent[i]), fmt.Sprint(parentKey[i]))
			}
			e.Set(p)
		}
		edit(func(e *policies.Edit) {
			for i := range n {
				set(e, i)
			}
		})
		settled, refused := 0, 0
		for range 3000 {
			if random.IntN(5) == 0 {
				edit(func(e *policies.Edit) { set(e, random.IntN(n)) })
			}
			if random.IntN(20) == 0 { // all windows end; otherwise most charges would be refused
				now.Advance(time.Hour)
				clear(counts)
			}
			var charges []throttler.Charge
			var own []count
			for range 1 + random.IntN(2) {
				c := count{random.IntN(n), random.IntN(2)}
				if !slices.Contains(own, c) {
					own = append(own, c)
					charges = append(charges, policy(name(c.policy)).Charge(fmt.Sprint(c.key)))
				}
			}
			cost := func(costs []int64) map[count]int64 {
				all := map[count]int64{}
				for i, c := range own {
					all[c] += costs[i]
					for parent[c.policy] >= 0 {
						c = count{parent[c.policy], parentKey[c.policy]}
						all[c] += costs[i]
					}
				}
				return all
			}
			costs := make([]int64, len(own))
			for i := range costs {
				costs[i] = 1 + random.Int64N(3)
				charges[i].Cost = costs[i]
			}
			fits, all := true, cost(costs)
			for c, cost := range all {
				fits = fits && counts[c]+cost <= quota
			}
			d := take(t, th, charges...)
			if d.Allowed != fits || len(d.Charges()) != len(all) {
				t.Fatalf("%v; want allowed %t, %d charges", d, fits, len(all))
			}
			if !fits {
				refused++
				continue
			}
			if random.IntN(2) == 0 {
				for i := range costs {
					costs[i] = random.Int64N(5)
				}
				settled++
				var err error
				if d, err = th.Settle(t.Context(), d, costs...); err != nil {
					t.Fatal(err)
				}
			}
			for c, cost := range cost(costs) {
				counts[c] += cost
			}
			for i, c := range d.Charges() {
				var k count
				if _, err := fmt.Sscan(c.Policy.Name[1:]+" "+c.Key, &k.policy, &k.key); err != nil {
					t.Fatal(err)
				}
				if got := d.Limit(i).Used; got != counts[k] {
					t.Fatalf("%v: %s of %s has used %d; want %d", d, c.Key, c.Policy.Name, got, counts[k])
				}
			}
		}
		if settled < 200 || refused < 200 {
			t.Errorf("%d settled, %d refused; want some hundreds of each", settled, refused)
		}
	})
}

// Sources that hide each other's policies make no cycle, since a parent is looked up in the
// child's source. A line through several sources may be too long to be charged.
func TestParentsThroughSeveralSources(t *testing.T) {
	table := new(policies.Table)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(t0), Policies: table})
	line := func(e *policies.Edit, from, to, step int) {
		e.Set(policy(fmt.Sprint("p", from), per(9, time.Hour)))
		for i := from; i != to; i += step {
			e.Set(under(policy(fmt.Sprint("p", i+step), per(9, time.Hour)), fmt.Sprint("p", i), "k"))
		}
	}
	for i, change := range []func(*policies.Edit){
		func(e *policies.Edit) { line(e, 1, 16, 1) },
		func(e *policies.Edit) { line(e, 3, 1, -1) }, // the other way round
		func(e *policies.Edit) { line(e, 40, 54, 1); e.Set(under(policy("p16", per(9, time.Hour)), "p54", "k")) },
	} {
		if err := table.Source(fmt.Sprint("source", i)).Edit(change); err != nil {
			t.Fatal(err)
		}
	}
	if d := take(t, th, policy("p15").Charge("k")); !d.Allowed || d.Added != 12 {
		t.Errorf("%v; want p14 to p4, and the second source's p3", d)
	}
	if d := take(t, th, policy("p16").Charge("k")); !d.Allowed || len(d.Charges()) != 16 {
		t.Errorf("%v; want p16 and the third source's 15", d)
	}
	if err := table.Source("last").Edit(func(e *policies.Edit) {
		e.Set(policy("q", per(9, time.Hour)))
		e.Set(under(policy("p40", per(9, time.Hour)), "q", "k"))
	}); err != nil { // a line of 2 in this source
		t.Fatal(err)
	}
	if d, err := th.Take(t.Context(), policy("p16").Charge("k")); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "17 charges") {
		t.Errorf("%v, %v; want an ErrInvalid", d, err)
	}
}
