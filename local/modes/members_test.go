package modes_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/modes"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func newTable(t *testing.T) *modes.Table {
	t.Helper()
	table, err := modes.NewTable(nil)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// leasing returns a store that leases the policies selected by leases, behind the wrappers that
// belong between it and a modes.Backend.
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
// another mode than its own.
func TestNewSeesWhatCannotBe(t *testing.T) {
	for name, test := range map[string]struct {
		mode   modes.Mode
		leases func(own *modes.Table) func(*quota.Policy) bool // nil: the store leases nothing
		want   string
	}{
		"leased, and it is": {modes.Leased, func(own *modes.Table) func(*quota.Policy) bool { return own.Leases }, ""},
		"exact, and it is":  {modes.Exact, func(own *modes.Table) func(*quota.Policy) bool { return own.Leases }, ""},
		"exact, no leases":  {modes.Exact, nil, ""},
		"leased, no leases": {modes.Leased, nil, `modes: policy "window" is leased, but the store leases nothing; put a leased.Backend around it, behind wrappers that have an Unwrap method alone, or make the policy exact`},
		"leased, by another table": {modes.Leased, func(*modes.Table) func(*quota.Policy) bool { return newTable(t).Leases },
			`modes: policy "window" is leased, but the store goes by other Leases than this table's; make leased.Options.Leases the Leases of this table`},
		"exact, all is leased": {modes.Exact, func(*modes.Table) func(*quota.Policy) bool { return nil },
			`modes: policy "window" is exact, but the store goes by other Leases than this table's; make leased.Options.Leases the Leases of this table`},
		"synced, no counts": {modes.Synced, nil, `modes: policy "window" is synced, but soft is nil; give New a synced.Backend, or make it exact`},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable(t)
			if err := table.Begin(window, test.mode); err != nil {
				t.Fatal(err)
			}
			store := driver.Backend(memorybackend.NewDefault())
			if test.leases != nil {
				store = leasing(t, test.leases(table))
			}
			_, err := modes.New(store, nil, table)
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
	if err := table.Begin(window, modes.Synced); err != nil {
		t.Fatal(err)
	}
	if err := table.Set(window, modes.Exact); err != nil {
		t.Fatal(err)
	}
	if _, err := modes.New(memorybackend.NewDefault(), nil, table); err == nil || !strings.Contains(err.Error(), "soft is nil") {
		t.Errorf("got %v", err)
	}
}

func TestSetSeesWhatCannotBe(t *testing.T) {
	table := newTable(t)
	if _, err := modes.New(memorybackend.NewDefault(), nil, table); err != nil {
		t.Fatal(err)
	}
	for want, mode := range map[string]modes.Mode{"the store leases nothing": modes.Leased, "soft is nil": modes.Synced} {
		for what, edit := range map[string]func(*quota.Policy, modes.Mode) error{"Begin": table.Begin, "Set": table.Set} {
			if err := edit(window, mode); !errors.Is(err, quota.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %v: got %v, want %q", what, mode, err, want)
			}
		}
		if got := table.Of(window.Name).Mode; got != modes.Exact {
			t.Errorf("the mode is %v", got)
		}
	}
	if err := table.Set(window, modes.Exact); err != nil {
		t.Error(err)
	}
}
