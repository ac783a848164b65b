package memcachedbackend_test

import (
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
