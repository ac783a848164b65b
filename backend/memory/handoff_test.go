package memorybackend_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// A flood of releases stays within the bounds, which include the claims of released counts.
func TestReleasesAreBounded(t *testing.T) {
	th, b, _ := bounded(memorybackend.Options{MaxKeys: 2000, MaxBytes: memorybackend.MinMaxBytes})
	p := hourly("core", 5)
	for i := range 20_000 {
		if i%2 == 0 {
			if _, err := th.Take(t.Context(), p.Charge(strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
		release(t, b, p.Charge(strconv.Itoa(i)))
		if s := b.Stats(); s.Keys > 2000 || s.Bytes > memorybackend.MinMaxBytes {
			t.Fatalf("after %d releases: %+v", i, s)
		}
	}
}

// A count that arrives where all keys have used up their quotas is still limited, and a
// release there is no error.
func TestArrivalsWhenFull(t *testing.T) {
	th, b, _ := bounded(memorybackend.Options{MaxKeys: 1000})
	p := hourly("core", 5)
	exhaust(t, th, b, hourly("other", 1))
	other := memorybackend.NewDefault()
	source := throttler.New(other, &throttler.Options{Clock: clock.NewManual(t0)})
	if _, err := source.Take(t.Context(), p.Charge("alice")); err != nil {
		t.Fatal(err)
	}
	released := release(t, other, p.Charge("alice"))
	served := 0
	for range 100 {
		d, err := b.TakeAt(t.Context(), driver.NewRequest(t0.UnixMilli(), inPartition(p.Charge("alice"))), &handoff.Placement{
			Backend: handoff.IDOf("here"), Version: 2, Keep: time.Minute,
			Arrivals: []handoff.Arrival{{Due: true, State: released.State, ReleaseVersion: released.ReleaseVersion}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			served++
		}
	}
	if served > 5 || served == 0 {
		t.Errorf("a count that found no room was served %d times; the quota is 5", served)
	}
	if r := release(t, b, p.Charge("bob")); r.State != nil {
		t.Errorf("a count that is not here was released as %+v", r)
	}
	if s := b.Stats(); s.Keys > 1000 {
		t.Errorf("%+v", s)
	}
}

func release(t *testing.T, b *memorybackend.Backend, c throttler.Charge) handoff.Released {
	t.Helper()
	released, err := b.Release(t.Context(), handoff.ReleaseRequest{
		Now: t0.UnixMilli(), Charges: []throttler.Charge{inPartition(c)}, To: handoff.IDOf("elsewhere"), Version: 1, Keep: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	return released[0]
}

func inPartition(c throttler.Charge) throttler.Charge {
	c.Partition = c.Key
	return c
}

// The claims of released counts are within MaxKeys, and free no key that has used up its quota.
func TestWhatLeftIsBounded(t *testing.T) {
	const maxKeys = 64
	b, err := memorybackend.New(&memorybackend.Options{MaxKeys: maxKeys})
	if err != nil {
		t.Fatal(err)
	}
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	charge := func(key string) []throttler.Charge {
		return []throttler.Charge{{Policy: p, Key: key, Partition: key, Cost: 1}}
	}
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	if _, err := th.Take(t.Context(), p.Charge("victim")); err != nil {
		t.Fatal(err)
	}
	release := func(key string) error {
		_, err := b.Release(t.Context(), handoff.ReleaseRequest{Now: t0.UnixMilli(), Charges: charge(key), To: 2, Version: 1, Keep: time.Hour})
		return err
	}
	for i := range 100 * maxKeys {
		if err := release(fmt.Sprint("client", i)); err != nil && !errors.Is(err, throttler.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	remembered := 0
	for i := range 100 * maxKeys {
		_, err := b.TakeAt(t.Context(), driver.NewRequest(t0.UnixMilli(), charge(fmt.Sprint("client", i))...), &handoff.Placement{Backend: 1})
		var away *handoff.ElsewhereError
		if errors.As(err, &away) && away.Counts[0].Owner == 2 {
			remembered++
		}
	}
	if remembered == 0 || remembered > maxKeys {
		t.Errorf("%d counts that left are remembered, want 1 to %d", remembered, maxKeys)
	}
	if d, err := th.Take(t.Context(), p.Charge("victim")); err != nil || d.Allowed {
		t.Errorf("the exhausted key: allowed %t, %v", d.Allowed, err)
	}
}
