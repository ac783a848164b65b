package memcachedbackend_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// lateConn is a connection of a process that is short of CPU: it reads only when the
// deadline has passed.
type lateConn struct {
	net.Conn
	late     *atomic.Bool
	deadline time.Time
}

func (c *lateConn) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return c.Conn.SetReadDeadline(t)
}

func (c *lateConn) Read(p []byte) (int, error) {
	if left := time.Until(c.deadline); c.late.Load() && left > 15*time.Millisecond { // and is not late for a look
		time.Sleep(left + time.Millisecond)
	}
	return c.Conn.Read(p)
}

// Replies that have come when their deadlines pass are used, and the server has answered.
func TestRepliesThatAreReadLate(t *testing.T) {
	var late atomic.Bool
	c := newClient(t, testserver.Memcached(t).Addr)
	c.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &lateConn{Conn: conn, late: &late}, err
	}
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: c}}, nil)
	th, p := throttler.New(b, nil), perHour(100)
	if _, err := th.Take(t.Context(), p.Charge("alice")); err != nil {
		t.Fatal(err)
	}
	late.Store(true)
	for range 5 {
		if err := takeAsked(t, th, p.Charge("alice")); err != nil {
			t.Errorf("a decision whose replies were there: %v", err)
		}
	}
	late.Store(false)
	if d, err := th.Peek(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != 6 {
		t.Fatalf("%+v, %v; want 6 used", d, err)
	}
	if _, down := b.Down("alice"); down {
		t.Error("the breaker of a server that answers is open")
	}
}

// Less than a millisecond is the caller's own deadline.
func TestCallersWithoutTime(t *testing.T) {
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, testserver.Memcached(t).Addr)}}, nil)
	th, p := throttler.New(b, nil), perHour(100)
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 160*time.Microsecond)
		_, err := th.Take(ctx, p.Charge("alice"))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%v; want context.DeadlineExceeded, and not ErrUnavailable", err)
		}
	}
}

// An exchange that gets no connection in time says nothing of a server that answers others
// meanwhile: a process short of CPU needs long for a dial.
func TestDialsOfABusyProcess(t *testing.T) {
	var slow atomic.Bool
	released := make(chan struct{})
	c := newClient(t, testserver.Memcached(t).Addr)
	c.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slow.Load() {
			<-released
			return nil, context.DeadlineExceeded
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: c}}, nil)
	th, p := throttler.New(b, nil), perHour(1_000_000)
	if _, err := th.Take(t.Context(), p.Charge("alice")); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	var all sync.WaitGroup
	var shed atomic.Int64
	stop := time.Now().Add(20 * time.Second)
	for i := range 8 {
		all.Go(func() {
			for shed.Load() < 3 && time.Now().Before(stop) && !t.Failed() {
				switch err := takeAsked(t, th, p.Charge("alice"+strconv.Itoa(i))); {
				case errors.Is(err, driver.ErrOverloaded):
					shed.Add(1)
				case err != nil && shed.Load() < 3: // then others end, and the server answers nothing
					t.Errorf("a decision that got no connection: %v; want ErrOverloaded", err)
				}
			}
		})
	}
	all.Wait()
	close(released)
	if shed.Load() == 0 && !t.Failed() {
		t.Fatal("no decision needed a second connection")
	}
	if _, down := b.Down("alice0"); down {
		t.Error("the breaker of a server that answers has opened")
	}
}
