package throttler_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// in returns a charge of cost to p for key in mode m.
func in(m quota.Mode, p *throttler.Policy, key string, cost int64) throttler.Charge {
	return throttler.Charge{Policy: p, Key: key, Cost: cost, Mode: m}
}

// costs returns the costs of d's charges.
func costs(d throttler.Decision) (all []int64) {
	for _, c := range d.Charges() {
		all = append(all, c.Cost)
	}
	return all
}

func TestModesThatDoNotGoTogether(t *testing.T) {
	tokens := policy("tokens", per(10, time.Hour))
	withParent := under(policy("child", per(10, time.Hour)), "tokens", "acme")
	th, edit := withTree(t, memorybackend.NewDefault())
	edit(func(e *policies.Edit) { e.Set(tokens); e.Set(withParent) })
	for want, charges := range map[string][]throttler.Charge{
		`charge 1 is for the same key and policy, "tokens", as an earlier one, in mode record and not enforce`: {tokens.Charge("a"), in(quota.Record, tokens, "a", 1)},
		`policy "tokens": mode is 5; it must be Enforce, Record, Check, AtMost or Capped`:                      {in(quota.Mode(5), tokens, "a", 1)},
		`policy "child" has the parent "tokens", and a charge in mode at-most`:                                 {in(quota.AtMost, withParent, "a", 1)},
	} {
		if _, err := th.Take(t.Context(), charges...); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := th.Wait(t.Context(), in(quota.Check, tokens, "a", 1)); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("Wait of a check: %v", err)
	}
	if n := used(t, th, tokens, "a"); n != 0 {
		t.Errorf("%d are used; want 0", n)
	}
}

// Charges to one count add up in every mode, and Capped caps the sum.
func TestModesAddUp(t *testing.T) {
	both(t, func(t *testing.T, b driver.Backend) {
		th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
		tokens := policy("tokens", per(10, time.Hour))
		for _, test := range []struct {
			mode quota.Mode
			cost int64 // of each of two
			want int64 // 0 if refused
		}{{quota.Capped, 8, 10}, {quota.Record, 3, 6}, {quota.AtMost, 3, 0}, {quota.Check, 1, 0}} {
			c := in(test.mode, tokens, "a", test.cost)
			d, err := th.Take(t.Context(), c, tokens.Charge("b"), c)
			if err != nil || d.Allowed != (test.want > 0) || d.Allowed && costs(d)[0] != test.want {
				t.Errorf("%v of %d twice: allowed %v, costs %v, %v; want %d", test.mode, test.cost, d.Allowed, costs(d), err, test.want)
			}
		}
	})
}

// A decision about several partitions contains the charged costs; a refusal, the requested ones.
func TestModesOfSeveralPartitions(t *testing.T) {
	both(t, func(t *testing.T, b driver.Backend) {
		th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
		p := policy("p", per(10, time.Hour))
		take := func(want bool, wantCosts []int64, charges ...throttler.Charge) throttler.Decision {
			t.Helper()
			peeked, err := th.Peek(t.Context(), charges...)
			if err != nil {
				t.Fatal(err)
			}
			d, err := th.Take(t.Context(), charges...)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range []throttler.Decision{peeked, d} {
				got := costs(d)
				for i := range wantCosts {
					if d.Allowed != want || got[i] != wantCosts[i] {
						t.Fatalf("allowed %v with costs %v; want %v with %v", d.Allowed, got, want, wantCosts)
					}
				}
			}
			return d
		}
		d := take(true, []int64{10, 12, 0}, in(quota.AtMost, p, "a", 99), in(quota.Record, p, "b", 12), in(quota.Check, p, "c", 10))
		take(false, []int64{99, 1, 4}, in(quota.AtMost, p, "c", 99), p.Charge("b"), in(quota.Check, p, "d", 4))
		if n := used(t, th, p, "c"); n != 0 {
			t.Errorf("a refusal used %d of c; want 0", n)
		}
		if _, err := th.Settle(t.Context(), d, 4, 3, 2); err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]int64{"a": 4, "b": 3, "c": 2} {
			if n := used(t, th, p, key); n != want {
				t.Errorf("%d used of %s; want %d", n, key, want)
			}
		}
	})
}

// A parent is charged in the mode of its child.
func TestModesOfParents(t *testing.T) {
	child, parent := under(policy("child", per(5, time.Hour)), "parent", "acme"), policy("parent", per(8, time.Hour))
	th, edit := withTree(t, memorybackend.NewDefault())
	edit(func(e *policies.Edit) { e.Set(child); e.Set(parent) })
	d, err := th.Take(t.Context(), in(quota.Record, child, "a", 9))
	if err != nil || !d.Allowed {
		t.Fatalf("a record: allowed %v, %v", d.Allowed, err)
	}
	if d, err := th.Take(t.Context(), in(quota.Check, child, "b", 1)); err != nil || d.Allowed {
		t.Errorf("b has room, and acme has none: a check is allowed %v, %v", d.Allowed, err)
	}
	if _, err := th.Settle(t.Context(), d, 2); err != nil {
		t.Fatal(err)
	}
	d, err = th.Take(t.Context(), in(quota.Capped, child, "b", 100))
	if err != nil || d.Allowed || costs(d)[0] != 5 || costs(d)[1] != 8 {
		t.Errorf("capped at 5 and 8: allowed %v, costs %v, %v", d.Allowed, costs(d), err)
	}
	if n := used(t, th, parent, "acme"); n != 2 {
		t.Errorf("acme used %d; want 2", n)
	}
}

// Five calls at once each want more tokens than there are. AtMost charges as many as fit, and
// the quota is used up, but not exceeded.
func TestTokensOfCallsAtOnce(t *testing.T) {
	tokens := policy("tokens", per(100, time.Minute))
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(t0)})
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { // each would use 133 tokens, and learns how many it may use
			d, err := th.Take(t.Context(), in(quota.AtMost, tokens, "a", 133))
			if err == nil && d.Allowed {
				_, err = th.Settle(t.Context(), d, min(133, costs(d)[0]))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := used(t, th, tokens, "a"); n != 100 {
		t.Errorf("%d of 100 tokens are used", n)
	}
}
