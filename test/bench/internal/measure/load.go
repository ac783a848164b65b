// Package measure puts load on a limiter, a handler or a server, and measures the cost of each
// decision.
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
)

// A Load requests decisions, one at a time on each goroutine.
type Load struct {
	Goroutines int
	Warmup     time.Duration // before the clock starts
	Duration   time.Duration
	Keys       []string // each request is for a random one of these
	Take       func(ctx context.Context, key string) (allowed bool, err error)

	// ServerCPU returns the CPU time used by the server so far. If nil, there is no server.
	ServerCPU func() (time.Duration, error)
}

// A Report is the cost of a Load.
type Report struct {
	Decisions int64 // decisions with an answer
	Allowed   int64 // of these
	Errors    int64
	Err       error // the first error
	Elapsed   time.Duration
	P50, P99  time.Duration // of a decision

	ClientCPU time.Duration // of this process, load generator included
	ServerCPU time.Duration
	Allocs    uint64 // by this process
}

// Run runs l until its duration has passed or ctx is done.
func (l Load) Run(ctx context.Context) (Report, error) {
	if l.Warmup > 0 {
		l.run(ctx, l.Warmup)
	}
	serverCPU := func() (time.Duration, error) { return 0, nil }
	if l.ServerCPU != nil {
		serverCPU = l.ServerCPU
	}
	runtime.GC() // each load begins with a clean heap
	var before, after runtime.MemStats
	server, err := serverCPU()
	if err != nil {
		return Report{}, err
	}
	runtime.ReadMemStats(&before)
	client := processCPU()
	report := l.run(ctx, l.Duration)
	report.ClientCPU = processCPU() - client
	runtime.ReadMemStats(&after)
	report.Allocs = after.Mallocs - before.Mallocs
	serverEnd, err := serverCPU()
	if err != nil {
		return Report{}, err
	}
	report.ServerCPU = serverEnd - server
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	if report.Decisions == 0 {
		return Report{}, fmt.Errorf("no decision in %v, and %d errors: %w", l.Duration, report.Errors, report.Err)
	}
	return report, nil
}

func (l Load) run(ctx context.Context, d time.Duration) Report {
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	workers := make([]worker, l.Goroutines)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { workers[i].run(l, begin.Add(d), &stop) })
	}
	wg.Wait()
	report := Report{Elapsed: time.Since(begin)}
	var latencies histogram
	for i := range workers {
		w := &workers[i]
		report.Decisions += w.latencies.n
		report.Allowed += w.allowed
		report.Errors += w.errors
		if report.Err == nil {
			report.Err = w.err
		}
		latencies.merge(&w.latencies)
	}
	report.P50, report.P99 = latencies.quantile(0.50), latencies.quantile(0.99)
	return report
}

type worker struct {
	allowed, errors int64
	err             error
	latencies       histogram
}

func (w *worker) run(l Load, end time.Time, stop *atomic.Bool) {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	ctx := context.Background()
	now := time.Now()
	for first := true; first || now.Before(end) && !stop.Load(); first = false { // at least once, even on a busy machine
		allowed, err := l.Take(ctx, l.Keys[random.IntN(len(l.Keys))])
		then := now
		now = time.Now()
		switch {
		case err != nil:
			if w.errors++; w.err == nil {
				w.err = err
			}
			continue
		case allowed:
			w.allowed++
		}
		w.latencies.add(now.Sub(then))
	}
}

// processCPU returns the CPU time used by this process.
func processCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // constant arguments can't be wrong
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
