package synced

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// BenchmarkTake measures a decision while nothing syncs.
func BenchmarkTake(b *testing.B) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota.MaxQuota, Window: time.Hour, Aligned: true}}}
	for _, keys := range []int{1, 100_000} {
		f := newFleet(b, 1, 1, Options{})
		charges := make([]throttler.Charge, keys)
		for i := range charges {
			charges[i] = policy.Charge("client-" + strconv.Itoa(i))
			charges[i].Cost, charges[i].Partition = 1, charges[i].Key
		}
		now := f.clock.Now().UnixMilli()
		b.Run(fmt.Sprintf("%d keys", keys), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				k := i % keys
				if _, err := f.processes[0].backend.Take(context.Background(), driver.NewRequest(now, charges[k:k+1]...)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

var benchKeys = flag.Int("bench-keys", 50_000, "the keys of BenchmarkKeys")

// BenchmarkKeys measures the memory of many keys, and the time that it takes to sweep
// them when their windows have ended.
func BenchmarkKeys(b *testing.B) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour, Aligned: true}}}
	keys := *benchKeys
	if testing.Short() {
		keys = min(keys, 1000)
	}
	for range b.N {
		f := newFleet(b, 1, 1, Options{MaxKeys: 4 * keys}) // no stripe is full
		before := inUse()
		for i := range keys {
			_, _ = f.processes[0].throttler.Take(context.Background(), policy.Charge("client-"+strconv.Itoa(i)))
		}
		f.advance(2 * DefaultSync)
		f.roots[0].flush() // a root is another process
		b.ReportMetric(float64(inUse()-before)/float64(keys), "B/key")
		if n := f.processes[0].backend.Stats().Keys; n != keys {
			b.Fatalf("%d keys are counted, want %d", n, keys)
		}
		f.clock.Advance(2 * time.Hour)
		for range 3 { // the root reports that it knows nothing, gets the totals, and then no counter is watched
			f.processes[0].backend.syncOnce(context.Background(), f.processes[0].backend.aggregators[0])
		}
		start := time.Now()
		for range keyed.Stripes {
			f.processes[0].backend.sweep()
		}
		b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms/sweeps")
		if n := f.processes[0].backend.Stats().Keys; n != 0 {
			b.Fatalf("%d keys are left", n)
		}
	}
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
