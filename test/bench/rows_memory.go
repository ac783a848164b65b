package main

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strings"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// memoryRows measure limiters that count in this process, with a goroutine for each core.
func (l *lab) memoryRows() []row {
	allowed, hot, refused := l.patterns()
	zipf := allowed
	zipf.name = "zipf"
	allowed.name = "uniform"
	var rows []row
	for _, p := range []pattern{allowed, zipf, hot, refused} {
		r := row{name: "memory/" + p.name}
		requests := walks(p)
		for _, peer := range peers.Memory() {
			r.cells = append(r.cells, cell{peer.Name, peer.Role, func(ctx context.Context) (sample, error) {
				return l.decideInMemory(ctx, peer, p, requests())
			}})
		}
		rows = append(rows, r)
	}
	return rows
}

// walks returns a function that returns the keys of each goroutine's requests.
func walks(p pattern) func() [][]string {
	var all [][]string
	return func() [][]string {
		if all == nil {
			for g := range runtime.GOMAXPROCS(0) {
				all = append(all, walk(p, uint64(g)))
			}
		}
		return all
	}
}

// walk returns the keys of a goroutine's requests before it begins again: a power of two of
// them, and if possible at least twice the number of p's keys. They are picked before the
// measurement, because drawing from Zipf's distribution takes longer than a decision. Each is
// a separate string, as in real requests: a limiter that kept a key's string would otherwise
// compare it with itself, at no cost.
func walk(p pattern, seed uint64) []string {
	const most = 1 << 20
	random := rand.New(rand.NewPCG(seed, 1))
	pick := func() int { return random.IntN(len(p.keys)) }
	if p.name == "zipf" {
		zipf := rand.NewZipf(random, 1.1, 1, uint64(len(p.keys)-1))
		pick = func() int { return int(zipf.Uint64()) }
	}
	keys := make([]string, min(most, 1<<bits.Len(uint(2*len(p.keys)))))
	for i := range keys {
		keys[i] = strings.Clone(p.keys[pick()])
	}
	return keys
}

func (l *lab) decideInMemory(ctx context.Context, peer peers.Peer, p pattern, requests [][]string) (sample, error) {
	limiter, err := peer.Open(peers.Config{Quota: p.quota, Window: window, Keys: len(p.keys)})
	if err != nil {
		return sample{}, err
	}
	defer limiter.Close()
	if err := fill(ctx, limiter, p.keys); err != nil {
		return sample{}, err
	}
	if err := plausibleNext(limiter, p); err != nil {
		return sample{}, err
	}
	background := context.Background()
	cost := measure.Tight(ctx, len(requests), l.sample, func(g, i int) {
		_, _ = limiter.Take(background, requests[g][i&(len(requests[g])-1)])
	})
	return costs(cost), nil
}

func costs(c measure.Cost) sample {
	return sample{values: map[string]float64{"ns": c.Nanos, "cpu_ns": c.CPUNanos, "allocs": c.Allocs}}
}

// plausibleNext returns an error if the limiter, which has seen each key once, contradicts its
// quota.
func plausibleNext(limiter *peers.Limiter, p pattern) error {
	allowed, err := limiter.Take(context.Background(), p.keys[0])
	if err == nil && allowed != (p.quota > 1) {
		err = fmt.Errorf("allowed is %v for the second request under a quota of %d", allowed, p.quota)
	}
	return err
}
