package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/weir-go/weir/cmd/throttlerd/internal/admin"
	"github.com/weir-go/weir/cmd/throttlerd/internal/ports"
	"github.com/weir-go/weir/cmd/throttlerd/internal/rls"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	weirdebug "github.com/weir-go/weir/contrib/debug"
)

// No connection is held for long by a client that sends nothing, or reads nothing.
func TestTimeoutsOfAllPorts(t *testing.T) {
	s, err := settings.Read([]string{"HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "BACKEND_TYPE=memory", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	sv := &service{
		settings: s, log: slog.New(slog.DiscardHandler), observed: &observation{page: weirdebug.New(nil)}, registry: registry,
		rls: rls.New(nil, nil, &rls.Options{Answers: s.Answers, Metrics: rls.NewMetrics(registry, false)}), health: health.NewServer(), grpc: grpc.NewServer(),
	}
	err = sv.listen(http.NotFoundHandler(), make(chan error, 8))
	t.Cleanup(func() { _ = sv.close() })
	if err != nil || len(sv.http) != 3 {
		t.Fatalf("%d servers, error %v", len(sv.http), err)
	}
	for _, h := range sv.http {
		if h.ReadHeaderTimeout <= 0 || h.ReadTimeout <= 0 || h.WriteTimeout <= 0 || h.IdleTimeout <= 0 {
			t.Errorf("timeouts of %v for headers, %v to read, %v to write, %v idle; want all", h.ReadHeaderTimeout, h.ReadTimeout, h.WriteTimeout, h.IdleTimeout)
		}
	}
}

// A profile takes longer than its request may take to be read.
func TestProfilesAreNotCutOff(t *testing.T) {
	registry := prometheus.NewRegistry()
	server := httptest.NewUnstartedServer(nil)
	server.Config = ports.NewServer(admin.Debug(rls.New(nil, nil, &rls.Options{Metrics: rls.NewMetrics(registry, false)}), registry), slog.New(slog.DiscardHandler))
	server.Config.ReadTimeout = 20 * time.Millisecond
	server.Start()
	defer server.Close()
	begin := time.Now()
	response, err := http.Get(server.URL + "/debug/pprof/trace?seconds=0.2")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if took := time.Since(begin); response.StatusCode != http.StatusOK || err != nil || n == 0 || took < 200*time.Millisecond {
		t.Errorf("%s, %d bytes, %v, after %v", response.Status, n, err, took)
	}
}
