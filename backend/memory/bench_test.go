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
	"github.com/weir-go/weir/throttler/driver"
)

const benchKeys = 100_000

// BenchmarkTake measures a take from a fixed window, by a throttler and by the backend alone.
func BenchmarkTake(b *testing.B) {
	keys := make([]string, benchKeys)
	for i := range keys {
		keys[i] = "user:" + strconv.Itoa(i)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.1, 1, benchKeys-1)
	uniformly := func() int { return rng.IntN(benchKeys) }
	for _, bench := range []struct {
		name  string
		quota int64
		next  func() int
	}{
		{"uniform", 1 << 40, uniformly},
		{"zipf", 1 << 40, func() int { return int(zipf.Uint64()) }},
		{"hot", 1 << 40, func() int { return 0 }},
		{"refused", 1, uniformly},
	} {
		p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: bench.quota, Window: time.Hour}}}
		charges := make([]throttler.Charge, 1<<16)
		if testing.Short() {
			charges = charges[:1<<10]
		}
		for i := range charges {
			key := keys[bench.next()]
			charges[i] = throttler.Charge{Policy: p, Key: key, Cost: 1, Partition: key}
		}
		b.Run("throttler/"+bench.name, func(b *testing.B) {
			th := throttler.New(memorybackend.NewDefault(), nil)
			run(b, charges, func(i int) error {
				_, err := th.Take(context.Background(), charges[i])
				return err
			})
		})
		b.Run("backend/"+bench.name, func(b *testing.B) {
			backend := memorybackend.NewDefault()
			now := time.Now().Truncate(time.Millisecond)
			run(b, charges, func(i int) error {
				_, err := backend.Take(context.Background(), driver.NewRequest(now.UnixMilli(), charges[i:i+1]...))
				return err
			})
		})
	}
}

// run calls take for all charges, and then measures it with as many goroutines as there are
// processors.
func run(b *testing.B, charges []throttler.Charge, take func(i int) error) {
	for i := range charges {
		if err := take(i); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := rand.IntN(len(charges)); pb.Next(); i++ {
			if err := take(i % len(charges)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkNewKey measures the first take of a key. It ends far above the bound on keys.
func BenchmarkNewKey(b *testing.B) {
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	th := throttler.New(memorybackend.NewDefault(), nil)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_, _ = th.Take(context.Background(), p.Charge("user:"+strconv.Itoa(i)))
	}
}

// BenchmarkGC measures a garbage collection while a million keys are kept.
func BenchmarkGC(b *testing.B) {
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	backend := memorybackend.NewDefault()
	th := throttler.New(backend, nil)
	keys := 1_000_000
	if testing.Short() {
		keys = 1000
	}
	for i := range keys {
		_, _ = th.Take(context.Background(), p.Charge("user:"+strconv.Itoa(i)))
	}
	for b.Loop() {
		runtime.GC()
	}
	runtime.KeepAlive(backend)
}
