// Package peers adapts rate limiters to one shape, so that one load can be put
// on each. Each adapter has a separate file, and the settings that the
// limiter's documentation recommends.
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

// Role is what a peer is compared as.
type Role uint8

const (
	// Rival is another limiter. The zero value.
	Rival Role = iota
	// Ours is weir as the comparison has it.
	Ours
	// Variant is weir doing more than the rivals do.
	Variant
	// Ceiling limits nothing: it is the least that a decision can cost.
	Ceiling
)

// Config says what a Limiter allows, and where it counts.
type Config struct {
	Quota  int64         // decisions that are allowed per window and key
	Window time.Duration // of the limit
	Redis  string        // address of the redis-server; unused in memory
	Keys   int           // the most keys that will be asked about; a hint for stores that are bounded
}

// A Limiter is an open Peer.
type Limiter struct {
	// Take decides about one request of key.
	Take func(ctx context.Context, key string) (allowed bool, err error)

	// Wrap is the peer's own middleware, keyed by KeyHeader. Nil if it has none.
	Wrap func(http.Handler) http.Handler

	// Close ends what Open began.
	Close func()
}

// KeyHeader is the request header that identifies a client to the middlewares: the
// one header that all of them can be set to read.
const KeyHeader = "X-Real-IP"

// Redis returns the peers that count in Redis.
func Redis() []Peer {
	return []Peer{
		Weir, weirUncached, weirDeadline, weirManyLimits,
		rueidisLimiter, ulule, ululeAutoPipeline, redisRate, throttledRedis, sethvargoRedis, mennanovRedis, httprateRedis,
		pipelinedScript, pipelinedNative,
	}
}

// Memory returns the peers that count in this process.
func Memory() []Peer {
	return []Peer{Weir, sethvargoMemory, ululeMemory, throttledMemory, httprateMemory, mennanovMemory, xtimeRate, tollboothMemory}
}

func headerKey(r *http.Request) string { return r.Header.Get(KeyHeader) }
