package main

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// Envoys may ping idle connections (connection_keepalive), even each second.
func TestPings(t *testing.T) {
	d := started(t, perYear)
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	conn, err := net.Dial("unix", filepath.Join(d.dir, "grpc.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
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
