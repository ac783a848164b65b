package memcachedbackend_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// BenchmarkPartition measures a take for one of many keys of one partition, chosen at random,
// alone and together with a charge to the partition's own key. A take must not become slower
// with the number of counts.
func BenchmarkPartition(b *testing.B) {
	policy := perHour(quota.MaxQuota)
	member := func(i int) throttler.Charge {
		return throttler.Charge{Policy: policy, Key: fmt.Sprint("member", i), Partition: "acme"}
	}
	all := []int{1, 100, 2_500, 17_500, 100_000}
	if testing.Short() {
		all = all[:3]
	}
	for _, counts := range all {
		b.Run(fmt.Sprint("counts=", counts), func(b *testing.B) {
			server := testserver.Memcached(b)
			th := process(b, clock.NewManual(t0), nil, server.Addr)
			fill(b, th, counts, member)
			take := func(b *testing.B, charges ...throttler.Charge) {
				if d, err := th.Take(b.Context(), charges...); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
			}
			b.Run("alone", func(b *testing.B) {
				for b.Loop() {
					take(b, member(rand.IntN(counts)))
				}
			})
			b.Run("chain", func(b *testing.B) {
				for b.Loop() {
					take(b, policy.Charge("acme"), member(rand.IntN(counts)))
				}
			})
			b.Run("64 goroutines", func(b *testing.B) {
				var wg sync.WaitGroup
				left := atomic.Int64{}
				left.Store(int64(b.N))
				for range 64 {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							if _, err := th.Take(b.Context(), policy.Charge("acme"), member(rand.IntN(counts))); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// fill takes once from each of the counts.
func fill(t testing.TB, th *throttler.Throttler, counts int, member func(i int) throttler.Charge) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(counts, 64) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < counts; i = int(next.Add(1)) - 1 {
				if _, err := th.Take(t.Context(), member(i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}
