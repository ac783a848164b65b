package policies_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

type planKey struct{}

// A key keeps its count in every plan, an override takes precedence, and a missing plan is an
// error.
func TestPlans(t *testing.T) {
	var table policies.Table
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &table, Clock: clock.NewManual(t0)})
	edit(t, table.Source("file"), func(e *policies.Edit) {
		e.Set(policy("core", hourly(3)))
		e.Set(&quota.Policy{Name: "orgs", Limits: []quota.Limit{hourly(100)}})
		e.Set(&quota.Policy{Name: "core-pro", Limits: []quota.Limit{hourly(9)}, Parent: "orgs", ParentKey: "ignored"})
		e.Override(policies.Override{Policy: "core", Key: "bob", Limits: []quota.Limit{hourly(7)}})
	})
	edit(t, table.Source("code"), func(e *policies.Edit) {
		e.Plan("core", func(ctx context.Context, key string) string {
			plan, _ := ctx.Value(planKey{}).(string)
			return plan
		})
	})
	charged := policy("core", hourly(1))
	for _, step := range []struct {
		plan, key   string
		allowed     bool
		limit, used int64
	}{
		{"", "alice", true, 3, 1},
		{"core-pro", "alice", true, 9, 2},
		{"core", "alice", true, 3, 3},
		{"", "alice", false, 3, 3},
		{"core-pro", "alice", true, 9, 4},
		{policies.Unlimited, "alice", true, quota.MaxQuota, 5},
		{policies.Blocked, "alice", false, 3, 3},
		{"core-pro", "alice", true, 9, 6},
		{"core-pro", "bob", true, 7, 1},
		{policies.Blocked, "bob", true, 7, 2},
	} {
		ctx := context.WithValue(t.Context(), planKey{}, step.plan)
		for _, charges := range [][]throttler.Charge{
			{charged.Charge(step.key)},
			{charged.Charge(step.key), policy("other", hourly(100)).Charge("k")},
		} {
			peeked, err := th.Peek(ctx, charges...)
			if err != nil || peeked.Allowed != step.allowed {
				t.Fatalf("%+v, %d charges: allowed %t, %v", step, len(charges), peeked.Allowed, err)
			}
		}
		d, err := th.Take(ctx, charged.Charge(step.key))
		if err != nil {
			t.Fatal(err)
		}
		if s := d.Binding(); d.Allowed != step.allowed || s.Limit.Quota != step.limit || s.Used != step.used || len(d.Charges()) != 1 || s.Policy.Name != "core" {
			t.Errorf("%+v: %v", step, d)
		}
		if d.Blocked != (step.plan == policies.Blocked && step.key == "alice") {
			t.Errorf("%+v: blocked %t", step, d.Blocked)
		}
	}
	for _, charges := range [][]throttler.Charge{{charged.Charge("alice")}, {charged.Charge("alice"), charged.Charge("carol")}} {
		_, err := th.Take(context.WithValue(t.Context(), planKey{}, "core-por"), charges...)
		if !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), `"core-por"`) {
			t.Errorf("a plan that the table lacks: %v", err)
		}
	}
	edit(t, table.Source("code"), func(e *policies.Edit) { e.Plan("core", nil) })
	if limit, by := quotaOf(&table, "alice", t0); limit != 3 || by != nil {
		t.Errorf("without plans the quota is %d, by %v", limit, by)
	}
	if err := table.Source("code").Edit(func(e *policies.Edit) {
		e.Plan("no name", func(context.Context, string) string { return "" })
	}); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("plans of a policy without a valid name: %v", err)
	}
}
