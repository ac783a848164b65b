package leased_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// BenchmarkTake measures decisions from a lease, and decisions of the other backend.
func BenchmarkTake(b *testing.B) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota.MaxQuota, Window: time.Hour}}}
	for _, keys := range []int{1, 10_000} {
		charges := make([]throttler.Charge, keys)
		for i := range charges {
			charges[i] = policy.Charge("client-" + strconv.Itoa(i))
			charges[i].Cost, charges[i].Partition = 1, charges[i].Key
		}
		memory := memorybackend.NewDefault()
		for _, c := range []struct {
			name    string
			backend driver.Backend
		}{{"memory", memory}, {"leased", open(b, memory, &leased.Options{Busy: 1})}} {
			b.Run(fmt.Sprintf("%s/%d keys", c.name, keys), func(b *testing.B) {
				b.ReportAllocs()
				now := time.Now().UnixMilli()
				for i := 0; b.Loop(); i++ {
					if i%4096 == 0 { // silent keys return their leases
						now = time.Now().UnixMilli()
					}
					k := i % keys
					if _, err := c.backend.Take(b.Context(), driver.NewRequest(now, charges[k:k+1]...)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
