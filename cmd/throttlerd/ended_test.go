package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
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

// left returns the rest of a user's limit, charging nothing.
func (d *daemon) left(user string) (uint32, error) {
	resp, err := d.rls.ShouldRateLimit(d.t.Context(), &ratelimitv3.RateLimitRequest{Domain: "d", Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: user}}, HitsAddend: wrapperspb.UInt64(0)},
	}})
	if err != nil {
		return 0, err
	}
	return resp.GetStatuses()[0].GetLimitRemaining(), nil
}

// A client that leaves after Redis has charged, and before it has answered, gets a refund: at
// once, or before the program ends.
func TestClientLeaves(t *testing.T) {
	redis := testserver.Redis(t)
	var hold atomic.Bool // the answer to the next take, after Redis has charged
	waits, release := make(chan struct{}, 1), make(chan struct{})
	relay := testserver.Relay(t, redis.Addr, func(answer []byte) bool {
		firstTake := bytes.HasPrefix(answer, []byte("$22\r\n\x01")) // allowed, and the digits of a new window
		if firstTake && hold.CompareAndSwap(true, false) {
			waits <- struct{}{}
			<-release
		}
		return false
	})
	environ := []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + relay, "WEIR_DEADLINE=10s"}
	perDay := strings.Replace(perYear, "year", "day", 1) // this window counts in digits
	d, other := started(t, perDay, environ...), started(t, perDay, environ...)
	other.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	leave := func(user string) {
		t.Helper()
		d.remains(user+" that stays", 2) // now the script is loaded
		hold.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := d.askIn(ctx, user)
			failed <- err
		}()
		<-waits
		if n, err := other.left(user); n != 2 || err != nil {
			t.Errorf("%d remain, %v; want that Redis has charged", n, err)
		}
		cancel()
		if err := <-failed; status.Code(err) != codes.Canceled {
			t.Errorf("a call that was canceled: %v", err)
		}
		d.serves(grpc_health_v1.HealthCheckResponse_SERVING) // on the same connection, so that the cancellation has arrived
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
	release <- struct{}{}
	back("alice")

	leave("bob")
	d.terminate()
	release <- struct{}{}
	d.ended <- <-d.ended // for its cleanup, too
	back("bob")
}
