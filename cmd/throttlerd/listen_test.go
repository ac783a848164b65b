package main

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/weir-go/weir/cmd/throttlerd/internal/rls"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	weirdebug "github.com/weir-go/weir/contrib/debug"
)

// A profile of 30 s is an answer that net/http would end after a ReadTimeout. /json has one,
// because it reads bodies.
func TestProfilesAreNotCutOff(t *testing.T) {
	s, err := settings.Read([]string{"HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "BACKEND_TYPE=memory"})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	sv := &service{
		settings: s, log: slog.New(slog.DiscardHandler), observed: &observation{page: weirdebug.New(nil)}, registry: registry,
		rls: rls.New(nil, s.Answers, false, rls.NewMetrics(registry)), health: health.NewServer(), grpc: grpc.NewServer(),
	}
	err = sv.listen(make(chan error, 8))
	t.Cleanup(func() { _ = sv.close() })
	if err != nil || len(sv.http) != 2 {
		t.Fatalf("%d servers, error %v", len(sv.http), err)
	}
	public, debug := sv.http[0], sv.http[1]
	if debug.ReadTimeout != 0 || debug.WriteTimeout != 0 || debug.ReadHeaderTimeout <= 0 {
		t.Errorf("the debug port has the timeouts %v to read, %v to write and %v for headers; want one for headers alone", debug.ReadTimeout, debug.WriteTimeout, debug.ReadHeaderTimeout)
	}
	if public.ReadTimeout <= 0 {
		t.Error("a body sent to /json may take forever")
	}
}
