package synced

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Decisions about the same partitions, in any order, wait for each other without a deadlock,
// and charge all or nothing.
func TestPartitionsAtOnce(t *testing.T) {
	const quotaOf, keys = 1000, 10
	policy := &quota.Policy{Name: "core", Limits: []quota.Limit{{Quota: quotaOf, Window: time.Hour, Aligned: true}}}
	f := newFleet(t, 1, 1, Options{})
	b, now := f.processes[0].backend, f.clock.Now().UnixMilli()
	var admitted [keys]atomic.Int64
	var takers sync.WaitGroup
	for g := range 8 {
		takers.Go(func() {
			for i := range quotaOf {
				first := (g*i + g) % keys
				second := (first + 1 + i%(keys-1)) % keys
				r := driver.NewRequest(now, policy.Charge(fmt.Sprint(first)), policy.Charge(fmt.Sprint(second)))
				for k := range r.Charges() {
					r.Charges()[k].Cost, r.Charges()[k].Partition = 1, r.Charges()[k].Key
				}
				d, err := b.Take(t.Context(), r)
				if err != nil {
					t.Error(err)
				} else if d.Allowed {
					admitted[first].Add(1)
					admitted[second].Add(1)
				}
			}
		})
	}
	takers.Wait()
	for key := range admitted {
		c := policy.Charge(fmt.Sprint(key))
		c.Cost, c.Partition = 1, c.Key
		d, err := b.Peek(t.Context(), driver.NewRequest(now, c))
		if used := d.Results()[0].Used; err != nil || used != admitted[key].Load() || used > quotaOf {
			t.Errorf("key %d: %d used, %v; %d were admitted of a quota of %d", key, used, err, admitted[key].Load(), quotaOf)
		}
	}
}
