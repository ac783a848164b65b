package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// traffic returns the ms until the next request of a client.
type traffic struct {
	name string
	next func(rng *rand.Rand, now int64) int64
}

const (
	measuredQuota  = 60
	measuredWindow = 60_000 // ms
	clients        = 200
	perClient      = 5000
)

// poisson is steady traffic at load times the limit.
func poisson(load float64) func(*rand.Rand, int64) int64 {
	return func(rng *rand.Rand, _ int64) int64 {
		return int64(rng.ExpFloat64() * measuredWindow / (measuredQuota * load))
	}
}

var traffics = []traffic{
	{"steady, 50 % of the limit", poisson(0.5)},
	{"steady, 80 %", poisson(0.8)},
	{"steady, 100 %", poisson(1)},
	{"steady, 150 %", poisson(1.5)},
	{"bursts of 30 at 5/s, then 20 to 60 s of silence", func(rng *rand.Rand, _ int64) int64 {
		if rng.IntN(30) == 0 {
			return 20_000 + rng.Int64N(40_000)
		}
		return int64(rng.ExpFloat64() * 200)
	}},
	{"heavy-tailed pauses (Pareto, 1.3)", func(rng *rand.Rand, _ int64) int64 {
		return int64(min(250/math.Pow(rng.Float64(), 1/1.3), 600_000))
	}},
	{"waves of ten minutes, 20 to 180 %", func(rng *rand.Rand, now int64) int64 {
		load := 1 + 0.8*math.Sin(2*math.Pi*float64(now)/600_000)
		return int64(rng.ExpFloat64() * measuredWindow / (measuredQuota * load))
	}},
}

// printFigures runs each traffic through the sliding window and, at the same time, through a
// log of the requests that the sliding window admitted: the true use of the last window at
// each estimate.
func printFigures(w io.Writer) {
	fmt.Fprintf(w, "%d per %d s, %d requests of %d clients each, seed 1\n\n", measuredQuota, measuredWindow/1000, clients*perClient, clients)
	fmt.Fprintln(w, "| traffic | wrongly allowed | wrongly refused | mean error of used | most in any window |")
	fmt.Fprintln(w, "|---|---:|---:|---:|---:|")
	var sum figures
	for _, t := range traffics {
		f := measureEstimate(t)
		sum.add(f)
		fmt.Fprintf(w, "| %s | %s |\n", t.name, f)
	}
	fmt.Fprintf(w, "| **all** | %s |\n\n", sum)
	fmt.Fprintf(w, "Most in any window, of a quota of %d, by traffic that aims at it: fixed window %d, token bucket %d.\n",
		measuredQuota, worstWindow(throttler.FixedWindow), worstWindow(throttler.TokenBucket))
}

type figures struct {
	decisions, overAllowed, overRefused int
	errorSum                            float64
	highest                             int64
}

func (f *figures) add(o figures) {
	f.decisions += o.decisions
	f.overAllowed += o.overAllowed
	f.overRefused += o.overRefused
	f.errorSum += o.errorSum
	f.highest = max(f.highest, o.highest)
}

func (f figures) String() string {
	n := float64(f.decisions)
	return fmt.Sprintf("%.3f %% | %.3f %% | %.1f %% | %d", 100*float64(f.overAllowed)/n, 100*float64(f.overRefused)/n, 100*f.errorSum/n/measuredQuota, f.highest)
}

func measureEstimate(t traffic) figures {
	rng := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same figures each time
	limits := []throttler.Limit{{Quota: measuredQuota, Window: measuredWindow * time.Millisecond, Algorithm: throttler.SlidingWindow}}
	var f figures
	for range clients {
		var s algorithm.State
		var results [1]driver.Result
		var admitted []int64 // in the last window
		now := int64(1_900_000_800_000) + rng.Int64N(measuredWindow)
		for range perClient {
			now += t.next(rng, now)
			for len(admitted) > 0 && admitted[0]+measuredWindow <= now {
				admitted = admitted[1:]
			}
			really := int64(len(admitted))
			fits := s.Evaluate(limits, 1, now, results[:])
			f.decisions++
			f.errorSum += math.Abs(float64(results[0].Used - really))
			switch {
			case fits && really >= measuredQuota:
				f.overAllowed++
			case !fits && really < measuredQuota:
				f.overRefused++
			}
			if fits {
				s.Charge(limits, 1, now, results[:])
				admitted = append(admitted, now)
				f.highest = max(f.highest, int64(len(admitted)))
			}
		}
	}
	return f
}

// worstWindow sends a full quota late in a window, and then as many requests as are allowed
// within a window's length.
func worstWindow(a quota.Algorithm) (highest int) {
	limits := []throttler.Limit{{Quota: measuredQuota, Window: measuredWindow * time.Millisecond, Algorithm: a}}
	var s algorithm.State
	var results [1]driver.Result
	var admitted []int64
	take := func(now int64) {
		for len(admitted) > 0 && admitted[0]+measuredWindow <= now {
			admitted = admitted[1:]
		}
		if s.Evaluate(limits, 1, now, results[:]) {
			s.Charge(limits, 1, now, results[:])
			admitted = append(admitted, now)
			highest = max(highest, len(admitted))
		}
	}
	const began = 1_900_000_800_000
	take(began)
	for now := int64(began + measuredWindow - 100); now < began+3*measuredWindow; now++ {
		take(now)
	}
	return highest
}
