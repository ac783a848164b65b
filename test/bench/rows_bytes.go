package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// bytesRows measure the bytes of a client with one limit, seen once, including the store's
// overhead for it. The limit is 60 per hour, because several peers drop clients early if their
// quota is almost whole.
func (l *lab) bytesRows() []row {
	return []row{
		{name: "bytes/redis", fixed: true, cells: cellsOf(exclude(peers.Redis(), peers.Variant), l.bytesInRedis)},
		{name: "bytes/memory", fixed: true, cells: cellsOf(peers.Memory(), l.bytesInMemory)},
	}
}

func (l *lab) bytesInRedis(ctx context.Context, peer peers.Peer) sample {
	server := l.redis("bytes")
	defer l.stop("bytes")
	empty := server.number("memory", "used_memory")
	useLimiter(peer.Open, peers.Config{Quota: 60, Window: window, Redis: server.Addr, Keys: len(l.keys)}, func(limiter *peers.Limiter) sample {
		fill(ctx, limiter, l.keys)
		return sample{}
	}) // the closed connections' buffers belong to no client
	// Closed connections are freed a little later, and a growing hash table exists twice until
	// all its keys have moved.
	last := server.number("memory", "used_memory")
	for range 20 {
		time.Sleep(150 * time.Millisecond)
		now := server.number("memory", "used_memory")
		if now >= last {
			break
		}
		last = now
	}
	return sample{values: map[string]float64{"bytes": (last - empty) / float64(len(l.keys))}}
}

func (l *lab) bytesInMemory(_ context.Context, peer peers.Peer) sample {
	var limiter *peers.Limiter
	bytes := measure.HeapBytes(func() *peers.Limiter {
		limiter = must(peer.Open(peers.Config{Quota: 60, Window: window, Keys: len(l.keys)}))
		for i := range l.keys {
			// Each key is a separate string, which the limiter may keep or release.
			must(limiter.Take(context.Background(), fmt.Sprintf("client-%014d", i)))
		}
		return limiter
	})
	limiter.Close()
	return sample{values: map[string]float64{"bytes": float64(bytes) / float64(len(l.keys))}}
}
