package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/redis/internal/goredis"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// server is the server of a batcher: a primary, a node of a Redis Cluster, or a replica. Its
// breaker opens by the outcomes of batches: see isFault.
type server struct {
	backend *Backend
	client  goredis.Client
	node    *redis.Client // its own client, if client is a Redis Cluster's
	shard   string
	name    string // in events
	replica bool
	current atomic.Bool // of a replica: as of its last check
	breaker *breaker.Breaker

	// own is the client of probes. No pool and no hook of the user's delays it. The first
	// probe makes it. A go-redis client with PoolSize failed dials does not dial for up to a
	// second; own is used in that time.
	own    atomic.Pointer[goredis.Client]
	failed atomic.Pointer[failure] // the last one

	answers *busy.Answers                           // to batches
	open    atomic.Pointer[driver.UnavailableError] // the error of decisions while the breaker is open, made once

	reconnecting atomic.Bool
	background   sync.WaitGroup // of reconnect
	closed       context.Context
	stop         context.CancelFunc

	mu    sync.Mutex // guards known, and that no background work begins once closed is done
	known observe.Checked
}

// failure is a call that the server failed, so that a probe can repeat it.
type failure struct {
	partition []byte
	read      bool
	had       time.Duration // the time that its batch had for the reply
}

// outcome is a batch's report about the server.
type outcome struct {
	err      error // the first error of its calls, in the last round trip
	answered bool  // some call was answered, so the server is up
	fault    error // shows that it is down, or nil
	failure  failure
	hung     bool            // the client did not return in time
	spare    *goredis.Client // to resend with, or nil
}

func (o *outcome) add(c *call, err error) {
	if o.err == nil {
		o.err = err
	}
	switch {
	case isFault(err):
		o.fail(c.jobs[0], err)
	case goredis.IsIdleClosed(err): // says nothing, as these do
	case !errors.Is(err, context.Canceled) && !errors.Is(err, redis.ErrClosed):
		o.answered = true
	}
}

func (o *outcome) fail(j *job, err error) {
	o.err, o.fault = err, err
	o.failure = failure{partition: append([]byte(nil), j.partition...), read: j.script == nil}
}

// unable are the words that begin replies of a server that cannot serve now.
var unable = []string{
	"LOADING ", "BUSY ", "READONLY ", "OOM ", "MISCONF ", "NOREPLICAS ", "MASTERDOWN ", "CLUSTERDOWN ",
	"NOAUTH ", "NOPERM ", "WRONGPASS ", "ERR max number of clients",
}

// isFault reports whether err means that the server does not serve: a batch ended without a
// reply, its connection broke, or the reply says that the server cannot serve now.
func isFault(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, redis.ErrClosed) || goredis.IsIdleClosed(err) {
		return false
	}
	var reply redis.Error // not before: it is on the heap
	if !errors.As(err, &reply) {
		return true // no reply, or not a readable one
	}
	text := reply.Error()
	if _, inner, ok := strings.Cut(text, ": -"); ok && strings.HasPrefix(text, "ERR Error running script") {
		text = inner // Redis 6.2 wraps the errors of a script's commands
	}
	for _, word := range unable {
		if strings.HasPrefix(text, word) {
			return true
		}
	}
	return false
}

// record reports to the breaker the outcome of a batch that ran from began, with the deadline
// end, and had the given time for its reply.
func (s *server) record(o *outcome, began, end time.Time, had time.Duration) {
	switch {
	case o.answered:
		s.answers.Answered(began)
		s.breaker.Record(began, nil)
	case goredis.IsIdleClosed(o.err):
		s.reconnect() // others may be closed, too
	case o.fault == nil:
	case s.isOwnDelay(o.fault, began, end):
		s.reconnect() // a connection may have been missing
	default:
		s.answers.Silent()
		f := o.failure
		f.had = max(had, inlineTime)
		s.failed.Store(&f)
		s.reconnect()
		// A refused dial needs no second failure, and the primary does a replica's work.
		if errors.Is(o.fault, syscall.ECONNREFUSED) || s.replica {
			s.breaker.Trip(began, o.fault)
		} else {
			s.breaker.Record(began, o.fault)
		}
	}
}

// isOwnDelay reports whether a batch timed out because this process had no time for it: a
// write timed out, the batch ended late, or the server has answered a later one. If a look
// after the deadline found no reply, the delay is the server's: see busy.Silence.
func (s *server) isOwnDelay(err error, began, end time.Time) bool {
	var op *net.OpError
	if !isTimeout(err) || errors.As(err, new(*busy.Silence)) {
		return false
	}
	return errors.As(err, &op) && op.Op == "write" || busy.Late(end) || s.answers.AnsweredSince(began)
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// sent reports a round trip to the observer.
func (s *server) sent(start time.Time, decisions int, err error) {
	s.backend.observer.Sent(observe.Sent{
		Backend: "redisbackend", Shard: s.shard, Replica: s.replica,
		Decisions: decisions, Start: start, Duration: time.Since(start), Err: err,
	})
}

// checked changes the known state of the server, and reports it to the observer.
func (s *server) checked(change func(known *observe.Checked)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.known)
	s.backend.observer.Checked(s.known) // under the lock, so that events are in order
}

// reconnect opens, in the background, the connections that decisions need. go-redis logs in
// within the deadline of the decision that needs the connection, and drops the connection at
// the deadline: decisions would never get a connection to a distant server.
func (s *server) reconnect() {
	one := s.one()
	if one == nil || !s.reconnecting.CompareAndSwap(false, true) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Err() != nil {
		return
	}
	s.background.Go(func() {
		defer s.reconnecting.Store(false)
		ctx, cancel := context.WithTimeout(s.closed, reconnectTime)
		defer cancel()
		connect(ctx, s.client, one)
	})
}

const reconnectTime = time.Second // at most, for all connections

// opens makes the error of decisions while the breaker is open because of cause.
func (s *server) opens(cause error) {
	s.open.Store(&driver.UnavailableError{Backend: "redisbackend", Shard: s.shard, Err: fmt.Errorf("%w; its last error: %v", breaker.ErrOpen, cause)}) //nolint:errorlint // of an earlier decision
}

func (s *server) close() {
	s.breaker.Close()
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.background.Wait()
	if c := s.own.Swap(nil); c != nil {
		_ = c.Close() // it has nothing left to send
	}
}

var probePolicy = &quota.Policy{Name: "weir/probe", Limits: []quota.Limit{{Quota: 1 << 30, Window: time.Second}}}

// probe returns nil if the server answers a call like the failed one, in the time that the
// failed one had. It then opens the connections that decisions need, so that no decision fails
// because connecting takes too long.
func (s *server) probe(ctx context.Context) error {
	f := s.failed.Load()
	key := string(f.partition) + "}/" + probePolicy.Name
	cluster, _ := s.client.UniversalClient.(*redis.ClusterClient)
	if cluster != nil && s.node != nil {
		// Without traffic to this node, nothing else makes the client look for another.
		cluster.ReloadState(ctx)
		if node, err := cluster.MasterForKey(doNotAsk, key); err == nil && node.Options().Addr != s.node.Options().Addr {
			return nil // the decisions that failed go there now
		}
	}
	c, one := s.client, s.one()
	if one != nil {
		if s.own.Load() == nil {
			s.own.Store(goredis.Another(one, maxInFlight))
		}
		c = *s.own.Load()
	}
	if err := breaker.Quick(f.had, func() error { return s.ask(ctx, c, key, f.read) }); err != nil || one == nil {
		return err
	}
	connect(ctx, s.client, one) // if its pool does not dial yet, own is used
	return nil
}

// one returns a client of this server alone, or nil: s.node, or the user's client if that is a
// *redis.Client.
func (s *server) one() *redis.Client {
	if s.node != nil {
		return s.node
	}
	c, _ := s.client.UniversalClient.(*redis.Client)
	return c
}

// distant is the round trip above which a server counts as distant.
const distant = 10 * time.Millisecond

// connect opens the connections that decisions need to one, a server of c. If answers take
// longer than distant, so that no decision can wait for a connection, it opens as many as
// batches may be in flight. It leaves errors to the decisions.
func connect(ctx context.Context, c goredis.Client, one *redis.Client) {
	_ = c.Within(ctx, func() error {
		if err := open(ctx, one, 1); err != nil {
			return err
		}
		if began := time.Now(); open(ctx, one, 1) == nil && time.Since(began) > distant {
			return open(ctx, one, min(maxInFlight, c.Connections))
		}
		return nil
	})
}

// open makes c have at least n open connections, by n calls at once: if n > 1, the server is
// distant, and replies only after all of them have connections.
//
// It doesn't use c.Conn: go-redis guards its options there by another lock than c's, and a
// client that is not of NewClient changes them.
func open(ctx context.Context, c *redis.Client, n int) error {
	errs := make(chan error, n)
	for range n {
		go func() { errs <- c.Do(ctx, "hello").Err() }() // which every user may run
	}
	var failed error
	for range n {
		if err := <-errs; isFault(err) {
			failed = err
		}
	}
	return failed
}

// ask makes a decision about key, or reads it.
func (s *server) ask(ctx context.Context, c goredis.Client, key string, read bool) error {
	var err error
	if read {
		err = c.Ask(ctx, redis.NewStringCmd(ctx, "get", key))
	} else {
		charge := probePolicy.Charge("")
		charge.Cost = 1
		j := s.backend.newDecision(ctx, time.Now().UnixMilli(), []quota.Charge{charge}, nil, nil)
		run := func(command string, source any) error {
			return c.Ask(ctx, redis.NewStringCmd(ctx, command, source, 1, key, []byte(j.packed)))
		}
		if err = run("evalsha", j.script.hash); redis.HasErrorPrefix(err, "NOSCRIPT") {
			err = run("eval", j.script.text)
		}
		j.abandoned = err != nil
		j.free()
	}
	if isFault(err) || errors.Is(err, context.Canceled) || errors.Is(err, redis.ErrClosed) {
		return err
	}
	return nil
}
