package memcachedbackend_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// readConn calls a function after each read.
type readConn struct {
	net.Conn
	after *atomic.Pointer[func()]
}

func (c *readConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if after := c.after.Load(); after != nil {
		(*after)()
	}
	return n, err
}

// leaver is the context of a caller that is short of CPU: it begins to wait, by Done, only
// after the exchange.
type leaver struct {
	context.Context
	left     atomic.Bool
	exchange func()
}

func (c *leaver) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }

func (c *leaver) Err() error {
	if c.left.Load() {
		return context.Canceled
	}
	return nil
}

func (c *leaver) Done() <-chan struct{} {
	c.exchange()
	done := make(chan struct{})
	close(done)
	return done
}

// A caller that leaves while its item is read gets its context's error. Its decision is not
// made, so the success of the exchange is not an answer to it.
func TestCallerLeavesDuringTheRead(t *testing.T) {
	var after atomic.Pointer[func()]
	client := memcachedbackend.NewClient(testserver.Memcached(t).Addr)
	client.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &readConn{conn, &after}, err
	}
	t.Cleanup(func() { _ = client.Close() })
	th := throttler.New(newBackend(t, []memcachedbackend.Server{{Name: "a", Client: client}}, nil), nil)
	charge := perHour(60).Charge("alice")
	const times = 20 // the outcome is random if both have happened
	for range times {
		ctx := &leaver{Context: t.Context(), exchange: func() {
			if _, err := th.Take(t.Context(), charge); err != nil { // its exchange is not before the other one
				t.Error(err)
			}
		}}
		leave := func() { ctx.left.Store(true) }
		after.Store(&leave)
		if d, err := th.Take(ctx, charge); !errors.Is(err, context.Canceled) {
			t.Fatalf("%+v, %v; want context.Canceled", d, err)
		}
	}
	if d, err := th.Peek(t.Context(), charge); err != nil || d.Limit(0).Used != times {
		t.Errorf("%v, %v; want %d used", d, err, times)
	}
}

// After the server's time has passed, a decision that waits still ends when its caller leaves.
func TestCallerLeavesAfterTheServersTime(t *testing.T) {
	var hold atomic.Bool
	held, goOn := make(chan struct{}), make(chan struct{})
	addr := testserver.Relay(t, testserver.Memcached(t).Addr, func(answer []byte) bool {
		if bytes.HasSuffix(answer, []byte("END\r\n")) && hold.CompareAndSwap(true, false) {
			close(held)
			<-goOn
		}
		return false
	})
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, addr)}}, &memcachedbackend.Options{Deadline: time.Minute})
	th := throttler.New(b, nil)
	charge := perHour(100).Charge("alice")
	hold.Store(true)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := th.Take(t.Context(), charge); first <- err }()
	<-held
	caller, leave := context.WithCancel(t.Context())
	defer leave()
	const serverTime = 20 * time.Millisecond
	go func() { _, err := th.WithServerTime(serverTime).Take(caller, charge); second <- err }()
	await(t, "a decision waits", func() bool { return b.Waiting(charge) == 1 })
	time.Sleep(serverTime)
	leave()
	if err := <-second; !errors.Is(err, context.Canceled) || errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("the caller that left: %v, want context.Canceled alone", err)
	}
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if d, err := th.Peek(t.Context(), charge); err != nil || d.Limit(0).Used != 1 {
		t.Errorf("used %d, %v; want 1", d.Limit(0).Used, err)
	}
}
