package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// holding is a way to a Redis server on which the answer to one script waits, if it is told to.
type holding struct {
	addr    string
	hold    atomic.Bool
	waits   chan struct{} // has one when an answer waits
	release chan struct{}
}

func newHolding(t *testing.T, redis string) *holding {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	h := &holding{addr: l.Addr().String(), waits: make(chan struct{}, 1), release: make(chan struct{})}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", redis)
			if err != nil {
				_ = client.Close()
				continue
			}
			script := new(atomic.Bool) // is what was asked last
			go func() {
				_, _ = io.Copy(writerFunc(func(b []byte) (int, error) {
					script.Store(bytes.Contains(bytes.ToLower(b), []byte("evalsha")))
					return server.Write(b)
				}), client)
				_ = server.Close()
			}()
			go func() {
				_, _ = io.Copy(writerFunc(func(b []byte) (int, error) {
					// A process that may sync asks all the time, and is answered by an o and counters.
					if script.Load() && !bytes.Contains(b, []byte("\r\no")) && h.hold.CompareAndSwap(true, false) {
						h.waits <- struct{}{}
						<-h.release
					}
					return client.Write(b)
				}), server)
				_ = client.Close()
			}()
		}
	}()
	return h
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// left returns what remains of a user's limit, charging nothing.
func (d *daemon) left(user string) (uint32, error) {
	resp, err := d.rls.ShouldRateLimit(d.t.Context(), &ratelimitv3.RateLimitRequest{Domain: "d", Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: user}}, HitsAddend: wrapperspb.UInt64(0)},
	}})
	if err != nil {
		return 0, err
	}
	return resp.GetStatuses()[0].GetLimitRemaining(), nil
}

// A client that leaves after Redis has charged, and before it has answered, is given back what
// was taken: now, or before the program ends.
func TestClientLeaves(t *testing.T) {
	redis := testserver.Redis(t)
	h := newHolding(t, redis.Addr)
	environ := []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + h.addr, "WEIR_DEADLINE=10s"}
	d, other := started(t, perHour, environ...), started(t, perHour, environ...)
	other.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	leave := func(user string) {
		t.Helper()
		d.remains(user+" who stays", 2) // and the script is known
		h.hold.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := d.askIn(ctx, user)
			failed <- err
		}()
		<-h.waits
		if n, err := other.left(user); n != 2 || err != nil {
			t.Errorf("%d remain, %v; want that Redis has charged", n, err)
		}
		cancel()
		if err := <-failed; status.Code(err) != codes.Canceled {
			t.Errorf("a call that was canceled: %v", err)
		}
		d.serves(grpc_health_v1.HealthCheckResponse_SERVING) // on this connection, so that the cancellation has arrived
	}
	back := func(user string) {
		t.Helper()
		eventually(t, func() error {
			n, err := other.left(user)
			if err == nil && n != 3 {
				err = fmt.Errorf("%d remain of 3", n)
			}
			return err
		})
	}
	leave("alice")
	h.release <- struct{}{}
	back("alice")

	leave("bob")
	d.terminate()
	h.release <- struct{}{}
	d.ended <- <-d.ended // for its cleanup, too
	back("bob")
}
