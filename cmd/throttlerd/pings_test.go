package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Envoys may ping idle connections (connection_keepalive), even each second.
func TestPings(t *testing.T) {
	d := started(t, perYear)
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	f := dialFrames(t, d)
	for i := range byte(10) {
		if err := f.WritePing(false, [8]byte{i}); err != nil {
			t.Fatal(err)
		}
		for acked := false; !acked; {
			frame, err := f.ReadFrame()
			if err != nil {
				t.Fatalf("ping %d: %v", i, err)
			}
			switch frame := frame.(type) {
			case *http2.GoAwayFrame:
				t.Fatalf("ping %d: the connection is ended: %s", i, frame.DebugData())
			case *http2.PingFrame:
				acked = frame.IsAck() && frame.Data[0] == i
			}
		}
	}
}

// dialFrames opens an HTTP/2 connection of bare frames.
func dialFrames(t *testing.T, d *daemon) *http2.Framer {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(d.dir, "grpc.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(conn, conn)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

// Unfinished calls of a connection take a bounded amount of memory: their number and their
// size are bounded.
func TestUnfinishedCalls(t *testing.T) {
	d := started(t, perYear)
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	f := dialFrames(t, d)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		settings, ok := frame.(*http2.SettingsFrame)
		if !ok || settings.IsAck() {
			continue
		}
		if n, ok := settings.Value(http2.SettingMaxConcurrentStreams); !ok || n != maxStreams {
			t.Errorf("a connection may have %d calls at once, %t; want %d", n, ok, maxStreams)
		}
		break
	}
	_, err := d.rls.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: strings.Repeat("x", maxMessage)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a larger message: %v; want ResourceExhausted", err)
	}
}
