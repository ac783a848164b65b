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
	"github.com/weir-go/weir/throttler/driver"
)

// server is what a line knows of the server that it leads to: a primary, a node of a
// Redis Cluster, or a replica.
//
// Its breaker opens by what flights report. A flight fails if it has no reply when it
// ends, if its connection breaks, or if the server replies that it cannot serve now;
// any other reply is a success.
type server struct {
	backend *Backend
	client  client
	node    *redis.Client // of a node of a Redis Cluster, of which client is the client
	shard   string
	replica bool
	current atomic.Bool // a replica: as of its last check
	breaker *breaker.Breaker

	// spare is the client of the last probe that succeeded. A client of go-redis whose
	// dials have failed PoolSize times does not dial for up to a second, and the spare
	// serves meanwhile.
	spare atomic.Pointer[ownClient]

	failed atomic.Pointer[failure] // the last one

	answers *busy.Answers // to flights

	mu    sync.Mutex
	known observe.Checked
}

// failure is what the server failed, so that a probe asks the like.
type failure struct {
	partition []byte
	read      bool
}

// outcome is what a flight reports of the server.
type outcome struct {
	err      error // the first of its calls, in the last round trip
	answered bool  // a call was, so the server serves
	fault    error // says that it does not
	failure  failure
	left     bool       // the client did not return in time
	spare    *ownClient // by which to resend, or nil
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
	o.failure = failure{append([]byte(nil), j.partition...), j.script == nil}
}

// unable are the words that begin replies of a server that cannot serve now.
var unable = []string{
	"LOADING ", "BUSY ", "READONLY ", "OOM ", "MISCONF ", "NOREPLICAS ", "MASTERDOWN ", "CLUSTERDOWN ",
	"NOAUTH ", "NOPERM ", "WRONGPASS ", "ERR max number of clients",
}

// isFault reports whether err says that the server does not serve.
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

// record tells the breaker how a flight ended that began and was to end then.
func (s *server) record(o *outcome, began, end time.Time) {
	switch {
	case o.answered:
		s.answers.Answered(began)
		s.breaker.Record(began, nil)
	case o.fault == nil || isOwnDelay(o.fault, end):
	default:
		s.answers.Silent()
		f := o.failure
		s.failed.Store(&f)
		// The one needs no second opinion, and of the other the primary does the work.
		if errors.Is(o.fault, syscall.ECONNREFUSED) || s.replica {
			s.breaker.Trip(began, o.fault)
		} else {
			s.breaker.Record(began, o.fault)
		}
	}
}

// isOwnDelay reports whether a flight failed because this process had no time for it:
// it wrote nothing before its end, or came back late, and not from a look at what has come.
func isOwnDelay(err error, end time.Time) bool {
	var op *net.OpError
	if !isTimeout(err) || errors.As(err, new(*busy.Silence)) {
		return false
	}
	return errors.As(err, &op) && op.Op == "write" || busy.Late(end)
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// sent reports a round trip to the observer.
func (s *server) sent(start time.Time, decisions int, err error) {
	if s.backend.observer == nil {
		return
	}
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
	if s.backend.observer != nil {
		s.backend.observer.Checked(s.known) // under the lock, so that events are in order
	}
}

func (s *server) close() {
	s.breaker.Close()
	if c := s.spare.Swap(nil); c != nil {
		c.close() // it has nothing left to send
	}
}

var probePolicy = &quota.Policy{Name: "weir/probe", Limits: []quota.Limit{{Quota: 1 << 30, Window: time.Second}}}

// probe returns nil if the server does again what it failed. It asks on a connection of
// its own, which no pool delays.
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
	own := s.dial()
	if own == nil {
		return s.ask(ctx, s.client, key, f.read)
	}
	if err := s.ask(ctx, own.client, key, f.read); err != nil {
		own.close()
		return err
	}
	if before := s.spare.Swap(own); before != nil {
		before.close()
	}
	return nil
}

// ownClient is a client of one server that the backend has made, for itself.
type ownClient struct {
	client client

	mu    sync.Mutex
	conns []net.Conn
}

// dial returns a client of the server with the settings of the user's, or nil if that
// is of a kind that has none for one server. It dials nothing yet.
func (s *server) dial() *ownClient {
	c := s.node
	if c == nil {
		c, _ = s.client.UniversalClient.(*redis.Client)
	}
	if c == nil {
		return nil
	}
	o := *c.Options()
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ContextTimeoutEnabled = true
	o.PoolSize, o.MaxConcurrentDials, o.MinIdleConns = maxFlights, maxFlights, 0
	o.PipelineReadBufferSize, o.PipelineWriteBufferSize = 0, 0
	o.Limiter, o.ClientSideCacheConfig, o.ClientSideCache = nil, nil, nil
	o.PushNotificationProcessor = nil
	o.MaintNotificationsConfig = noMaintNotifications()

	own := new(ownClient)
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil {
			own.mu.Lock()
			own.conns = append(own.conns, conn)
			own.mu.Unlock()
		}
		return conn, err
	}
	own.client = client{redis.NewClient(&o), true, o.PoolSize}
	return own
}

// close closes the client and its connections: go-redis 9.22 leaves one whose first
// command failed to the garbage collector.
func (o *ownClient) close() {
	_ = o.client.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, conn := range o.conns {
		_ = conn.Close() // most are closed already
	}
}

// ask makes a decision about key, or reads it.
func (s *server) ask(ctx context.Context, c client, key string, read bool) error {
	var err error
	if read {
		err = c.process(ctx, redis.NewStringCmd(ctx, "get", key))
	} else {
		charge := probePolicy.Charge("")
		charge.Cost = 1
		j := s.backend.newTake(ctx, driver.NewRequest(time.Now().UnixMilli(), charge))
		run := func(command string, source any) error {
			return c.process(ctx, redis.NewStringCmd(ctx, command, source, 1, key, []byte(j.packed)))
		}
		if err = run("evalsha", decideScript.hash); redis.HasErrorPrefix(err, "NOSCRIPT") {
			err = run("eval", decideScript.text)
		}
		j.abandoned = err != nil
		j.free()
	}
	if isFault(err) || errors.Is(err, context.Canceled) || errors.Is(err, redis.ErrClosed) {
		return err
	}
	return nil
}
