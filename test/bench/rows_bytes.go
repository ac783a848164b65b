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
	redis := row{name: "bytes/redis", once: true}
	for _, peer := range withoutVariants(peers.Redis()) {
		redis.cells = append(redis.cells, cell{peer.Name, peer.Role, func(ctx context.Context) (sample, error) {
			return l.bytesInRedis(ctx, peer)
		}})
	}
	memory := row{name: "bytes/memory", once: true}
	for _, peer := range peers.Memory() {
		memory.cells = append(memory.cells, cell{peer.Name, peer.Role, func(context.Context) (sample, error) {
			return l.bytesInMemory(peer)
		}})
	}
	return []row{redis, memory}
}

func (l *lab) bytesInRedis(ctx context.Context, peer peers.Peer) (sample, error) {
	name := "bytes " + peer.Name
	server, err := l.redis(name)
	if err != nil {
		return sample{}, err
	}
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.stop(name)
	}()
	empty, err := server.usedMemory()
	if err != nil {
		return sample{}, err
	}
	limiter, err := peer.Open(peers.Config{Quota: 60, Window: window, Redis: server.Addr, Keys: len(l.keys)})
	if err != nil {
		return sample{}, err
	}
	err = fill(ctx, limiter, l.keys)
	limiter.Close() // frees the connections' buffers, which belong to no client
	if err != nil {
		return sample{}, err
	}
	full, err := server.settledMemory()
	return sample{values: map[string]float64{"bytes": (full - empty) / float64(len(l.keys))}}, err
}

// settledMemory returns the used memory once it no longer falls: closed connections are freed
// a little later, and a growing hash table exists twice until all its keys have moved.
func (s *server) settledMemory() (float64, error) {
	last, err := s.usedMemory()
	for range 20 {
		time.Sleep(150 * time.Millisecond)
		now, nowErr := s.usedMemory()
		if nowErr != nil || now >= last {
			return min(now, last), nowErr
		}
		last = now
	}
	return last, err
}

func (l *lab) bytesInMemory(peer peers.Peer) (sample, error) {
	var failed error
	var limiter *peers.Limiter
	bytes := measure.HeapBytes(func() *peers.Limiter {
		if limiter, failed = peer.Open(peers.Config{Quota: 60, Window: window, Keys: len(l.keys)}); failed != nil {
			return nil
		}
		for i := range len(l.keys) {
			// Each key is a separate string, which the limiter may keep or release.
			if _, err := limiter.Take(context.Background(), fmt.Sprintf("client-%014d", i)); err != nil {
				failed = err
			}
		}
		return limiter
	})
	if limiter != nil {
		limiter.Close()
	}
	return sample{values: map[string]float64{"bytes": float64(bytes) / float64(len(l.keys))}}, failed
}
