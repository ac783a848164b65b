package memorybackend_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
)

const benchKeys = 100_000

func BenchmarkTake(b *testing.B) {
	keys := make([]string, benchKeys)
	for i := range keys {
		keys[i] = "user:" + strconv.Itoa(i)
	}
	for _, bench := range []struct {
		name  string
		keys  []string
		quota int64
	}{{"uniform", keys, 1 << 40}, {"hot", keys[:1], 1 << 40}, {"refused", keys[:16], 1}} {
		b.Run(bench.name, func(b *testing.B) {
			th := throttler.New(memorybackend.New(nil), nil)
			p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: bench.quota, Window: time.Hour}}}
			for _, key := range bench.keys {
				_, _ = th.Take(context.Background(), p.Charge(key))
			}
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = th.Take(context.Background(), p.Charge(bench.keys[rand.IntN(len(bench.keys))]))
				}
			})
		})
	}
}

func BenchmarkNewKey(b *testing.B) {
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	backend := memorybackend.New(nil)
	th := throttler.New(backend, nil)
	for i := range b.N {
		_, _ = th.Take(context.Background(), p.Charge("user:"+strconv.Itoa(i)))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/float64(b.N), "heap-B/key")
	runtime.KeepAlive(backend)
}
