// Package redisbackend keeps counts in Redis, or what speaks its protocol:
// Redis 6.2 and later, Valkey.
//
// Keys are sharded by the client over named shards, each a primary with any
// number of replicas. Takes and settlements go to the primary, as one EVALSHA
// for any number of limits and charges. Peeks go to a replica, with the
// primary as the next choice, and run no script.
//
// A dead shard's keys are not moved to another: that would hand out fresh
// windows each time a server stumbles. Its decisions fail with an error that
// wraps throttler.ErrUnavailable, and other shards do not notice.
package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/internal/rendezvous"
	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler"
)

// Shard is one primary and its replicas, by clients that the caller has made
// and closes: TLS, passwords and pools are the caller's. A client may speak to
// one server, to a Sentinel master name, or to a whole Redis Cluster.
// [ClientOptions] are good settings.
type Shard struct {
	// Name decides which keys live here. A shard may change its address and
	// keep its keys, but not its name. Required, and unlike the others'.
	Name string

	// Primary takes writes. Required.
	Primary redis.UniversalClient

	// Replicas serve peeks. May be empty: then the primary does.
	Replicas []redis.UniversalClient
}

// Options are what a Backend can be told. The zero value, and nil, are fine.
type Options struct {
	// Prefix begins every Redis key. It must not have braces. If empty, "weir:".
	// Up to five bytes keep a key of a short policy name within 32 bytes.
	Prefix string

	// Seed goes into the choice of a shard. Every process needs the same one.
	// A secret one keeps clients that choose their own keys from piling them
	// up on one shard.
	Seed uint64

	// Margin is how long, by the server's clock, a key outlives its last
	// window: more than the clocks of the processes differ by. If zero, 5 s.
	Margin time.Duration

	// ReplicaTimeout bounds the wait for a replica's answer to a peek before
	// the primary is asked; never more than half of what is left of the
	// context's deadline. If zero, 20 ms.
	ReplicaTimeout time.Duration
}

// Backend keeps counts in Redis. It is safe for concurrent use and needs no
// closing; the clients are closed by whoever made them.
type Backend struct {
	ring           *rendezvous.Ring
	shards         []*shard
	prefix         string
	margin         int64 // ms
	replicaTimeout time.Duration
}

var _ handoff.Store = (*Backend)(nil)

// New returns a Backend over shards. It dials nothing: a shard that is down
// fails its own decisions, until it is up. The error says which shard or
// option is wrong.
func New(shards []Shard, options *Options) (*Backend, error) {
	if options == nil {
		options = new(Options)
	}
	b := &Backend{
		prefix:         options.Prefix,
		margin:         options.Margin.Milliseconds(),
		replicaTimeout: options.ReplicaTimeout,
	}
	if b.prefix == "" {
		b.prefix = "weir:"
	}
	if b.margin == 0 {
		b.margin = algorithm.Margin.Milliseconds()
	}
	if b.replicaTimeout == 0 {
		b.replicaTimeout = 20 * time.Millisecond
	}
	switch {
	case strings.ContainsAny(b.prefix, "{}"):
		return nil, fmt.Errorf("redisbackend: Prefix is %q; it must not have braces, which choose a cluster's slot", b.prefix)
	case b.margin < 0 || b.margin > 1<<32-1:
		return nil, fmt.Errorf("redisbackend: Margin is %v; it must be from 1ms to 49 days", options.Margin)
	case b.replicaTimeout < 0:
		return nil, fmt.Errorf("redisbackend: ReplicaTimeout is %v; it must not be negative", b.replicaTimeout)
	case len(shards) == 0:
		return nil, errors.New("redisbackend: no shards; at least one is needed")
	}
	names := make([]string, len(shards))
	for i, s := range shards {
		if s.Name == "" {
			return nil, fmt.Errorf("redisbackend: shard %d has no name; its name decides which keys live on it", i)
		}
		if s.Primary == nil {
			return nil, fmt.Errorf("redisbackend: shard %q has no primary", s.Name)
		}
		for j := range i {
			if names[j] == s.Name {
				return nil, fmt.Errorf("redisbackend: shards %d and %d are both named %q; names must differ", j, i, s.Name)
			}
		}
		names[i] = s.Name
		b.shards = append(b.shards, newShard(s))
	}
	b.ring = rendezvous.New(options.Seed, names)
	return b, nil
}

// Take implements throttler.Backend: one EVALSHA on the primary.
func (b *Backend) Take(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	return b.decide(ctx, r, false, packTake(r, b.margin))
}

// Settle implements throttler.Backend: one EVALSHA on the primary.
func (b *Backend) Settle(ctx context.Context, s throttler.Settlement) (throttler.Decision, error) {
	return b.decide(ctx, settled(s), true, packSettle(s, b.margin))
}

func (b *Backend) decide(ctx context.Context, r throttler.Request, settles bool, packed []byte) (throttler.Decision, error) {
	charges := r.Charges()
	shard := b.shardOf(charges)
	cmd, err := runScript(ctx, shard, decideScript, lua.Decide, b.keysOf(charges), [][]byte{packed}, redis.NewIntSliceCmd)
	if err != nil {
		return throttler.Decision{}, err
	}
	return shard.decision(r, settles, cmd.Val())
}

// settled returns the request of which s is the settlement, at its instant.
func settled(s throttler.Settlement) throttler.Request {
	r := s.Charged.Request()
	r.Now = s.Now
	return r
}

// Peek implements throttler.Backend: one round trip of GETs, on a replica if one answers.
// What is stored is judged here, by its reset-at and the caller's now, so that
// a dead window that a replica still shows reads as none.
func (b *Backend) Peek(ctx context.Context, r throttler.Request) (throttler.Decision, error) {
	return b.PeekAt(ctx, r, nil)
}

// Load loads the scripts on every primary, so that the first decision need not.
// It returns the errors of those that did not answer, joined; each names its
// shard and wraps throttler.ErrUnavailable. A server that forgets the script,
// or that Load never reached, is sent it again with the decision.
func (b *Backend) Load(ctx context.Context) error {
	errs := make(chan error, len(b.shards))
	for _, s := range b.shards {
		go func() { errs <- s.load(ctx) }()
	}
	var all []error
	for range b.shards {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// Location is where a count lives.
type Location struct {
	Shard string // its name
	Key   string // the Redis key
}

// Locate says where the count of c lives: for an operator who wants to look at
// it, or wonders which clients a shard's trouble hits.
func (b *Backend) Locate(c throttler.Charge) Location {
	if c.Partition == "" {
		c.Partition = c.Key
	}
	charges := []throttler.Charge{c}
	return Location{Shard: b.shardOf(charges).name, Key: b.keysOf(charges)[0]}
}

// shardOf returns the shard of charges, which share a partition.
func (b *Backend) shardOf(charges []throttler.Charge) *shard {
	return b.shards[b.ring.Choose(charges[0].Partition)]
}
