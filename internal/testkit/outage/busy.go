package outage

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

var policy = &quota.Policy{Name: "core", Limits: []quota.Limit{{Quota: 1 << 40, Window: time.Hour}}}

// openings records when breakers opened.
type openings struct {
	observe.Nothing
	mu       sync.Mutex
	instants []time.Time
}

func (o *openings) Checked(e observe.Checked) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.Open {
		o.instants = append(o.instants, time.Now())
	}
}

// check fails the test if an opening is wrong.
func (o *openings) check(t *testing.T, isWrong func(instant time.Time) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.ContainsFunc(o.instants, isWrong) {
		t.Error("the breaker of a server that answers has opened")
	}
}

func always(time.Time) bool { return true }

// Busy tests that a process that is short of CPU does not take its own delays for an outage.
func (s Store) Busy(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, s Store){
		"replies that are read late": repliesThatAreReadLate,
		"callers without time":       callersWithoutTime,
		"dials that are late":        dialsThatAreLate,
	} {
		t.Run(name, func(t *testing.T) { test(t, s) })
	}
}

// open returns a throttler on a store whose clients use dial, and a record of the openings of
// the store's breaker.
func (s Store) open(t *testing.T, dial Dialer) (*throttler.Throttler, *openings) {
	opened := new(openings)
	_, addr := s.Start(t)
	return throttler.New(s.Open(t, addr, dial, opened), nil), opened
}

func take(t *testing.T, th *throttler.Throttler, key string, deadline time.Duration) error {
	_, err := th.WithServerTime(deadline).Take(t.Context(), policy.Charge(key))
	return err
}

// connect makes the first take, which dials.
func connect(t *testing.T, th *throttler.Throttler) {
	t.Helper()
	if _, err := th.Take(t.Context(), policy.Charge("alice")); err != nil {
		t.Fatal(err)
	}
}

func used(t *testing.T, th *throttler.Throttler, want int64) {
	t.Helper()
	if d, err := th.Peek(t.Context(), policy.Charge("alice")); err != nil || d.Limit(0).Used != want {
		t.Fatalf("%+v, %v; want %d used", d, err, want)
	}
}

// lateConn is a connection of a process that is short of CPU: it reads only after the reply
// has arrived and the deadline has passed.
type lateConn struct {
	net.Conn
	reader   *bufio.Reader
	delayed  *atomic.Bool
	deadline time.Time
}

func (c *lateConn) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return c.Conn.SetReadDeadline(t)
}

func (c *lateConn) Read(p []byte) (int, error) {
	if !c.delayed.Load() || time.Until(c.deadline) <= 15*time.Millisecond { // a look is not late
		return c.reader.Read(p)
	}
	// The server may be short of CPU too.
	if err := c.Conn.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	if _, err := c.reader.Peek(1); err != nil {
		return 0, err
	}
	time.Sleep(time.Until(c.deadline) + time.Millisecond)
	return 0, os.ErrDeadlineExceeded // Go fails a read after its deadline without trying it
}

// Replies that arrived before their deadlines are used, and show that the server has answered.
func repliesThatAreReadLate(t *testing.T, s Store) {
	var delayed atomic.Bool
	th, opened := s.open(t, func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &lateConn{Conn: conn, reader: bufio.NewReader(conn), delayed: &delayed}, err
	})
	connect(t, th)
	delayed.Store(true)
	for range 5 {
		if err := take(t, th, "alice", Deadline); err != nil {
			t.Errorf("a decision whose replies were there: %v", err)
		}
	}
	delayed.Store(false)
	used(t, th, 6)
	opened.check(t, always)
}

// A deadline of less than a millisecond fails as the caller's own, whatever the server does.
func callersWithoutTime(t *testing.T, s Store) {
	th, opened := s.open(t, new(net.Dialer).DialContext)
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 160*time.Microsecond)
		_, err := th.Take(ctx, policy.Charge("alice"))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%v; want context.DeadlineExceeded, and not ErrUnavailable", err)
		}
	}
	used(t, th, 0)
	opened.check(t, always)
}

// countedConn reports when it is closed.
type countedConn struct {
	net.Conn
	closing sync.Once
	closed  chan<- struct{}
}

func (c *countedConn) Close() error {
	c.closing.Do(func() { c.closed <- struct{}{} })
	return c.Conn.Close()
}

// span is the time of a take.
type span struct{ began, end time.Time }

// A round trip that gets no connection in time says nothing about a server that answers others
// at the time: a process short of CPU takes long to dial.
func dialsThatAreLate(t *testing.T, s Store) {
	var slow atomic.Bool // if true, a dial waits until a connection is closed
	released, closed := make(chan struct{}), make(chan struct{}, 1024)
	th, opened := s.open(t, func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slow.Load() {
			select {
			case <-closed:
			case <-released:
				return nil, context.DeadlineExceeded
			}
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			closed <- struct{}{}
			return nil, err
		}
		return &countedConn{Conn: conn, closed: closed}, nil
	})
	connect(t, th)
	slow.Store(true)
	const (
		patience = 500 * time.Millisecond // time for the server to answer someone, even when it is short of CPU
		margin   = patience / 5           // for this process to record events
	)
	var (
		group    sync.WaitGroup
		mu       sync.Mutex
		shed     int
		answered []span
	)
	// The server is short of CPU too, so to blame it for a delay since began is wrong only if
	// it has answered a later take in time.
	isWrong := func(began time.Time) bool {
		return slices.ContainsFunc(answered, func(s span) bool {
			return s.began.After(began.Add(margin)) && s.end.Before(began.Add(patience-margin))
		})
	}
	stop := time.Now().Add(20 * time.Second)
	call := func(key string) (again bool) {
		began := time.Now()
		err := take(t, th, key, patience)
		end := time.Now()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			answered = append(answered, span{began, end})
		case errors.Is(err, driver.ErrOverloaded):
			shed++
		case isWrong(began):
			t.Errorf("a decision that got no connection, while another was answered: %v; want ErrOverloaded", err)
		}
		return shed < 3 && end.Before(stop) && !t.Failed()
	}
	for i := range 8 {
		group.Go(func() {
			for call("alice" + strconv.Itoa(i)) {
			}
		})
	}
	group.Wait()
	close(released)
	opened.check(t, func(instant time.Time) bool { return isWrong(instant.Add(-patience)) })
	if shed < 3 && !t.Failed() {
		t.Fatalf("%d decisions without a connection ended with ErrOverloaded; want 3", shed)
	}
}
