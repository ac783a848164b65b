package goredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// dialFunc dials a server.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// sentinels dials the primary of a Sentinel master name. It asks and subscribes to all
// Sentinels, and believes the report with the newest epoch. go-redis's own client asks one
// Sentinel, which may learn of a failover seconds after the others, and would charge the old
// primary until then.
//
// Nothing runs while there is no connection, so closing the client ends it.
type sentinels struct {
	name    string
	dial    dialFunc
	options []redis.UniversalOptions // of the client of each Sentinel

	mu      sync.Mutex
	users   int         // dials and connections
	end     func()      // ends the watch; nil without one
	linger  *time.Timer // calls end if there are no users
	reports []report
	problem error // why a Sentinel does not answer
	primary string
	heard   chan struct{} // closed, and replaced, after each report
	conns   map[weak.Pointer[boundedConn]]string
}

// report is a Sentinel's report of the primary. The zero value means no report so far.
type report struct {
	addr  string
	epoch int64
	until time.Time // older epochs do not replace it before, if it is only announced
}

// noReport is the report of a Sentinel that does not answer. It is older than any other.
var noReport = report{epoch: -1}

const (
	sentinelPoll   = time.Second            // between two questions to a Sentinel that announces nothing
	sentinelRetry  = 100 * time.Millisecond // after a failure
	sentinelLinger = 250 * time.Millisecond // how long a watch outlives its last connection
	// A Sentinel confirms an announcement when it has asked the new primary, once a second.
	sentinelConfirms = 3 * time.Second
)

func newSentinels(o *redis.UniversalOptions) *sentinels {
	s := &sentinels{
		name: o.MasterName, dial: o.Dialer,
		reports: make([]report, len(o.Addrs)),
		heard:   make(chan struct{}),
		conns:   make(map[weak.Pointer[boundedConn]]string),
	}
	for _, addr := range o.Addrs {
		server := *o
		server.Addrs, server.DB = []string{addr}, 0
		server.Username, server.Password = o.SentinelUsername, o.SentinelPassword
		server.CredentialsProvider, server.CredentialsProviderContext, server.StreamingCredentialsProvider = nil, nil, nil
		server.OnConnect = nil
		server.PoolSize, server.MinIdleConns = 1, 0
		s.options = append(s.options, server)
	}
	return s
}

// dialPrimary dials the primary. The connection is closed when the primary changes.
func (s *sentinels) dialPrimary(ctx context.Context, network, _ string) (net.Conn, error) {
	s.use()
	for {
		addr, err := s.await(ctx)
		if err != nil {
			s.leave()
			return nil, err
		}
		conn, err := s.dial(ctx, network, addr)
		if err != nil {
			s.leave()
			return nil, err
		}
		if s.keep(conn, addr) {
			return conn, nil
		}
	}
}

// keep registers conn, which is bounded, to be closed when the primary changes. If it has
// changed, keep closes conn at once and returns false.
func (s *sentinels) keep(conn net.Conn, addr string) bool {
	c := conn.(interface{ bounded() *boundedConn }).bounded()
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr != s.primary {
		_ = conn.Close()
		return false
	}
	w := weak.Make(c)
	s.conns[w] = addr
	c.closed = func() { s.forget(w) }
	runtime.AddCleanup(c, s.forget, w) // go-redis does not close all
	return true
}

// forget forgets a connection that is closed, or garbage.
func (s *sentinels) forget(w weak.Pointer[boundedConn]) {
	s.mu.Lock()
	_, exists := s.conns[w]
	delete(s.conns, w)
	s.mu.Unlock()
	if exists {
		s.leave()
	}
}

// await returns the primary's address as soon as a Sentinel reports it, or an error once all
// of them have failed, or when ctx is done.
func (s *sentinels) await(ctx context.Context) (string, error) {
	for {
		s.mu.Lock()
		addr, heard, problem := s.primary, s.heard, s.problem
		waits := slices.Contains(s.reports, report{})
		s.mu.Unlock()
		if addr != "" {
			return addr, nil
		}
		if !waits {
			return "", fmt.Errorf("no Sentinel says where the primary of %q is: %w", s.name, problem)
		}
		select {
		case <-heard:
		case <-ctx.Done():
			return "", fmt.Errorf("no Sentinel says where the primary of %q is: %w", s.name, ctx.Err())
		}
	}
}

// use adds a user, and begins the watch unless it runs.
func (s *sentinels) use() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	if s.end != nil {
		if s.linger != nil {
			s.linger.Stop()
		}
		return
	}
	// Earlier reports may be out of date.
	clear(s.reports)
	s.primary, s.problem = "", nil
	ctx, cancel := context.WithCancel(context.Background())
	s.end = cancel
	for i := range s.options {
		go s.watch(ctx, i)
	}
}

// leave removes a user. After the last one, the watch ends in sentinelLinger unless another
// comes: while a primary is dead, one dial follows another.
func (s *sentinels) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	s.linger = time.AfterFunc(sentinelLinger, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.users == 0 && s.end != nil {
			s.end()
			s.end = nil
		}
	})
}

// watch follows the reports of Sentinel i until ctx is done.
func (s *sentinels) watch(ctx context.Context, i int) {
	c := redis.NewSentinelClient(s.options[i].Simple())
	c.AddHook(failLate{})
	announced := c.Subscribe(ctx)                                          // to nothing yet, which dials nothing
	context.AfterFunc(ctx, func() { _, _ = announced.Close(), c.Close() }) // reads do not end with ctx

	err := announced.Subscribe(ctx, promoting, "+switch-master")
	for ctx.Err() == nil {
		if err == nil {
			err = s.ask(ctx, c, i)
		}
		if err != nil {
			s.mu.Lock()
			s.problem = err
			s.mu.Unlock()
			s.hear(ctx, i, noReport)
			select {
			case <-time.After(sentinelRetry):
			case <-ctx.Done():
			}
		}
		var message any
		if message, err = announced.ReceiveTimeout(ctx, sentinelPoll); errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil // nothing was announced
		}
		if m, ok := message.(*redis.Message); ok && m.Channel == promoting {
			s.announce(ctx, i, m.Payload)
		}
	}
}

// ask asks Sentinel i for the primary. The address and its epoch are two questions:
// they belong together if the epoch is the same afterwards.
func (s *sentinels) ask(ctx context.Context, c *redis.SentinelClient, i int) error {
	for last := noReport; ; {
		master, err := c.Master(ctx, s.name).Result()
		if err != nil {
			return err
		}
		epoch, err := strconv.ParseInt(master["config-epoch"], 10, 64)
		if err != nil {
			return err
		}
		if epoch == last.epoch {
			s.hear(ctx, i, last)
			return nil
		}
		addr, err := c.GetMasterAddrByName(ctx, s.name).Result()
		if err != nil {
			return err
		}
		if len(addr) != 2 {
			return errors.New("the Sentinel's reply has an unknown form")
		}
		last = report{addr: net.JoinHostPort(addr[0], addr[1]), epoch: epoch}
	}
}

// promoting is announced by the Sentinel that has just made a replica a primary. It answers
// questions with the new primary, and informs the other Sentinels, up to a second later.
const promoting = "+failover-state-wait-promotion"

// announce hears an announcement of promoting, such as
// "slave 10.0.0.2:6379 10.0.0.2 6379 @ mymaster 10.0.0.1 6379".
func (s *sentinels) announce(ctx context.Context, i int, text string) {
	f := strings.Fields(text)
	if len(f) < 6 || f[5] != s.name {
		return
	}
	s.mu.Lock()
	epoch := s.reports[i].epoch + 1
	s.mu.Unlock()
	s.hear(ctx, i, report{net.JoinHostPort(f[2], f[3]), epoch, time.Now().Add(sentinelConfirms)})
}

// hear makes r the report of Sentinel i. If that changes the primary, it closes the
// connections to the old one, which may accept charges for seconds that no server will count.
func (s *sentinels) hear(ctx context.Context, i int, r report) {
	s.mu.Lock()
	if ctx.Err() != nil || r.epoch < s.reports[i].epoch && time.Now().Before(s.reports[i].until) {
		s.mu.Unlock()
		return
	}
	s.reports[i] = r
	newest := slices.MaxFunc(s.reports, func(a, b report) int { return cmp.Compare(a.epoch, b.epoch) })
	var old []*boundedConn
	if newest.addr != "" && newest.addr != s.primary {
		s.primary = newest.addr
		for w, addr := range s.conns {
			if c := w.Value(); c != nil && addr != s.primary {
				old = append(old, c)
			}
		}
	}
	close(s.heard)
	s.heard = make(chan struct{})
	s.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
}
