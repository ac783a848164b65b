package redisbackend_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	redisbackend "github.com/weir-go/weir/backend/redis"
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

// A reply that has come when its deadline passes is used, and the server has answered.
func TestRepliesThatAreReadLate(t *testing.T) {
	server := testserver.Redis(t)
	var late atomic.Bool
	o := patient(server.Addr)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &lateConn{Conn: conn, late: &late}, err
	}
	b, e := newObserved(t, connect(t, o), redisbackend.Options{})
	p := policy("core", perHour(100))
	if _, err := b.Take(t.Context(), p.Charge("alice")); err != nil { // connects
		t.Fatal(err)
	}
	late.Store(true)
	for range 5 {
		ctx, cancel := driver.WithServerTime(t.Context(), 50*time.Millisecond)
		if _, err := b.Take(ctx, p.Charge("alice")); err != nil {
			t.Errorf("a decision whose reply was there: %v", err)
		}
		cancel()
	}
	late.Store(false)
	if d, err := b.Peek(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != 6 {
		t.Fatalf("%+v, %v; want 6 used", d, err)
	}
	if e.opened() > 0 {
		t.Error("the breaker of a server that answers has opened")
	}
}

// A decision that waits in the queue when its time passes is made, if the server answers.
func TestQueuedBeyondItsDeadline(t *testing.T) {
	p := policy("core", perHour(100))
	server, b, sent := newFull(t, t.Context(), p)
	ctx, cancel := driver.WithServerTime(t.Context(), 20*time.Millisecond)
	defer cancel()
	waited := make(chan error, 1)
	go func() {
		_, err := b.Take(ctx, p.Charge("waits"))
		waited <- err
	}()
	eventually(t, "a queue", func() bool { _, n := b.backend.Batches(); return n == 1 })
	<-ctx.Done()
	select {
	case err := <-waited:
		t.Errorf("it ended with %v before any batch had", err)
	case <-time.After(20 * time.Millisecond): // it would end at once
	}
	server.Resume()
	if err := <-waited; err != nil && !t.Failed() {
		t.Errorf("its time passed in the queue of a server that answers: %v", err)
	}
	for range redisbackend.MaxInFlight {
		if err := <-sent; err != nil {
			t.Errorf("one that was sent: %v", err)
		}
	}
}

// Whatever a flood and a busy process do, what the server refuses is refused: there is no
// error that an open failure policy would serve.
func TestFlood(t *testing.T) {
	server := testserver.Redis(t)
	b, e := newObserved(t, newClient(t, server.Addr), redisbackend.Options{})
	b.backend.SetMinWait(20 * time.Second) // the machine of the tests may keep the server from answering
	p := policy("core", perHour(5))
	stop := time.Now().Add(2 * time.Second)
	var all sync.WaitGroup
	var served, refused atomic.Int64
	for range 8 {
		all.Go(func() {
			for time.Now().Before(stop) { // keeps a processor busy
			}
		})
	}
	for range 500 {
		all.Go(func() {
			for time.Now().Before(stop) {
				ctx, cancel := driver.WithServerTime(context.Background(), 5*time.Millisecond)
				d, err := b.Take(ctx, p.Charge("attacker"))
				cancel()
				switch {
				case err != nil:
					if !errors.Is(err, driver.ErrOverloaded) {
						t.Errorf("in a flood: %v", err)
						return
					}
				case d.Allowed:
					served.Add(1)
				default:
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	if served.Load() != 5 || refused.Load() == 0 || e.opened() > 0 {
		t.Errorf("%d served and %d refused, and the breaker opened %d times; want 5, some, never", served.Load(), refused.Load(), e.opened())
	}
}

// Less than a millisecond is the caller's own deadline, whatever the server does.
func TestCallersWithoutTime(t *testing.T) {
	b, _ := newObserved(t, newClient(t, testserver.Redis(t).Addr), redisbackend.Options{})
	p := policy("core", perHour(100))
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 160*time.Microsecond)
		_, err := b.Take(ctx, p.Charge("alice"))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, throttler.ErrUnavailable) {
			t.Errorf("%v; want context.DeadlineExceeded, and not ErrUnavailable", err)
		}
	}
	if d, err := b.Peek(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != 0 {
		t.Errorf("used %d, %v; want 0", d.Limit(0).Used, err)
	}
}

// A batch that gets no connection in time says nothing of a server that answers others
// meanwhile: a process short of CPU needs long for a dial.
func TestDialsOfABusyProcess(t *testing.T) {
	server := testserver.Redis(t)
	var slow atomic.Bool
	released := make(chan struct{})
	o := patient(server.Addr)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slow.Load() {
			<-released
			return nil, context.DeadlineExceeded
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	b, e := newObserved(t, connect(t, o), redisbackend.Options{})
	p := policy("core", perHour(1_000_000))
	if _, err := b.Take(t.Context(), p.Charge("alice")); err != nil { // connects
		t.Fatal(err)
	}
	slow.Store(true)
	var all sync.WaitGroup
	var shed atomic.Int64
	stop := time.Now().Add(20 * time.Second)
	for range 8 {
		all.Go(func() {
			for shed.Load() < 3 && time.Now().Before(stop) && !t.Failed() {
				ctx, cancel := driver.WithServerTime(context.Background(), 50*time.Millisecond)
				_, err := b.Take(ctx, p.Charge("alice"))
				cancel()
				switch {
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
	if e.opened() > 0 {
		t.Error("the breaker of a server that answers has opened")
	}
}
