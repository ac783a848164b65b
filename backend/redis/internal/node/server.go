package node

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
)

// Server is a server that decisions are sent to: a primary, a node of a Redis Cluster, or a
// replica. Its breaker opens by the outcomes of round trips: see IsFault.
type Server struct {
	Config
	Breaker *breaker.Breaker
	Answers *busy.Answers // to round trips
	Current atomic.Bool   // of a replica: as of its last check

	// single is the client of probes. No pool and no hook of the user's delays it. The first
	// probe makes it. A go-redis client with PoolSize failed dials does not dial for up to a
	// second; single is used in that time.
	single atomic.Pointer[goredis.Client]
	failed atomic.Pointer[failure] // the last one

	open atomic.Pointer[driver.UnavailableError] // the error of decisions while the breaker is open, made once

	reconnecting atomic.Bool
	background   sync.WaitGroup // of reconnect
	closed       context.Context
	stop         context.CancelFunc

	mu    sync.Mutex // guards event, and that no background work begins once closed is done
	event observe.Checked
}

// Config describes a Server.
type Config struct {
	Client   goredis.Client
	Node     *redis.Client // the server's own client, if Client is a Redis Cluster's
	Shard    string
	Name     string // in events
	Replica  bool
	Observer observe.Observer

	// Connections is how many connections decisions need at most.
	Connections int

	// Until a round trip has failed, probes ask about Partition, the beginning of a key up to
	// and including its hash tag, and answer within Timeout.
	Partition string
	Timeout   time.Duration

	// Ask makes a decision about a key of that partition by c or, if read, reads a count.
	Ask func(ctx context.Context, c goredis.Client, partition string, read bool) error

	// Opened is called when the breaker has opened.
	Opened func()
}

// New returns a Server with a closed breaker.
func New(c Config) *Server {
	s := &Server{
		Config: c, Answers: busy.NewAnswers(),
		event: observe.Checked{Backend: "redisbackend", Shard: c.Shard, Server: c.Name, Replica: c.Replica},
	}
	s.opens(errors.New("unknown")) // until it has opened
	s.closed, s.stop = context.WithCancel(context.Background())
	s.Fail(c.Partition, c.Timeout)
	s.Breaker = breaker.New(s.Probe, func(open bool, cause error) {
		if open {
			s.opens(cause)
			s.Opened()
		}
		s.checked(func(event *observe.Checked) { event.Open, event.Err = open, cause })
	})
	return s
}

// Fail makes probes ask about that partition, and answer within timeout.
func (s *Server) Fail(partition string, timeout time.Duration) {
	s.failed.Store(&failure{partition: partition, timeout: timeout})
}

// ErrOpen returns the error of decisions while the breaker is open. It wraps breaker.ErrOpen.
func (s *Server) ErrOpen() error { return s.open.Load() }

// Spare returns a client that dials without the delays of s.Client, or nil.
func (s *Server) Spare() *goredis.Client { return s.single.Load() }

// failure is a call that the server failed, so that a probe can repeat it.
type failure struct {
	partition string // the beginning of a key
	read      bool
	timeout   time.Duration // the time that its batch had for the reply
}

// Outcome is a round trip's report about the server.
type Outcome struct {
	Err      error // the first error of its calls, in the last attempt
	Answered bool  // some call was answered, so the server is up
	Fault    error // shows that it is down, or nil
	failure  failure
}

// Add adds a call, a decision about a key of that partition or a read, that ended with err.
func (o *Outcome) Add(err error, partition []byte, read bool) {
	if o.Err == nil {
		o.Err = err
	}
	switch {
	case IsFault(err):
		o.Err, o.Fault, o.failure = err, err, failure{partition: string(partition), read: read}
	case goredis.IsIdleClosed(err): // says nothing, as these do
	case !errors.Is(err, context.Canceled) && !errors.Is(err, redis.ErrClosed):
		o.Answered = true
	}
}

// unable are the words that begin replies of a server that cannot serve now.
var unable = []string{
	"LOADING ", "BUSY ", "READONLY ", "OOM ", "MISCONF ", "NOREPLICAS ", "MASTERDOWN ", "CLUSTERDOWN ",
	"NOAUTH ", "NOPERM ", "WRONGPASS ", "ERR max number of clients",
}

// IsFault reports whether err means that the server does not serve: a batch ended without a
// reply, its connection broke, or the reply says that the server cannot serve now.
func IsFault(err error) bool {
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

// Record reports to the breaker the outcome of a batch that ran from began, with the deadline
// end, and had the given time for its reply.
func (s *Server) Record(o *Outcome, began, end time.Time, timeout time.Duration) {
	switch {
	case o.Answered:
		s.Answers.Answered(began)
		s.Breaker.Record(began, nil)
	case goredis.IsIdleClosed(o.Err):
		s.reconnect() // others may be closed, too
	case o.Fault == nil:
	case s.IsOwnDelay(o.Fault, began, end):
		s.reconnect() // a connection may have been missing
	default:
		s.Answers.Silent()
		f := o.failure
		f.timeout = timeout
		s.failed.Store(&f)
		s.reconnect()
		s.opens(o.Fault) // before the breaker may open: a decision may be asked for in between
		// A refused dial needs no second failure, and the primary does a replica's work.
		if errors.Is(o.Fault, syscall.ECONNREFUSED) || s.Replica {
			s.Breaker.Trip(began, o.Fault)
		} else {
			s.Breaker.Record(began, o.Fault)
		}
	}
}

// IsOwnDelay reports whether a batch timed out because this process had no time for it: a
// write timed out, the batch ended late, or the server has answered a later one. If a look
// after the deadline found no reply, the delay is the server's: see busy.Silence.
func (s *Server) IsOwnDelay(err error, began, end time.Time) bool {
	var op *net.OpError
	if !isTimeout(err) || errors.As(err, new(*busy.Silence)) {
		return false
	}
	return errors.As(err, &op) && op.Op == "write" || busy.Late(end) || s.Answers.AnsweredSince(began)
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// Sent reports a round trip to the observer.
func (s *Server) Sent(start time.Time, decisions int, err error) {
	s.Observer.Sent(observe.Sent{
		Backend: "redisbackend", Shard: s.Shard, Replica: s.Replica,
		Decisions: decisions, Start: start, Duration: time.Since(start), Err: err,
	})
}

// checked changes the known state of the server, and reports it to the observer.
func (s *Server) checked(change func(event *observe.Checked)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.event)
	s.Observer.Checked(s.event) // under the lock, so that events are in order
}

// reconnect opens, in the background, the connections that decisions need. go-redis logs in
// within the deadline of the decision that needs the connection, and drops the connection at
// the deadline: decisions would never get a connection to a distant server.
func (s *Server) reconnect() {
	single := s.singleClient()
	if single == nil || !s.reconnecting.CompareAndSwap(false, true) {
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
		Connect(ctx, s.Client, single, s.Connections)
	})
}

const reconnectTime = time.Second // at most, for all connections

// opens makes the error of decisions while the breaker is open because of cause.
func (s *Server) opens(cause error) {
	s.open.Store(&driver.UnavailableError{Backend: "redisbackend", Shard: s.Shard, Err: fmt.Errorf("%w; its last error: %v", breaker.ErrOpen, cause)}) //nolint:errorlint // of an earlier decision
}

// Close ends the probes and the background work.
func (s *Server) Close() {
	s.Breaker.Close()
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.background.Wait()
	if c := s.single.Swap(nil); c != nil {
		_ = c.Close() // it has nothing left to send
	}
}

// Probe returns nil if the server answers a call like the failed one, in the time that the
// failed one had. It then opens the connections that decisions need, so that no decision fails
// because connecting takes too long.
func (s *Server) Probe(ctx context.Context) error {
	f := s.failed.Load()
	cluster, _ := s.Client.UniversalClient.(*redis.ClusterClient)
	if cluster != nil && s.Node != nil {
		// Without traffic to this node, nothing else makes the client look for another.
		cluster.ReloadState(ctx)
		if node, err := cluster.MasterForKey(goredis.DoNotAsk, f.partition); err == nil && node.Options().Addr != s.Node.Options().Addr {
			return nil // the decisions that failed go there now
		}
	}
	c, single := s.Client, s.singleClient()
	if single != nil {
		if s.single.Load() == nil {
			s.single.Store(goredis.Another(single, s.Connections))
		}
		c = *s.single.Load()
	}
	err := breaker.Quick(f.timeout, func() error {
		err := s.Ask(ctx, c, f.partition, f.read)
		if IsFault(err) || errors.Is(err, context.Canceled) || errors.Is(err, redis.ErrClosed) {
			return err
		}
		return nil
	})
	if err != nil || single == nil {
		return err
	}
	Connect(ctx, s.Client, single, s.Connections) // if its pool does not dial yet, s.single is used
	return nil
}

// singleClient returns a client of this server alone, or nil: s.Node, or the user's client if that is a
// *redis.Client.
func (s *Server) singleClient() *redis.Client {
	if s.Node != nil {
		return s.Node
	}
	c, _ := s.Client.UniversalClient.(*redis.Client)
	return c
}

// distant is the round trip above which a server counts as distant.
const distant = 10 * time.Millisecond

// Connect opens the connections that decisions need to single, a server of c. If answers take
// longer than distant, it opens as many as there are connections. It leaves errors to the
// decisions.
func Connect(ctx context.Context, c goredis.Client, single *redis.Client, connections int) {
	_ = c.Run(ctx, func() error {
		if err := open(ctx, single, 1); err != nil {
			return err
		}
		if began := time.Now(); open(ctx, single, 1) == nil && time.Since(began) > distant {
			return open(ctx, single, min(connections, c.Connections))
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
		if err := <-errs; IsFault(err) {
			failed = err
		}
	}
	return failed
}
