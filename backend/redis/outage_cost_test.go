package redisbackend_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/outage"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// TestOutage prints what an outage costs the callers: see docs/operations.md. It fails
// if the server is not used again.
func TestOutage(t *testing.T) {
	outage.Run(t, []string{"silent", "hung", "killed"}, func(t *testing.T, kind string) outage.Outage {
		server := testserver.Redis(t)
		addr := server.Addr
		if kind == "silent" {
			addr, _ = silent(t)
		}
		var dials atomic.Int64
		c := connect(t, &redis.UniversalOptions{Addrs: []string{addr}, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}})
		b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, nil)
		th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
		p := policy("core", perHour(1<<40))
		o := outage.Outage{
			Take: func(ctx context.Context, caller int) error {
				_, err := th.Take(ctx, p.Charge(fmt.Sprint("key", caller)))
				return err
			},
			Open:  b.Open,
			Dials: dials.Load,
		}
		switch kind {
		case "hung":
			o.Begin, o.End = server.Pause, func() error { server.Resume(); return nil }
		case "killed":
			o.Begin, o.End = server.Kill, server.Restart
		}
		return o
	})
}
