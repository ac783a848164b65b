package throttler_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

// Costs by the names of policies settle a decision, and a receipt of it, once. Charges without a
// name, and costs of parents, stay.
func TestSettlePolicies(t *testing.T) {
	hour := []throttler.Limit{{Quota: 100, Window: time.Hour}}
	requests := &throttler.Policy{Name: "requests", Limits: hour}
	tokens := &throttler.Policy{Name: "tokens", Limits: hour, Parent: "org", ParentKey: "acme"}
	org := &throttler.Policy{Name: "org", Limits: hour}
	var table policies.Table
	if err := table.Source("code").Edit(func(e *policies.Edit) {
		e.Set(requests)
		e.Set(tokens)
		e.Set(org)
	}); err != nil {
		t.Fatal(err)
	}
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(time.Unix(1_900_000_000, 0)), Policies: &table, ReceiptKey: []byte("sixteen bytes or more")})
	used := func(want ...int64) {
		t.Helper()
		d, err := th.Peek(t.Context(), requests.Charge("a"), tokens.Charge("a"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if got := d.Limit(i).Used; got != want[i] {
				t.Errorf("limit %d: used %d, want %d", i, got, want[i])
			}
		}
	}
	estimate := tokens.Charge("a")
	estimate.Cost = 50
	d, err := th.Take(t.Context(), requests.Charge("a"), estimate)
	if err != nil {
		t.Fatal(err)
	}
	text, err := th.Receipt(d)
	if err != nil {
		t.Fatal(err)
	}
	used(1, 50, 50)
	opened, err := th.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	for want, costs := range map[string]map[string]int64{
		`no charge is under policy "token"; the decision has requests, tokens`: {"token": 7},
		`no charge is under policy "org"`:                                      {"org": 7, "tokens": 7},
		`there are no costs`:                                                   {},
		`real cost is -1`:                                                      {"tokens": -1},
	} {
		if _, err := th.SettlePolicies(t.Context(), opened, costs); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want ErrInvalid with %q", costs, err, want)
		}
	}
	if _, err := th.SettlePolicies(t.Context(), opened, map[string]int64{"tokens": 37}); err != nil {
		t.Fatal(err)
	}
	used(1, 37, 37)
	if _, err := th.SettlePolicies(t.Context(), d, map[string]int64{"tokens": 5}); !errors.Is(err, throttler.ErrSettled) {
		t.Errorf("again: got %v, want ErrSettled", err)
	}
	twice, err := th.Take(t.Context(), requests.Charge("a"), requests.Charge("b"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := th.SettlePolicies(t.Context(), twice, map[string]int64{"requests": 2}); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), `2 charges are under policy "requests"`) {
		t.Errorf("two keys: got %v", err)
	}
	used(2, 37, 37)
}
