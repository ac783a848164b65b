// Package peers adapts rate limiters to a common type, so that the same load can be put on
// each. Each adapter has a separate file, and uses the settings that the limiter's
// documentation recommends.
package peers

import (
	"context"
	"net/http"
	"time"
)

// A Peer is a rate limiter with one kind of store.
type Peer struct {
	Name string
	Role Role
	Open func(Config) (*Limiter, error)
}

// Role says how a peer is compared.
type Role uint8

const (
	// Rival is another limiter. The zero value.
	Rival Role = iota
	// Ours is weir as it is compared with rivals.
	Ours
	// Variant is weir in a variant that is not compared with rivals.
	Variant
	// Ceiling has no limiter: it shows the lowest possible cost of a decision.
	Ceiling
)

// Config says what a Limiter allows, and where it counts.
type Config struct {
	Quota  int64         // decisions allowed per window and key
	Window time.Duration // of the limit
	Redis  string        // address of the redis-server; unused in memory
	Keys   int           // the most keys that Take is called with; a hint for bounded stores
}

// A Limiter is an open Peer.
type Limiter struct {
	// Take decides about one request of key.
	Take func(ctx context.Context, key string) (allowed bool, err error)

	// Wrap is the peer's own middleware, keyed by KeyHeader, or nil.
	Wrap func(http.Handler) http.Handler

	// Close releases the resources of Open.
	Close func()
}

// KeyHeader is the request header that identifies a client to the middleware: the one header
// that all peers can be set to read.
const KeyHeader = "X-Real-IP"

// Redis returns the peers that count in Redis.
func Redis() []Peer {
	return []Peer{
		Weir, weirUncached, weirDeadline, weirManyLimits,
		rueidisLimiter, ulule, ululeAutoPipeline, redisRate, throttledRedis, sethvargoRedis, mennanovRedis, httprateRedis,
		pipelinedScript, pipelinedNative,
	}
}

// Buckets returns the peers that count a token bucket, or GCRA, in Redis.
func Buckets() []Peer { return []Peer{weirBucket, redisRate, redisRateAutoPipeline, throttledRedis} }

// Memory returns the peers that count in this process.
func Memory() []Peer {
	return []Peer{Weir, sethvargoMemory, ululeMemory, throttledMemory, httprateMemory, mennanovMemory, xtimeRate, tollboothMemory}
}

func headerKey(r *http.Request) string { return r.Header.Get(KeyHeader) }
