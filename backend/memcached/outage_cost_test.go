package memcachedbackend_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/outage"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// TestOutage prints what an outage costs the callers: see docs/operations.md. It fails
// if the server is not used again.
func TestOutage(t *testing.T) {
	outage.Run(t, []string{"silent", "hung", "killed"}, func(t *testing.T, kind string) outage.Outage {
		server := testserver.Memcached(t)
		addr := server.Addr
		if kind == "silent" {
			addr, _ = fakeServer(t, func(string) string { return "" })
		}
		var dials atomic.Int64
		client := newClient(t, addr)
		client.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: client}}, nil)
		th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
		p := perHour(1 << 40)
		o := outage.Outage{
			Take: func(ctx context.Context, caller int) error {
				_, err := th.Take(ctx, p.Charge(fmt.Sprint("key", caller)))
				return err
			},
			Open:  func() bool { _, down := b.Down("key0"); return down },
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
