package memorybackend_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
)

// What stays of counts that left is within MaxKeys, and frees no key that has used
// up its quota.
func TestWhatLeftIsBounded(t *testing.T) {
	const maxKeys = 64
	b := memorybackend.New(&memorybackend.Options{MaxKeys: maxKeys})
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	charge := func(key string) []throttler.Charge {
		return []throttler.Charge{{Policy: p, Key: key, Partition: key, Cost: 1}}
	}
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	if _, err := th.Take(t.Context(), p.Charge("victim")); err != nil {
		t.Fatal(err)
	}
	release := func(key string) error {
		_, err := b.Release(t.Context(), handoff.ReleaseRequest{Now: t0, Charges: charge(key), To: 2, Version: 1, Keep: time.Hour})
		return err
	}
	for i := range 100 * maxKeys {
		if err := release(fmt.Sprint("client", i)); err != nil && !errors.Is(err, throttler.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	remembered := 0
	for i := range 100 * maxKeys {
		_, err := b.TakeAt(t.Context(), throttler.Request{Now: t0, Charges: charge(fmt.Sprint("client", i))}, &handoff.Placement{Backend: 1})
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
