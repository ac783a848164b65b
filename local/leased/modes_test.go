package leased_test

import (
	"testing"

	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// A Check finds room in the units that its process holds. Record and AtMost charge the store.
func TestModesNextToALease(t *testing.T) {
	f := newFleet(t, 1, leased.Options{})
	p := f.processes[0]
	take := func(m quota.Mode, cost int64) throttler.Decision {
		d, err := p.throttler.Take(t.Context(), throttler.Charge{Policy: hour, Key: "alice", Cost: cost, Mode: m})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	p.take(t, 50)
	held := f.used() - 50
	if held <= 0 {
		t.Fatal("a busy key holds no lease")
	}
	capacity := hour.Limits[0].Quota
	if d := take(quota.AtMost, capacity); !d.Allowed || d.Charges()[0].Cost != capacity-50-held {
		t.Errorf("at most: %v at %d; want what is not leased", d, d.Charges()[0].Cost)
	}
	if d := take(quota.Check, held); !d.Allowed || d.Charges()[0].Cost != 0 {
		t.Errorf("a check of what is held: %v at %d; want it allowed at 0", d, d.Charges()[0].Cost)
	}
	if d := take(quota.Check, held+1); d.Allowed {
		t.Errorf("a check of more than is held: %v", d)
	}
	if d := take(quota.Record, 5); !d.Allowed || f.used() != capacity+5 {
		t.Errorf("a record: %v, and the store counts %d; want %d", d, f.used(), capacity+5)
	}
	if d := take(quota.Enforce, 1); !d.Allowed {
		t.Errorf("a unit of the lease: %v", d)
	}
}
