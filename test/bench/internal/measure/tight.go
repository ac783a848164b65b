package measure

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// batch is the number of operations between two readings of the clock, which cost as much as
// the fastest operations.
const batch = 256

// A Cost is the cost of one operation.
type Cost struct {
	Nanos    float64 // of wall time, while all goroutines run
	CPUNanos float64 // of this process's CPU time, garbage collection included
	Allocs   float64
}

// Tight runs op on n goroutines for d. Each call gets its goroutine's number, and the number
// of that goroutine's operations so far.
func Tight(ctx context.Context, n int, d time.Duration, op func(goroutine, i int)) Cost {
	runtime.GC()
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var total atomic.Int64
	var wg sync.WaitGroup
	begin, cpu := time.Now(), processCPU()
	for g := range n {
		wg.Go(func() {
			i := 0
			for first := true; first || time.Since(begin) < d && !stop.Load(); first = false {
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
	cpu = processCPU() - cpu
	runtime.ReadMemStats(&after)
	ops := float64(total.Load())
	return Cost{float64(elapsed) / ops, float64(cpu) / ops, float64(after.Mallocs-before.Mallocs) / ops}
}

// HeapBytes returns the heap that the result of build keeps in use.
func HeapBytes[T any](build func() T) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // frees the objects that finalizers kept in the first one
	runtime.ReadMemStats(&before)
	kept := build()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}
