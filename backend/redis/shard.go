package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
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
	if err := ctx.Err(); err != nil {
		return cmd, err
	}
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

func (s *shard) decision(r throttler.Request, settles bool, reply []int64) (throttler.Decision, error) {
	d, err := unpackDecision(r, settles, reply)
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
		states, err := get(replicaCtx, r.client, keys)
		cancel()
		if err == nil {
			return states, nil
		}
		if errors.Is(err, errForeign) {
			return nil, s.unavailable(err)
		}
		if ctx.Err() == nil {
			r.skipUntil.Store(time.Now().Add(skipReplicaFor).UnixNano())
		}
	}
	states, err := get(ctx, s.primary, keys)
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

// get reads keys in one round trip. It is GET for each, not MGET, to which a key that
// holds something else than a string looks like one that is missing.
func get(ctx context.Context, c client, keys []string) ([]string, error) {
	cmds := make([]*redis.StringCmd, len(keys))
	for i, key := range keys {
		cmds[i] = redis.NewStringCmd(ctx, "get", key)
	}
	var err error
	if len(keys) == 1 {
		err = c.process(ctx, cmds[0])
	} else {
		err = c.within(ctx, func() error {
			pipe := c.Pipeline()
			for _, cmd := range cmds {
				_ = pipe.Process(ctx, cmd) // queues it
			}
			_, err := pipe.Exec(ctx)
			return err
		})
	}
	if err != nil && ctx.Err() != nil {
		return nil, err // commands may be on their way: nobody looks at them
	}
	states := make([]string, len(keys))
	for i, cmd := range cmds {
		switch state, err := cmd.Result(); {
		case err == nil:
			states[i] = state
		case redis.HasErrorPrefix(err, "WRONGTYPE"):
			return nil, errForeign
		case !errors.Is(err, redis.Nil):
			return nil, err
		}
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

// unavailable returns err as an error of this shard.
func (s *shard) unavailable(err error) error {
	switch {
	case strings.Contains(err.Error(), "WRONGTYPE"):
		err = errForeign
	case errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // a connection's deadline is a context's, or the client's
	}
	return &throttler.UnavailableError{Backend: "redisbackend", Shard: s.name, Err: err}
}
