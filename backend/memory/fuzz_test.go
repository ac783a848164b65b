package memorybackend_test

import (
	"errors"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// For any limit and costs, calls return ErrInvalid or answers that make sense: a refusal
// charges nothing, and no charge frees units.
func FuzzCosts(f *testing.F) {
	f.Add(int64(10), int64(60_000), int64(0), uint8(0), int64(3), int64(9), int64(1), int64(5000))
	f.Add(int64(1)<<53, int64(1), int64(1), uint8(3), int64(1)<<53, int64(1)<<53, int64(0), int64(-1))
	f.Add(int64(7), int64(366*24*3_600_000), int64(1)<<52, uint8(4), int64(-1), int64(1)<<62, int64(1)<<53, int64(1)<<40)
	f.Add(int64(10_000), int64(1000), int64(0), uint8(2), int64(0), int64(10_000), int64(20_000), int64(999))
	f.Fuzz(func(t *testing.T, units, windowMS, burst int64, algorithm uint8, first, second, settled, advanceMS int64) {
		limit := throttler.Limit{Quota: units, Window: time.Duration(windowMS) * time.Millisecond, Burst: burst, Algorithm: quota.Algorithm(algorithm)}
		p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{limit}}
		th, _, c := bounded(memorybackend.Options{MaxKeys: 16})
		charge := func(cost int64) throttler.Charge { return throttler.Charge{Policy: p, Key: "k", Cost: cost} }
		valid := func(what string, d throttler.Decision, err error) bool {
			t.Helper()
			if err != nil {
				if !errors.Is(err, throttler.ErrInvalid) {
					t.Fatalf("%s: %v", what, err)
				}
				return false
			}
			s := d.Limit(0)
			if s.Used < 0 || s.Used > 1<<54 || s.Remaining < 0 || s.Remaining > limit.Capacity() || s.ResetAt.Before(d.At()) ||
				s.Refused == d.Allowed || s.Refused && !s.RetryAt.After(d.At()) {
				t.Fatalf("%s: %v", what, d)
			}
			return true
		}
		d, err := th.Take(t.Context(), charge(first))
		if !valid("first take", d, err) {
			return
		}
		c.Advance(time.Duration(advanceMS%(400*24*3_600_000)) * time.Millisecond)
		before, err := th.Peek(t.Context(), charge(1))
		if !valid("peek", before, err) {
			return
		}
		d2, err := th.Take(t.Context(), charge(second))
		if !valid("second take", d2, err) {
			return
		}
		after, err := th.Peek(t.Context(), charge(1))
		valid("peek", after, err)
		if got, want := after.Limit(0).Used-before.Limit(0).Used, max(second, 1); d2.Allowed && (got < want-1 || got > want) || !d2.Allowed && got != 0 {
			t.Errorf("a charge of %d, allowed %v, moved used by %d", second, d2.Allowed, got)
		}
		if !d.Allowed {
			return
		}
		d3, err := th.Settle(t.Context(), d, settled)
		if err == nil && d3.Limit(0).Used < 0 {
			t.Errorf("settled at %d: %v", settled, d3)
		} else if err != nil && !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("settled at %d: %v", settled, err)
		}
		valid("last peek", after, err)
	})
}

// Different counts are never confused.
func FuzzKeys(f *testing.F) {
	f.Add("core", "alice", "alice", "core", "bob", "bob")
	f.Add("core", "", "", "core", "", "x")
	f.Add("a", "\x00b", "b", "a", "\x00", "bb")
	f.Fuzz(func(t *testing.T, policy1, partition1, key1, policy2, partition2, key2 string) {
		charge := func(policy, partition, key string) throttler.Charge {
			c := throttler.Charge{Policy: hourly(policy, 10), Key: key, Partition: partition}
			if partition == "" {
				c.Partition = key
			}
			return c
		}
		c1, c2 := charge(policy1, partition1, key1), charge(policy2, partition2, key2)
		if c1.Policy.Validate() != nil || c2.Policy.Validate() != nil || policy1 == policy2 && c1.Partition == c2.Partition && key1 == key2 {
			return
		}
		th, _, _ := bounded(memorybackend.Options{})
		for _, c := range []throttler.Charge{c1, c2} {
			if d, err := th.Take(t.Context(), c); err != nil || d.Limit(0).Used != 1 {
				t.Errorf("(%q, %q, %q) and (%q, %q, %q): used %d, %v; want 1 of each", policy1, c1.Partition, key1, policy2, c2.Partition, key2, d.Limit(0).Used, err)
			}
		}
	})
}
