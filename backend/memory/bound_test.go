package memorybackend_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

var t0 = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// A flood of new keys, however many, never gives a key that has used up its
// quota a fresh window.
func TestFloodNeverFreesAnExhaustedKey(t *testing.T) {
	th := throttler.New(memorybackend.New(&memorybackend.Options{MaxKeys: 4096}), &throttler.Options{Clock: clock.NewManual(t0)})
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	const exhausted = 64
	for i := range 2 * exhausted {
		if d, err := th.Take(t.Context(), p.Charge("victim"+strconv.Itoa(i/2))); err != nil || !d.Allowed {
			t.Fatalf("allowed %v, error %v", d.Allowed, err)
		}
	}
	for i := range 100_000 {
		if _, err := th.Take(t.Context(), p.Charge("flood"+strconv.Itoa(i))); err != nil {
			t.Fatalf("key %d of the flood: %v; keys that used half of their quota should have made room", i, err)
		}
	}
	for i := range exhausted {
		if d, err := th.Take(t.Context(), p.Charge("victim"+strconv.Itoa(i))); err != nil || d.Allowed {
			t.Errorf("exhausted key %d: allowed %v, error %v after the flood", i, d.Allowed, err)
		}
	}
}

func TestFullOfExhaustedKeys(t *testing.T) {
	c := clock.NewManual(t0)
	th := throttler.New(memorybackend.New(&memorybackend.Options{MaxKeys: 1}), &throttler.Options{Clock: c})
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	if _, err := th.Take(t.Context(), p.Charge("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := th.Take(t.Context(), p.Charge("b")); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("a new key, where the only place is taken by an exhausted one: %v, want ErrUnavailable", err)
	}
	if d, err := th.Take(t.Context(), p.Charge("a")); err != nil || d.Allowed {
		t.Errorf("the exhausted key: allowed %v, error %v", d.Allowed, err)
	}
	c.Advance(time.Hour)
	if d, err := th.Take(t.Context(), p.Charge("b")); err != nil || !d.Allowed {
		t.Errorf("after the window: allowed %v, error %v; the dead key should have made room", d.Allowed, err)
	}
}

// A chain that finds no room for one of its keys charges none of them.
func TestNoRoomIsAllOrNothing(t *testing.T) {
	th := throttler.New(memorybackend.New(&memorybackend.Options{MaxKeys: 1}), &throttler.Options{Clock: clock.NewManual(t0)})
	org := &throttler.Policy{Name: "org", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour}}}
	user := &throttler.Policy{Name: "user", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour}}}
	if _, err := th.Take(t.Context(), org.Charge("acme"), user.Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("two keys into one place: %v, want ErrUnavailable", err)
	}
	if d, _ := th.Peek(t.Context(), org.Charge("acme")); d.Limits[0].Used != 0 {
		t.Errorf("the organisation was charged %d", d.Limits[0].Used)
	}
}
