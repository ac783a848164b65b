package redisbackend

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler"
)

// The scripts. Their SHA-1s are computed here, not asked for.
var (
	decideScript   = redis.NewScript(lua.Decide)
	decideAtScript = redis.NewScript(lua.DecideAt)
	releaseScript  = redis.NewScript(lua.Release)
)

// shard is a Shard in use.
type shard struct {
	name     string
	primary  client
	replicas []*replica
}

type replica struct {
	client
	// skipUntil is when to ask this replica again after it did not answer, in
	// Unix ns. Without it, one dead replica would slow every second peek.
	skipUntil atomic.Int64
}

const skipReplicaFor = time.Second

func newShard(s Shard) *shard {
	sh := &shard{name: s.Name, primary: newClient(s.Primary)}
	for _, c := range s.Replicas {
		sh.replicas = append(sh.replicas, &replica{client: newClient(c)})
	}
	return sh
}

// runScript runs a script on the primary. It is sent once: only a reply that
// says that the script is unknown, and so did not run, lets it be sent again,
// with its text.
func runScript[C redis.Cmder](ctx context.Context, s *shard, script *redis.Script, source string, keys []string, packed [][]byte, newCmd func(context.Context, ...any) C) (C, error) {
	cmd := newCmd(ctx, scriptArgs("evalsha", script.Hash(), keys, packed)...)
	err := s.primary.process(ctx, onceCmd{cmd})
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = newCmd(ctx, scriptArgs("eval", source, keys, packed)...)
		err = s.primary.process(ctx, onceCmd{cmd})
	}
	if err != nil {
		return cmd, s.unavailable(err)
	}
	return cmd, nil
}

func scriptArgs(command, source string, keys []string, packed [][]byte) []any {
	args := make([]any, 0, 3+len(keys)+len(packed))
	args = append(args, command, source, len(keys))
	for _, key := range keys {
		args = append(args, key)
	}
	for _, arg := range packed {
		args = append(args, arg)
	}
	return args
}

// onceCmd is never sent twice, whatever the client's MaxRetries: go-redis
// would send it again after a lost reply, and charge twice.
type onceCmd struct{ redis.Cmder }

func (onceCmd) NoRetry() bool { return true }

func (s *shard) decision(now time.Time, charges []throttler.Charge, reply []int64) (throttler.Decision, error) {
	d, err := unpackDecision(now, charges, reply)
	if err != nil {
		return throttler.Decision{}, s.unavailable(err)
	}
	return d, nil
}

// read returns the stored bytes of keys, "" where there are none.
func (s *shard) read(ctx context.Context, keys []string, replicaTimeout time.Duration) ([]string, error) {
	if r := s.pickReplica(); r != nil {
		if deadline, ok := ctx.Deadline(); ok {
			replicaTimeout = min(replicaTimeout, time.Until(deadline)/2)
		}
		replicaCtx, cancel := context.WithTimeout(ctx, replicaTimeout)
		states, err := mget(replicaCtx, r.client, keys)
		cancel()
		if err == nil {
			return states, nil
		}
		if ctx.Err() == nil {
			r.skipUntil.Store(time.Now().Add(skipReplicaFor).UnixNano())
		}
	}
	states, err := mget(ctx, s.primary, keys)
	if err != nil {
		return nil, s.unavailable(err)
	}
	return states, nil
}

// pickReplica returns one of the replicas that are not being skipped, or nil.
func (s *shard) pickReplica() *replica {
	if len(s.replicas) == 0 {
		return nil
	}
	now := time.Now().UnixNano()
	first := rand.IntN(len(s.replicas))
	for i := range s.replicas {
		if r := s.replicas[(first+i)%len(s.replicas)]; r.skipUntil.Load() <= now {
			return r
		}
	}
	return nil
}

func mget(ctx context.Context, c client, keys []string) ([]string, error) {
	args := make([]any, 0, 1+len(keys))
	args = append(args, "mget")
	for _, key := range keys {
		args = append(args, key)
	}
	cmd := redis.NewSliceCmd(ctx, args...)
	if err := c.process(ctx, cmd); err != nil {
		return nil, err
	}
	states := make([]string, len(keys))
	for i, v := range cmd.Val() {
		states[i], _ = v.(string) // nil where there is none
	}
	return states, nil
}

// load loads the scripts on the primary.
func (s *shard) load(ctx context.Context) error {
	for _, source := range []string{lua.Decide, lua.DecideAt, lua.Release} {
		if err := s.primary.ScriptLoad(ctx, source).Err(); err != nil {
			return s.unavailable(err)
		}
	}
	return nil
}

func (s *shard) unavailable(err error) error {
	return &throttler.UnavailableError{Backend: "redisbackend", Shard: s.name, Err: err}
}
