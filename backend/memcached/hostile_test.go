package memcachedbackend

import (
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// Whatever values a server returns, a decision fails or makes sense, and the item that it
// writes can be read.
func FuzzDecisionOnItem(f *testing.F) {
	const (
		at  = 1_900_000_000_000
		key = "weir:0123456789abcdef"
	)
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{
		{Quota: 10, Window: time.Minute},
		{Quota: 20, Window: time.Hour, Algorithm: throttler.TokenBucket},
		{Quota: 5, Window: time.Hour, Algorithm: throttler.SlidingLog},
	}}
	charges := []throttler.Charge{
		{Policy: p, Key: "acme", Partition: "acme", Cost: 2},
		{Policy: p, Key: "alice", Partition: "acme", Cost: 1},
	}
	names := namesOf(key, charges)

	good, err := newItem(key, nil, 5000, spillAt)
	if err != nil {
		f.Fatal(err)
	}
	r := driver.NewRequest(at, charges...)
	if _, err := take(good, r, names); err != nil {
		f.Fatal(err)
	}
	written, _ := good.encode()
	f.Add(written, []byte{})
	f.Add([]byte(plainSeed), []byte{})
	f.Add([]byte(spreadSeed), []byte(ownSeed))
	f.Fuzz(func(t *testing.T, value, own []byte) {
		it, err := newItem(key, value, 5000, spillAt)
		if err != nil {
			return
		}
		it.spilled = map[string]stored{names[1].ownKey: {value: own, found: true}}
		d, err := take(it, r, names)
		if err != nil {
			return
		}
		refused := false
		decided := decision.FromDriver(d)
		for i, s := range decided.Limits() {
			refused = refused || s.Refused
			if s.Used < 0 || s.Remaining < 0 || s.Remaining > s.Limit.Capacity() || s.ResetAt.UnixMilli() < at || s.Refused && s.RetryAt.UnixMilli() < at || d.Allowed && s.Used < s.Cost {
				t.Errorf("%x, %x: limit %d: %+v", value, own, i, s)
			}
		}
		if d.Allowed == refused {
			t.Errorf("%x, %x: allowed %v: %v", value, own, d.Allowed, decided)
		}
		again, _ := it.encode()
		if _, err := newItem(key, again, 5000, spillAt); err != nil {
			t.Errorf("%x, %x is written as %x: %v", value, own, again, err)
		}
	})
}

// take decides the take r on an item.
func take(it *item, r driver.Request, names []name) (driver.Decision, error) {
	var d driver.Decision
	_, err := it.decide(names, handoff.Take(r, nil), &d)
	return d, err
}
