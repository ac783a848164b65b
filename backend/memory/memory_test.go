package memorybackend_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/backend/backendtest"
	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

func TestContract(t *testing.T) {
	backendtest.Run(t, func(*testing.T) driver.Backend { return memorybackend.NewDefault() })
}

func TestSequentialHistories(t *testing.T) {
	backendtest.Histories(t, func(*testing.T) driver.Backend { return memorybackend.NewDefault() })
}

// The claim of a released count expires, and a new count begins.
func TestCountThatLeftLongAgo(t *testing.T) {
	b := memorybackend.NewDefault()
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5, Window: time.Millisecond}}}
	take := func(want int64) {
		t.Helper()
		if d, err := th.Take(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != want {
			t.Fatalf("%+v, %v; want used %d", d, err, want)
		}
	}
	take(1)
	alice := p.Charge("alice")
	alice.Partition = alice.Key
	released, err := b.Release(t.Context(), handoff.ReleaseRequest{
		Now: t0.UnixMilli(), Charges: []throttler.Charge{alice}, To: handoff.IDOf("elsewhere"), Version: 1, Keep: time.Millisecond,
	})
	if err != nil || released[0].State == nil {
		t.Fatalf("%+v, %v", released, err)
	}
	for deadline := time.Now().Add(time.Minute); ; { // the claim expires by the host's clock
		d, err := th.Peek(t.Context(), p.Charge("alice"))
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v; want it forgotten", d, err)
		}
		if d.Limit(0).Used == 0 {
			break
		}
	}
	take(1)
	take(2)
}
