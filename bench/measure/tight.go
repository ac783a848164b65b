package measure

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// batch is how many operations go between two looks at the clock, which would
// cost as much as the fastest of them.
const batch = 256

// Tight runs op on n goroutines for d, each with its own number and a count of
// its operations, and returns the wall time in ns and the
// allocations of one operation.
func Tight(ctx context.Context, n int, d time.Duration, op func(goroutine, i int)) (nanos, allocs float64) {
	runtime.GC()
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var total atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for g := range n {
		wg.Go(func() {
			i := 0
			for time.Since(begin) < d && !stop.Load() {
				for range batch {
					op(g, i)
					i++
				}
			}
			total.Add(int64(i))
		})
	}
	wg.Wait()
	elapsed := time.Since(begin)
	runtime.ReadMemStats(&after)
	ops := float64(max(total.Load(), 1))
	return float64(elapsed) / ops, float64(after.Mallocs-before.Mallocs) / ops
}

// HeapBytes returns the heap that build leaves behind in what it returns.
func HeapBytes[T any](build func() T) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one's finalizers let go
	runtime.ReadMemStats(&before)
	kept := build()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}
