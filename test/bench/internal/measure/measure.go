// Package measure puts load on a limiter, and measures the cost of each decision.
package measure

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Load requests decisions, one at a time on each goroutine.
type Load struct {
	Goroutines int
	Warmup     time.Duration // before the clock starts
	Duration   time.Duration
	Keys       []string // each request is for a random one of these
	Take       func(ctx context.Context, key string) (allowed bool, err error)

	// ServerCPU returns the CPU time used by the server so far. If nil, there is no server.
	ServerCPU func() time.Duration
}

// A Report is the cost of a Load.
type Report struct {
	Decisions int64 // decisions with an answer
	Allowed   int64 // of these
	Errors    int64
	Err       error `json:"-"` // the first error
	Elapsed   time.Duration
	P50, P99  time.Duration // of a decision, within 1 %

	ClientCPU time.Duration // of this process, load generator included
	ServerCPU time.Duration
	Allocs    uint64 // by this process
}

// Run runs l until its duration has passed or ctx is done.
func (l Load) Run(ctx context.Context) (Report, error) {
	serverCPU := func() time.Duration { return 0 }
	if l.ServerCPU != nil {
		serverCPU = l.ServerCPU
	}
	if l.Warmup > 0 {
		l.run(ctx, l.Warmup)
	}
	runtime.GC() // each load begins with a clean heap
	server, client, allocs := serverCPU(), processCPU(), mallocs()
	report := l.run(ctx, l.Duration)
	report.ClientCPU, report.Allocs, report.ServerCPU = processCPU()-client, mallocs()-allocs, serverCPU()-server
	if ctx.Err() == nil && report.Decisions == 0 {
		return Report{}, fmt.Errorf("no decision in %v, and %d errors: %w", l.Duration, report.Errors, report.Err)
	}
	return report, ctx.Err()
}

func (l Load) run(ctx context.Context, d time.Duration) (sum Report) {
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	reports, latencies := make([]Report, l.Goroutines), make([]*hdrhistogram.Histogram, l.Goroutines)
	for i := range latencies {
		latencies[i] = hdrhistogram.New(1, time.Hour.Nanoseconds(), 2)
	}
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range reports {
		wg.Go(func() { l.work(&reports[i], latencies[i], begin.Add(d), &stop) })
	}
	wg.Wait()
	sum.Elapsed = time.Since(begin)
	for i, r := range reports {
		sum.Decisions += r.Decisions
		sum.Allowed += r.Allowed
		sum.Errors += r.Errors
		if sum.Err == nil {
			sum.Err = r.Err
		}
		if i > 0 {
			latencies[0].Merge(latencies[i])
		}
	}
	sum.P50, sum.P99 = time.Duration(latencies[0].ValueAtQuantile(50)), time.Duration(latencies[0].ValueAtQuantile(99))
	return sum
}

func (l Load) work(r *Report, latencies *hdrhistogram.Histogram, end time.Time, stop *atomic.Bool) {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	now := time.Now()
	for first := true; first || now.Before(end) && !stop.Load(); first = false { // at least once, even on a busy machine
		allowed, err := l.Take(context.Background(), l.Keys[random.IntN(len(l.Keys))])
		begin := now
		now = time.Now()
		if err != nil {
			if r.Errors++; r.Err == nil {
				r.Err = err
			}
			continue
		}
		if r.Decisions++; allowed {
			r.Allowed++
		}
		_ = latencies.RecordValue(min(now.Sub(begin), time.Hour).Nanoseconds())
	}
}

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
	var total atomic.Int64
	var wg sync.WaitGroup
	allocs, begin, cpu := mallocs(), time.Now(), processCPU()
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
	elapsed, used := time.Since(begin), processCPU()-cpu
	ops := float64(total.Load())
	return Cost{float64(elapsed) / ops, float64(used) / ops, float64(mallocs()-allocs) / ops}
}

// HeapBytes returns the heap that the result of build keeps in use.
func HeapBytes[T any](build func() T) int64 {
	used := func() int64 {
		runtime.GC()
		runtime.GC() // frees the objects that finalizers kept in the first one
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := used()
	built := build()
	after := used()
	runtime.KeepAlive(built)
	return after - before
}

// mallocs returns how often this process has allocated.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// processCPU returns the CPU time used by this process.
func processCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // constant arguments can't be wrong
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
