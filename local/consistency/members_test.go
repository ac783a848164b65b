package consistency_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func newTable(t *testing.T) *consistency.Table {
	t.Helper()
	table, err := consistency.NewTable(nil)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// leasing returns a store that leases the policies selected by leases, behind the wrappers that
// belong between it and a consistency.Backend.
func leasing(t *testing.T, leases func(*quota.Policy) bool) driver.Backend {
	t.Helper()
	l, err := leased.New(memorybackend.NewDefault(), &leased.Options{Leases: leases})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	f, err := fallback.New(l, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	r, err := refusals.New(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestNewSeesWhatCannotBe checks that New returns an error if a policy would be decided in
// another level than its own.
func TestNewSeesWhatCannotBe(t *testing.T) {
	for name, test := range map[string]struct {
		level  consistency.Level
		leases func(own *consistency.Table) func(*quota.Policy) bool // nil: the store leases nothing
		want   string
	}{
		"leased, and it is": {consistency.Leased, func(own *consistency.Table) func(*quota.Policy) bool { return own.Leases }, ""},
		"exact, and it is":  {consistency.Exact, func(own *consistency.Table) func(*quota.Policy) bool { return own.Leases }, ""},
		"exact, no leases":  {consistency.Exact, nil, ""},
		"leased, no leases": {consistency.Leased, nil, `consistency: policy "window" is leased, but the store leases nothing; put a leased.Backend around it, behind wrappers that have an Unwrap method alone, or make the policy exact`},
		"leased, by another table": {consistency.Leased, func(*consistency.Table) func(*quota.Policy) bool { return newTable(t).Leases },
			`consistency: policy "window" is leased, but the store goes by other Leases than this table's; make leased.Options.Leases the Leases of this table`},
		"exact, all is leased": {consistency.Exact, func(*consistency.Table) func(*quota.Policy) bool { return nil },
			`consistency: policy "window" is exact, but the store goes by other Leases than this table's; make leased.Options.Leases the Leases of this table`},
		"synced, no counts": {consistency.Synced, nil, `consistency: policy "window" is synced, but soft is nil; give New a synced.Backend, or make it exact`},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t)
			if err := table.Begin(window, test.level); err != nil {
				t.Fatal(err)
			}
			store := driver.Backend(memorybackend.NewDefault())
			if test.leases != nil {
				store = leasing(t, test.leases(table))
			}
			_, err := consistency.New(store, nil, table)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || err.Error() != test.want || !errors.Is(err, quota.ErrInvalid) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

// A policy that was synced needs synced counts for as long as its charges count there.
func TestNewSeesAChangeThatLasts(t *testing.T) {
	table := newTable(t)
	if err := table.Begin(window, consistency.Synced); err != nil {
		t.Fatal(err)
	}
	if err := table.Set(window, consistency.Exact); err != nil {
		t.Fatal(err)
	}
	if _, err := consistency.New(memorybackend.NewDefault(), nil, table); err == nil || !strings.Contains(err.Error(), "soft is nil") {
		t.Errorf("got %v", err)
	}
}

func TestSetSeesWhatCannotBe(t *testing.T) {
	table := newTable(t)
	if _, err := consistency.New(memorybackend.NewDefault(), nil, table); err != nil {
		t.Fatal(err)
	}
	for want, level := range map[string]consistency.Level{"the store leases nothing": consistency.Leased, "soft is nil": consistency.Synced} {
		for what, edit := range map[string]func(*quota.Policy, consistency.Level) error{"Begin": table.Begin, "Set": table.Set} {
			if err := edit(window, level); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %v: got %v, want %q", what, level, err, want)
			}
		}
		if got := table.State(window.Name).Level; got != consistency.Exact {
			t.Errorf("the level is %v", got)
		}
	}
	if err := table.Set(window, consistency.Exact); err != nil {
		t.Error(err)
	}
}
