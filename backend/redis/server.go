package redisbackend

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/quota"
)

// server is what a batcher knows of the server that it sends to: a primary, a node of a
// Redis Cluster, or a replica. Its breaker opens by what batches report: see isFault.
type server struct {
	backend *Backend
	client  client
	node    *redis.Client // of a node, if client is a Redis Cluster's
	shard   string
	name    string // in events
	replica bool
	current atomic.Bool // a replica: as of its last check
	breaker *breaker.Breaker

	// own is the client of probes, which no pool and no hook of the user's delays. The
	// first probe makes it. A client of go-redis whose dials have failed PoolSize times
	// does not dial for up to a second; own serves meanwhile.
	own    atomic.Pointer[client]
	failed atomic.Pointer[failure] // the last one

	answers *busy.Answers // to batches

	reconnecting atomic.Bool
	background   sync.WaitGroup // of reconnect
	closed       context.Context
	stop         context.CancelFunc

	mu    sync.Mutex // guards known, and that nothing begins in the background once closed is done
	known observe.Checked
}

// failure is what the server failed, so that a probe asks the like.
type failure struct {
	partition []byte
	read      bool
	had       time.Duration // until its batch was to end
}

// outcome is what a batch reports of the server.
type outcome struct {
	err      error // the first of its calls, in the last round trip
	answered bool  // some call was, so the server is up
	fault    error // shows that it is down, or nil
	failure  failure
	left     bool    // the client did not return in time
	spare    *client // by which to resend, or nil
}

func (o *outcome) add(c *call, err error) {
	if o.err == nil {
		o.err = err
	}
	switch {
	case isFault(err):
		o.fail(c.jobs[0], err)
	case !errors.Is(err, context.Canceled) && !errors.Is(err, redis.ErrClosed): // these say nothing
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

// isFault reports whether err says that the server does not serve: there was no reply when a
// batch ended, its connection broke, or the reply is that it cannot serve now.
func isFault(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, redis.ErrClosed) {
		return false
	}
	var reply redis.Error // not before: it is on the heap
	if !errors.As(err, &reply) {
		return true // no reply, or none that can be read
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

// record tells the breaker how a batch ended that began and was to end then.
func (s *server) record(o *outcome, began, end time.Time) {
	switch {
	case o.answered:
		s.answers.Answered(began)
		s.breaker.Record(began, nil)
	case o.fault == nil:
	case s.isOwnDelay(o.fault, began, end):
		s.reconnect() // it may be that a connection was missing
	default:
		s.answers.Silent()
		f := o.failure
		f.had = max(end.Sub(began), inlineTime)
		s.failed.Store(&f)
		s.reconnect()
		// The one needs no second opinion, and of the other the primary does the work.
		if errors.Is(o.fault, syscall.ECONNREFUSED) || s.replica {
			s.breaker.Trip(began, o.fault)
		} else {
			s.breaker.Record(began, o.fault)
		}
	}
}

// isOwnDelay reports whether a batch failed because this process had no time for it: not
// by a look at what has come, and it wrote nothing before its end, or came back late, or the
// server has answered what left later.
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

// checked changes what is known of the server, and reports it to the observer.
func (s *server) checked(change func(known *observe.Checked)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.known)
	s.backend.observer.Checked(s.known) // under the lock, so that events are in order
}

// reconnect opens, in the background, the connections that decisions need. go-redis logs
// in within the deadline of the decision that needed the connection, and drops it when
// that passes: to a distant server, none of them would ever have one.
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
		s.client.connect(ctx, one)
	})
}

const reconnectTime = time.Second // at most, for all that it opens

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

// probe returns nil if the server does again what it failed, as quickly as it failed to
// do it. It then opens the connections that decisions need, so that none of them finds the
// server too slow to connect to.
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
			s.own.Store(clientOf(one))
		}
		c = *s.own.Load()
	}
	if err := breaker.Quick(f.had, func() error { return s.ask(ctx, c, key, f.read) }); err != nil || one == nil {
		return err
	}
	s.client.connect(ctx, one) // if its pool does not dial yet, own serves
	return nil
}

// one returns a client of this server alone, or nil if the user's is of a kind that has
// none.
func (s *server) one() *redis.Client {
	if s.node != nil {
		return s.node
	}
	c, _ := s.client.UniversalClient.(*redis.Client)
	return c
}

// distant is the round trip above which a server counts as distant.
const distant = 10 * time.Millisecond

// connect opens the connections to a server of c that decisions need. If answers take longer
// than distant, so that no decision can wait for one, it opens as many as there may be batches in
// flight. What fails is left to the decisions.
func (c client) connect(ctx context.Context, one *redis.Client) {
	_ = c.within(ctx, func() error {
		if err := open(ctx, one, 1); err != nil {
			return err
		}
		if began := time.Now(); open(ctx, one, 1) == nil && time.Since(began) > distant {
			return open(ctx, one, min(maxInFlight, c.connections))
		}
		return nil
	})
}

// open makes c have n connections that are open at once.
func open(ctx context.Context, c *redis.Client, n int) error {
	errs := make(chan error, n)
	conns := make([]*redis.Conn, n)
	for i := range conns {
		conns[i] = c.Conn()
		go func() { errs <- conns[i].Do(ctx, "hello").Err() }() // which every user may run
	}
	var failed error
	for range conns {
		if err := <-errs; isFault(err) {
			failed = err
		}
	}
	for _, conn := range conns {
		_ = conn.Close() // gives it back
	}
	return failed
}

// clientOf returns another client of c's server, with the same settings. It dials nothing
// yet.
func clientOf(c *redis.Client) *client {
	o := *c.Options()
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ContextTimeoutEnabled = true
	o.PoolSize, o.MaxConcurrentDials, o.MinIdleConns = maxInFlight, maxInFlight, 0
	o.PipelineReadBufferSize, o.PipelineWriteBufferSize = 0, 0
	o.Limiter, o.ClientSideCacheConfig, o.ClientSideCache = nil, nil, nil
	o.PushNotificationProcessor = nil
	o.MaintNotificationsConfig = noMaintNotifications()
	o.Dialer = bounded(o.Dialer, busy.LeastTime)
	own := redis.NewClient(&o)
	own.AddHook(failLate{})
	return &client{own, true, o.PoolSize}
}

// ask makes a decision about key, or reads it.
func (s *server) ask(ctx context.Context, c client, key string, read bool) error {
	var err error
	if read {
		err = c.process(ctx, redis.NewStringCmd(ctx, "get", key))
	} else {
		charge := probePolicy.Charge("")
		charge.Cost = 1
		j := s.backend.newDecision(ctx, time.Now().UnixMilli(), []quota.Charge{charge}, nil, nil)
		run := func(command string, source any) error {
			return c.process(ctx, redis.NewStringCmd(ctx, command, source, 1, key, []byte(j.packed)))
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
