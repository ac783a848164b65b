package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler"
)

// script is a Lua script. Its SHA-1 is computed here, not asked for.
type script struct{ text, hash string }

var (
	decideScript   = newScript(lua.Decide)
	decideAtScript = newScript(lua.DecideAt)
	releaseScript  = newScript(lua.Release)
)

func newScript(text string) script { return script{text, redis.NewScript(text).Hash()} }

// newCmd returns a call of s, whose reply is one string of all its decisions' replies,
// or the numbers of the only one.
func (s *script) newCmd(ctx context.Context, args ...any) redis.Cmder {
	if s == &decideScript {
		return redis.NewStringCmd(ctx, args...)
	}
	return redis.NewIntSliceCmd(ctx, args...)
}

// shard is a Shard in use.
type shard struct {
	name     string
	primary  client
	replicas []*replica

	// line leads to the primary. A Redis Cluster has one line for each node, so that
	// a node that hangs does not hold up the decisions of others.
	line    *line
	cluster *redis.ClusterClient // nil if the primary is none
	byNode  sync.Map             // lines, by the addresses of nodes; it never forgets one
	splits  bool                 // see line
}

type replica struct {
	client
	// skipUntil is when to ask this replica again after it did not answer, in
	// Unix ns. Without it, one dead replica would slow every second peek.
	skipUntil atomic.Int64
}

const skipReplicaFor = time.Second

func newShard(s Shard) *shard {
	primary := newClient(s.Primary)
	_, oneServer := s.Primary.(*redis.Client)
	sh := &shard{name: s.Name, primary: primary, splits: s.Proxy || !oneServer}
	sh.line = newLine(primary, sh.splits)
	sh.cluster, _ = s.Primary.(*redis.ClusterClient)
	for _, c := range s.Replicas {
		sh.replicas = append(sh.replicas, &replica{client: newClient(c)})
	}
	return sh
}

// do sends j with others. It returns the context's error if j was not sent, and a
// throttler.UnavailableError if its outcome is unknown.
func (s *shard) do(j *job) error {
	err := s.lineOf(j).do(j)
	if err == nil {
		return nil
	}
	if unsent := (*unsentError)(nil); errors.As(err, &unsent) {
		return fmt.Errorf("redisbackend: shard %q: %w", s.name, err)
	}
	return s.unavailable(err)
}

// lineOf returns the line that sends j. In a cluster it chooses the line by the
// client's map of nodes, which may be out of date; the client then follows the
// redirection.
func (s *shard) lineOf(j *job) *line {
	if s.cluster == nil {
		return s.line
	}
	node, err := s.cluster.MasterForKey(doNotAsk, string(j.keys[0]))
	if err != nil {
		return s.line // the client will ask for the nodes when it sends
	}
	addr := node.Options().Addr
	if l, ok := s.byNode.Load(addr); ok {
		return l.(*line)
	}
	l, _ := s.byNode.LoadOrStore(addr, newLine(s.primary, s.splits))
	return l.(*line)
}

// doNotAsk is a canceled context: under it, a client answers only from its cache.
var doNotAsk = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// release runs the script that releases counts, in a round trip of its own. It is
// resent, as EVAL, only after NOSCRIPT, which means that it did not run.
func (s *shard) release(ctx context.Context, keys []string, packed []byte) ([]any, error) {
	run := func(command, source string) (*redis.SliceCmd, error) {
		args := append(make([]any, 0, 4+len(keys)), command, source, len(keys))
		for _, key := range keys {
			args = append(args, key)
		}
		cmd := redis.NewSliceCmd(ctx, append(args, packed)...)
		return cmd, s.primary.process(ctx, onceCmd{cmd})
	}
	cmd, err := run("evalsha", releaseScript.hash)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd, err = run("eval", releaseScript.text)
	}
	if err != nil {
		return nil, s.unavailable(err)
	}
	return cmd.Val(), nil
}

// onceCmd is never sent twice, whatever the client's MaxRetries: go-redis would resend
// it after a lost reply, and charge twice.
type onceCmd struct{ redis.Cmder }

func (onceCmd) NoRetry() bool { return true }

// read returns the stored bytes of keys, "" for a missing key.
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

// get reads keys in one round trip. It uses GET for each, not MGET, which returns nil
// for a key that holds something other than a string.
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
		return nil, err // commands may be on their way: do not read them
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
	if s.cluster != nil {
		// Another node may have taken over by now. go-redis asks only when it is
		// redirected, or once a minute; it bounds how often this does, at 5 a second.
		s.cluster.ReloadState(context.Background())
	}
	switch {
	case strings.Contains(err.Error(), "WRONGTYPE"):
		err = errForeign
	case errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // a connection's deadline is a context's, or the client's
	}
	return &throttler.UnavailableError{Backend: "redisbackend", Shard: s.name, Err: err}
}
