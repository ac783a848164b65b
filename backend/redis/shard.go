package redisbackend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/backend/redis/internal/goredis"
	"github.com/weir-go/weir/backend/redis/internal/node"
	"github.com/weir-go/weir/internal/queues"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// shard is a Shard in use.
type shard struct {
	node.Shard
	backend *Backend

	// batcher sends to the primary. A Redis Cluster has one for each node, so that
	// a node that hangs does not hold up the decisions of others.
	batcher *batcher
	cluster *redis.ClusterClient // nil unless the primary is a Cluster
	byNode  sync.Map             // batchers, by the addresses of nodes, never removed
	perSlot bool                 // see batcher

	changes queues.Queues[*change] // by their keys

	replicas []*batcher
}

// shardOf returns the shard of charges, which share a partition or are all on one server.
func (b *Backend) shardOf(charges []quota.Charge) *shard {
	return b.shards[b.ring.Choose(charges[0].Partition)]
}

func newShard(b *Backend, s Shard) *shard {
	sh := &shard{backend: b}
	sh.Name = s.Name
	_, oneServer := s.Primary.(*redis.Client)
	sh.perSlot = s.Proxy || !oneServer
	sh.cluster, _ = s.Primary.(*redis.ClusterClient)
	sh.Cluster = sh.cluster != nil
	sh.batcher = sh.newBatcher(s.Primary, "primary", nil, false)
	sh.Primary = sh.batcher.server
	for i, c := range s.Replicas {
		r := sh.newBatcher(c, fmt.Sprint("replica ", i), nil, true)
		sh.replicas, sh.Replicas = append(sh.replicas, r), append(sh.Replicas, r.server)
	}
	sh.ForEach = func(do func(*node.Server)) { sh.batchers(func(b *batcher) { do(b.server) }) }
	return sh
}

// newBatcher returns a batcher that sends through c to one server, called name in events.
// single is the server's client, if it is a node of the cluster c.
func (s *shard) newBatcher(c redis.UniversalClient, name string, single *redis.Client, replica bool) *batcher {
	b := &batcher{
		client: goredis.Wrap(c), timeout: s.backend.timeout, room: maxWaiting,
		minWait: minWait, countsFor: countsFor,
	}
	// More batches than connections would be smaller, and wait for each other.
	b.mostInFlight = max(maxRecent, min(maxInFlight, b.client.Connections))
	b.perSlot.Store(s.perSlot)
	b.server = node.New(node.Config{
		Client: b.client, Node: single, Shard: s.Name, Name: name, Replica: replica,
		Observer: s.backend.observer, Connections: maxInFlight,
		Partition: string(appendHash([]byte(s.backend.prefix+"{"), "")) + "}", Timeout: minWait,
		Ask: s.backend.probe, Opened: b.opened,
	})
	return b
}

// batchers calls do with each batcher of s.
func (s *shard) batchers(do func(*batcher)) {
	do(s.batcher)
	s.byNode.Range(func(_, b any) bool {
		do(b.(*batcher))
		return true
	})
	for _, r := range s.replicas {
		do(r)
	}
}

// batcherOf returns the batcher that sends decisions about key. In a cluster it chooses by
// the client's map of nodes, which may be out of date; the client then follows the
// redirection.
func (s *shard) batcherOf(key []byte) *batcher {
	if s.cluster == nil {
		return s.batcher
	}
	primary, err := s.cluster.MasterForKey(goredis.DoNotAsk, string(key))
	if err != nil {
		return s.batcher // the client will ask for the nodes when it sends
	}
	addr := primary.Options().Addr
	if b, ok := s.byNode.Load(addr); ok {
		return b.(*batcher)
	}
	b, _ := s.byNode.LoadOrStore(addr, s.newBatcher(s.cluster, addr, primary, false))
	if s.backend.closed.Load() {
		b.(*batcher).server.Close()
	}
	return b.(*batcher)
}

// read returns the stored counts of r's charges, nil for a missing key. A replica gets half of
// the time.
func (s *shard) read(ctx context.Context, r *driver.Request) ([]*handoff.Stored, error) {
	if replica := s.pickReplica(); replica != nil {
		timeout := s.backend.replicaTimeout
		if deadline, ok := ctx.Deadline(); ok {
			timeout = min(timeout, time.Until(deadline)/2)
		}
		if r.ServerTime > 0 {
			timeout = min(timeout, r.ServerTime/2)
		}
		stored, err := s.readFrom(ctx, replica, r.Charges(), max(timeout, 1))
		if err == nil || errors.Is(err, errForeign) {
			return stored, err
		}
	}
	if s.Demoted.Load() {
		return nil, s.errorOf(errDemoted)
	}
	return s.readFrom(ctx, nil, r.Charges(), r.ServerTime)
}

// readFrom reads from a replica or, if r is nil, from the primary, within timeout. It
// uses GET for each key, not MGET, which returns nil for a key that holds something
// other than a string.
func (s *shard) readFrom(ctx context.Context, r *batcher, charges []quota.Charge, timeout time.Duration) ([]*handoff.Stored, error) {
	j := s.backend.newJob(ctx, charges)
	defer j.free()
	j.timeout = timeout
	if r == nil {
		r = s.batcherOf(j.keys[0])
	} else {
		j.proves = r.proves()
	}
	sent := time.Now()
	if err := r.do(j); err != nil {
		return nil, s.errorOf(err)
	}
	if j.proves {
		if _, err := s.Lag(j.proof, sent); err != nil {
			r.server.Current.Store(false) // until its next check
			return nil, s.errorOf(err)
		}
	}
	stored := parseStored(j.values)
	for _, c := range stored {
		if c != nil && c.Err != nil {
			return nil, s.errorOf(c.Err)
		}
	}
	return stored, nil
}

// pickReplica returns a replica that was current at its last check and has a closed breaker,
// or nil.
func (s *shard) pickReplica() *batcher {
	if len(s.replicas) == 0 {
		return nil
	}
	first := rand.IntN(len(s.replicas))
	for i := range s.replicas {
		if r := s.replicas[(first+i)%len(s.replicas)]; r.server.Current.Load() && !r.server.Breaker.Open() {
			return r
		}
	}
	return nil
}

// load loads the scripts on the primary, and opens the connections that decisions need.
func (s *shard) load(ctx context.Context) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.backend.timeout)
		defer cancel()
	}
	nodes, err := s.backend.monitor.NodesOf(s.batcher.client, "primary", true)
	if err != nil {
		return s.errorOf(err)
	}
	errs := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() { errs <- load(ctx, n.Client) }()
	}
	for range nodes {
		err = cmp.Or(err, <-errs)
	}
	if err != nil {
		return s.errorOf(err)
	}
	return nil
}

// load loads the scripts on c's server in one round trip, and opens the connections that
// decisions need.
func load(ctx context.Context, c goredis.Client) error {
	err := c.Run(ctx, func() error {
		pipe := c.Pipeline()
		for _, script := range commonScripts() {
			pipe.ScriptLoad(ctx, script.text.(string))
		}
		_, err := pipe.Exec(ctx)
		return err
	})
	if single, ok := c.UniversalClient.(*redis.Client); ok && err == nil {
		node.Connect(ctx, c, single, maxInFlight)
	}
	return err
}

var probePolicy = &quota.Policy{Name: "weir/probe", Limits: []quota.Limit{{Quota: 1 << 30, Window: time.Second}}}

// probe makes a decision about a key of partition by c, or reads it.
func (b *Backend) probe(ctx context.Context, c goredis.Client, partition string, read bool) error {
	key := partition + "/" + probePolicy.Name
	if read {
		return c.Ask(ctx, redis.NewStringCmd(ctx, "get", key))
	}
	charge := probePolicy.Charge("")
	charge.Cost = 1
	j := b.newDecision(ctx, time.Now().UnixMilli(), []quota.Charge{charge}, nil, nil)
	run := func(command string, source any) error {
		return c.Ask(ctx, redis.NewStringCmd(ctx, command, source, 1, key, []byte(j.packed)))
	}
	err := run("evalsha", j.script.hash)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		err = run("eval", j.script.text)
	}
	j.abandoned = err != nil
	j.free()
	return err
}

// errDemoted is the error of a peek that no primary can answer: at its last check, the server
// had become a replica, and nothing else is known about it.
var errDemoted = errors.New("the primary has become a replica")

// proves reports whether a read of b's replica includes a proof that it is current. Between
// two checks the replica may lose its primary, or be promoted, and a client that finds
// replicas by Sentinel may connect to a different one each time. In a cluster the proof might
// come from another node than the counts, so the last check has to suffice.
func (b *batcher) proves() bool {
	_, ok := b.client.UniversalClient.(*redis.Client)
	return ok
}

// errorOf returns err as an error of this shard: the context's if a decision was not sent
// because of it, otherwise a driver.UnavailableError.
func (s *shard) errorOf(err error) error {
	if open, ok := err.(*driver.UnavailableError); ok { //nolint:errorlint // a batcher returns it as it is
		return open
	}
	if unsent := (*unsentError)(nil); errors.As(err, &unsent) {
		return fmt.Errorf("redisbackend: shard %q: %w", s.Name, err)
	}
	if s.cluster != nil {
		// Another node may have taken over by now. go-redis asks only when it is
		// redirected, or once a minute; it bounds how often this does, at 5 a second.
		s.cluster.ReloadState(context.Background())
	}
	var op *net.OpError
	switch {
	case strings.Contains(err.Error(), "WRONGTYPE") || strings.Contains(err.Error(), "not an integer"):
		err = errForeign
	case errors.As(err, &op) && op.Op == "dial", redis.HasErrorPrefix(err, "TRYAGAIN"):
		err = fmt.Errorf("%w: %w", driver.ErrNotSent, err)
	case errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // a connection's deadline is a context's, or the client's
	}
	return &driver.UnavailableError{Backend: "redisbackend", Shard: s.Name, Err: err}
}
