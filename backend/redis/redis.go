// Package redisbackend keeps counts in Redis 6.2 or later, or in Valkey. It is for counts that
// many processes share.
//
// The client shards keys over named shards, each a primary with any number of replicas. Takes
// and settlements go to the primary. Peeks go to a replica, and run no script. They go to the
// primary if the replica does not answer, or does not prove that it was current at most 3 s
// ago. They fail if the primary does not answer either.
package redisbackend

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/backend/redis/internal/node"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/relay"
	"github.com/weir-go/weir/internal/rendezvous"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Shard is one primary and its replicas. The caller creates their clients, with TLS, passwords
// and pools, and closes them. A client may connect to one server, to a Sentinel master name,
// or to a whole Redis Cluster. [NewClient] returns clients with good settings.
type Shard struct {
	// Name decides which keys the shard stores. A shard keeps its keys if its address changes,
	// but not if its name does. Required and unique.
	Name string

	// Primary takes writes. Required.
	Primary redis.UniversalClient

	// Proxy reports that Primary is a proxy to several servers, such as Envoy, which
	// finds a command's server by its first key. Decisions of different partitions
	// then share no script call. A [redis.ClusterClient] or [redis.Ring] does not
	// need it.
	Proxy bool

	// Replicas serve peeks. If empty, the primary does.
	Replicas []redis.UniversalClient
}

// Options configures a Backend. Nil and the zero value select the defaults.
type Options struct {
	// Prefix begins every Redis key. It must not contain braces. If empty, "weir:". Up to five
	// bytes keep a key of a short policy name within 32 bytes.
	Prefix string

	// Seed affects the choice of a shard. Every process needs the same seed. A secret seed
	// keeps clients that choose their own keys from piling them up on one shard.
	Seed uint64

	// Margin is how long, by the server's clock, a key outlives its last
	// window: more than the clocks of any two processes differ by. If zero, 10 s.
	Margin time.Duration

	// Deadline bounds each round trip, and each decision whose context has no
	// deadline. At least a millisecond. If zero, 1 s. Clients with shorter timeouts
	// end round trips earlier.
	Deadline time.Duration

	// ReplicaTimeout bounds the wait for a replica's answer to a peek before the primary is
	// asked. It is at most half of the time until the context's deadline. If zero, 20 ms.
	ReplicaTimeout time.Duration

	// Clock is this process' clock, which is compared with the servers': see
	// [Backend.Clock]. If nil, clock.System.
	Clock clock.Clock

	// Observer receives the Sent and Checked events of the backend. If nil, the throttler's
	// does. The default log, which says when a server does not answer, and when this process'
	// clock and a server's differ by more than half of Margin, is added: see weirlog.Ensure.
	Observer observe.Observer
}

// Backend keeps counts in Redis. It is safe for concurrent use. From its first use on, it
// checks the servers in the background. The caller calls [Backend.Close] when it is no longer
// used, before closing the clients.
//
// # Shared round trips
//
// A decision is part of one EVALSHA of the script for its shape: takes or settlements, and the
// algorithms of the limits of each charge. In rare cases this process decides: it reads the
// states, and stores the new ones if the old ones are unchanged, or begins again. That takes
// up to two more round trips, or one if nothing changes. It does so for resets, for pauses and
// as long as they last, for settlements by a receipt, while counts of other versions of a
// policy live, for counts that arrive from other backends, for refunds of places in the middle
// of a queue, for more limits than a script has room for (16 fixed windows or 7 leaky
// buckets), and for shapes beyond the first 256.
//
// Decisions of many goroutines share round trips to a primary: while two that were just sent
// to a nearby one are in flight, decisions wait, in order, and the next takes up to 256 of
// them. There is no timer: a decision that finds room is sent once the runnable goroutines have
// had their turn, together with their decisions, or in its caller's goroutine if there are no
// others. At most 10,000 decisions wait for a primary; one more fails with an error that wraps
// driver.ErrOverloaded.
//
// Each decision has its own deadline, and its own error. If its context has no deadline,
// Options.Deadline is its deadline. That, and the Request's ServerTime, is the
// server's time: while the server answers, a decision that this process delays still waits, in
// the queue for a second, or until that deadline if it is later. The server's time begins when
// the client has a connection to it that is logged in. To open one, there are 250 ms more.
//
//   - If a context ends before its decision was sent, the decision is never sent, and the
//     error wraps the context's, not driver.ErrUnavailable.
//   - If a context ends later, the error wraps both: whether the decision was made is unknown.
//     A decision that is sent in its caller's goroutine and is canceled returns with the
//     reply, or at the deadline; others return at once.
//   - A round trip ends with the last deadline of its decisions, after at least 50 ms and at
//     most Options.Deadline, so that a deadline of a millisecond costs no connection. A
//     timeout of a connection wraps context.DeadlineExceeded. A reply that comes later is not
//     read.
//   - An error reply, such as OOM, fails all decisions in its call. A key that holds another
//     type fails its own decisions only.
//
// # Breakers
//
// Each server has a circuit breaker: a primary, a replica, and in a Redis Cluster each node.
// While it is open, only probes are sent. Decisions fail at once, including those in the
// queue, with an error that wraps driver.ErrUnavailable. Other shards are not affected, and
// don't get the shard's keys: each outage would hand out fresh windows. docs/reference/operations.md
// describes when a breaker opens and closes.
type Backend struct {
	ring           *rendezvous.Ring
	shards         []*shard
	prefix         string
	margin         int64 // ms
	timeout        time.Duration
	replicaTimeout time.Duration
	observer       *relay.Relay
	monitor        *node.Monitor
	closed         atomic.Bool
}

var _ handoff.Store = (*Backend)(nil)

// New returns a Backend over shards. It dials nothing: a shard that is down fails its own
// decisions until it is up. Errors name the shard or option that is wrong, and wrap
// quota.ErrInvalid.
func New(shards []Shard, options *Options) (*Backend, error) {
	var o Options
	if options != nil {
		o = *options
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	names := make([]string, len(shards))
	for i, s := range shards {
		names[i] = s.Name
	}
	if err := rendezvous.Check("redisbackend", "shards", names); err != nil {
		return nil, err
	}
	b := &Backend{
		ring: rendezvous.New(o.Seed, names), prefix: o.Prefix, margin: o.Margin.Milliseconds(),
		timeout: o.Deadline, replicaTimeout: o.ReplicaTimeout, observer: relay.New(o.Observer),
	}
	for i, s := range shards {
		if s.Primary == nil {
			return nil, invalid.Errorf("redisbackend: shards[%d].Primary is nil; it must be a client of the primary of %q", i, s.Name)
		}
		if k := slices.Index(s.Replicas, nil); k >= 0 {
			return nil, invalid.Errorf("redisbackend: shards[%d].Replicas[%d] is nil; it must be a client of a replica of %q, or be left out", i, k, s.Name)
		}
		b.shards = append(b.shards, newShard(b, s))
	}
	servers := make([]*node.Shard, len(b.shards))
	for i, s := range b.shards {
		servers[i] = &s.Shard
	}
	b.monitor = node.NewMonitor(servers, o.Clock, o.Margin, b.observer)
	return b, nil
}

// complete fills in the defaults. It returns an error if an option is wrong.
func (o *Options) complete() error {
	o.Prefix = cmp.Or(o.Prefix, "weir:")
	o.Margin = cmp.Or(o.Margin, algorithm.Margin)
	o.Deadline = cmp.Or(o.Deadline, time.Second)
	o.ReplicaTimeout = cmp.Or(o.ReplicaTimeout, 20*time.Millisecond)
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	switch margin := o.Margin.Milliseconds(); {
	case strings.ContainsAny(o.Prefix, "{}"):
		return invalid.Errorf("redisbackend: Prefix is %q; it must not have braces, which choose a cluster's slot", o.Prefix)
	case margin < 1 || margin > 1<<32-1:
		return invalid.Errorf("redisbackend: Margin is %v; it must be from 1ms to 49 days, or 0 for 10s", o.Margin)
	case o.Deadline < time.Millisecond:
		return invalid.Errorf("redisbackend: Deadline is %v; it must be at least 1ms, or 0 for 1s", o.Deadline)
	case o.ReplicaTimeout < 0:
		return invalid.Errorf("redisbackend: ReplicaTimeout is %v; it must be positive, or 0 for 20ms", o.ReplicaTimeout)
	}
	return nil
}

// Clock returns this process' clock, Options.Clock, corrected to the median of the primaries'
// clocks. If all processes pass it to throttler.New, their clocks agree to a few milliseconds,
// which keeps buckets fair between them; see docs/reference/operations.md. The correction is at most
// 10 s: a server whose clock differs by more is left out, and without a server it is the
// process' own clock. It never goes back, except by more than 10 s if the process' own clock
// does.
//
// Until the first check, which takes some milliseconds, it is the process' own clock, too.
// [Backend.Load] waits for that check.
func (b *Backend) Clock() clock.Clock {
	b.monitor.Run()
	return b.monitor.Clock
}

// ServerState is the state of a server as of its last check.
type ServerState struct {
	observe.Checked

	At      time.Time // of the check
	Primary bool      // takes are sent to it

	// Role is "master" or "slave", as the server reports it, or "" if it does not, for example
	// because the Redis user may not run INFO.
	Role string

	// LinkUp and Syncing report that a replica is connected to its primary, and that it copies
	// the primary's data. Redis notices a silent loss of the connection only after a minute
	// (repl-timeout); Lag and Cut do not depend on that.
	LinkUp  bool
	Syncing bool

	// Offset is the place in the sequence of writes that the server has reached.
	Offset int64

	// CutReason says why a replica is not asked. Nil unless Cut.
	CutReason error

	// SkewWithin is the most by which Skew may be wrong.
	SkewWithin time.Duration
}

// Servers returns the state of each server as of its last check, by shard, primaries first. It
// leaves out servers that have not been checked yet.
func (b *Backend) Servers() []ServerState {
	b.monitor.Run()
	states := b.monitor.States()
	result := make([]ServerState, len(states))
	for i := range states {
		result[i] = ServerState(states[i])
	}
	return result
}

// Observe implements driver.Observed. It has no effect if Options.Observer is set.
func (b *Backend) Observe(o observe.Observer) { b.observer.Add(o) }

// Close ends the checks of servers, and the probes of servers that do not answer. It waits for
// them for at most a quarter of a second. It does not close the clients. It does not affect
// decisions in flight. Later decisions are still made, by clients that are open, but without
// breakers: each waits until its deadline if the server does not answer. Calling Close again
// does nothing.
func (b *Backend) Close() {
	b.closed.Store(true)
	b.monitor.Close()
	for _, s := range b.shards {
		s.batchers(func(b *batcher) { b.server.Close() })
	}
}

// Peek implements driver.Backend: one round trip of GETs, on a replica if one answers. It
// evaluates the states here, by their reset-at and the caller's now, so that a dead window on
// a replica reads as no window.
func (b *Backend) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.PeekAt(ctx, r, nil)
}

// Load loads scripts on every primary, so that the first decisions need not: for one limit of
// each algorithm, and for all shapes that this process has decided before. It opens the
// connections that decisions need, or one for each round trip that may be in flight if the
// primary is more than 10 ms away. It returns after the first check of the servers, so that
// the clock is corrected and replicas serve peeks from the first decision on. It returns the
// joined errors of the primaries that did not answer; each names its shard and wraps
// driver.ErrUnavailable. Calling it is optional: on NOSCRIPT the call is sent again with the
// script.
func (b *Backend) Load(ctx context.Context) error {
	b.monitor.Run()
	errs := make(chan error, len(b.shards))
	for _, s := range b.shards {
		go func() { errs <- s.load(ctx) }()
	}
	var all []error
	for range b.shards {
		all = append(all, <-errs)
	}
	select {
	case <-b.monitor.First:
	case <-ctx.Done():
	}
	return errors.Join(all...)
}

// Location is the place of a count.
type Location struct {
	Shard string // its name
	Key   string // the Redis key
}

// Locate returns the place of the count of c, for an operator to read it, or to find the
// clients that a shard's outage affects.
func (b *Backend) Locate(c quota.Charge) Location {
	if c.Partition == "" {
		c.Partition = c.Key
	}
	charges := []quota.Charge{c}
	return Location{Shard: b.shardOf(charges).Name, Key: b.keysOf(charges)[0]}
}

// Down implements driver.Health: it reports on the breaker of the primary or, in a Redis
// Cluster, of the node that stores the partition.
func (b *Backend) Down(partition string) (since time.Time, down bool) {
	charges := []quota.Charge{{Policy: probePolicy, Key: partition, Partition: partition}}
	return b.shardOf(charges).batcherOf([]byte(b.keysOf(charges)[0])).server.Breaker.Since()
}

// Joins implements driver.Joiner: a single server, outside a Cluster, decides about several
// partitions at once.
func (b *Backend) Joins(driver.Request) bool {
	return len(b.shards) == 1 && !b.shards[0].batcher.perSlot.Load()
}
