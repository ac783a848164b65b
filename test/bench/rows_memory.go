package main

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// memoryRows measure limiters that count in this process, with a goroutine for each core.
func (l *lab) memoryRows() (rows []row) {
	allowed, hot, refused := l.patterns()
	zipf := allowed
	allowed.name, zipf.name = "uniform", "zipf"
	for _, p := range []pattern{allowed, zipf, hot, refused} {
		requests := sync.OnceValue(func() (walks [][]string) {
			for g := range runtime.GOMAXPROCS(0) {
				walks = append(walks, walk(p, uint64(g)))
			}
			return walks
		})
		rows = append(rows, row{name: "memory/" + p.name, cells: cellsOf(peers.Memory(), func(ctx context.Context, peer peers.Peer) sample {
			return l.decideInMemory(ctx, peer.Open, peers.Config{Quota: p.quota, Window: window, Keys: len(p.keys)}, p, requests())
		})})
	}
	return rows
}

// walk returns the keys of a goroutine's requests before it begins again: a power of two of
// them, and if possible at least twice the number of p's keys. They are picked before the
// measurement, because drawing from Zipf's distribution takes longer than a decision. Each is
// a separate string, as in real requests: a limiter that kept a key's string would otherwise
// compare it with itself, at no cost.
func walk(p pattern, seed uint64) []string {
	random := rand.New(rand.NewPCG(seed, 1))
	pick := func() int { return random.IntN(len(p.keys)) }
	if p.name == "zipf" {
		zipf := rand.NewZipf(random, 1.1, 1, uint64(len(p.keys)-1))
		pick = func() int { return int(zipf.Uint64()) }
	}
	keys := make([]string, min(1<<20, 1<<bits.Len(uint(2*len(p.keys)))))
	for i := range keys {
		keys[i] = strings.Clone(p.keys[pick()])
	}
	return keys
}

// decideInMemory measures a goroutine for each of the requests.
func (l *lab) decideInMemory(ctx context.Context, open func(peers.Config) (*peers.Limiter, error), config peers.Config, p pattern, requests [][]string) sample {
	return useLimiter(open, config, func(limiter *peers.Limiter) sample {
		fill(ctx, limiter, p.keys)
		if allowed := must(limiter.Take(ctx, p.keys[0])); allowed != (p.quota > 1) {
			check(fmt.Errorf("allowed is %v for the second request under a quota of %d", allowed, p.quota))
		}
		background := context.Background()
		return costs(measure.Tight(ctx, len(requests), l.sample, func(g, i int) {
			_, _ = limiter.Take(background, requests[g][i&(len(requests[g])-1)])
		}))
	})
}

func costs(c measure.Cost) sample {
	return sample{values: map[string]float64{"ns": c.Nanos, "cpu_ns": c.CPUNanos, "allocs": c.Allocs}}
}
