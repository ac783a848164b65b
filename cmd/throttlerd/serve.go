package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/weir-go/weir/cmd/throttlerd/forwardauth"
	"github.com/weir-go/weir/cmd/throttlerd/settings"
	"github.com/weir-go/weir/config"
)

// healthName is the service that proxies ask about.
const healthName = "ratelimit"

// service is all that runs.
type service struct {
	settings *settings.Settings
	log      *slog.Logger
	stack    *config.Stack
	health   *health.Server
	grpc     *grpc.Server
	http     []*http.Server
}

// serve serves until ctx is done, and then until the calls in flight are.
func serve(ctx context.Context, s *settings.Settings, log *slog.Logger) error {
	program := new(forwardauth.Program)
	c, err := s.Config(&config.Options{Log: log, Program: program})
	if err != nil {
		return &usageError{err}
	}
	stack, err := c.Open()
	if err != nil {
		return &usageError{err}
	}
	defer func() {
		if err := stack.Close(); err != nil {
			log.Warn("leases were not given back; their units count until their windows end", "error", err)
		}
	}()
	sv := &service{settings: s, log: log, stack: stack, health: health.NewServer()}
	sv.grpc = grpc.NewServer(
		grpc.NumStreamWorkers(uint32(2*runtime.GOMAXPROCS(0))), // a stack that has grown is used again
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: s.MaxConnectionAge, MaxConnectionAgeGrace: s.MaxConnectionAgeGrace}),
	)
	grpc_health_v1.RegisterHealthServer(sv.grpc, sv.health)
	reflection.Register(sv.grpc)
	failed := make(chan error, 8)
	if err := errors.Join(sv.listen(failed), sv.serveForwardAuth(program.ForwardAuth, failed)); err != nil {
		return errors.Join(err, sv.close())
	}
	sv.health.SetServingStatus(healthName, grpc_health_v1.HealthCheckResponse_SERVING)
	log.Warn("serving", "counts", c.Where()) // a line at any level, as envoyproxy/ratelimit has
	select {
	case err = <-failed:
		return errors.Join(err, sv.close())
	case <-ctx.Done():
	}
	return sv.drain(context.WithoutCancel(ctx))
}

// listen opens the ports and serves them. What fails later is sent to failed.
func (sv *service) listen(failed chan<- error) error {
	network, addr := sv.settings.GRPC()
	if network == "unix" {
		_ = os.Remove(addr) // of a process that was killed; a directory that is not empty stays
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		return fmt.Errorf("gRPC: %w", err)
	}
	go func() {
		if err := sv.grpc.Serve(l); err != nil {
			failed <- err
		}
	}()
	return nil
}

// drain tells proxies to leave, and ends when the calls in flight have. It is bounded: a
// Watch of the health is a call that its client never ends.
func (sv *service) drain(ctx context.Context) error {
	sv.log.Warn("ending: calls in flight are finished; a second signal ends at once")
	sv.health.Shutdown()
	sleep(ctx, sv.settings.DrainWait)
	ctx, cancel := context.WithTimeout(ctx, sv.settings.DrainTimeout)
	defer cancel()
	done := make(chan struct{})
	go func() { sv.grpc.GracefulStop(); close(done) }()
	var errs []error
	for _, s := range sv.http {
		errs = append(errs, s.Shutdown(ctx))
	}
	select {
	case <-done:
	case <-ctx.Done():
		sv.grpc.Stop()
		<-done
	}
	return errors.Join(errs...)
}

func (sv *service) close() error {
	sv.grpc.Stop()
	var errs []error
	for _, s := range sv.http {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// checkAll says whether all that the environment names is right.
func checkAll(s *settings.Settings, log *slog.Logger, stdout io.Writer) error {
	program := new(forwardauth.Program)
	c, err := s.Config(&config.Options{Log: log, Program: program})
	if err == nil {
		err = errors.Join(c.Check(), checkForwardAuth(c, program.ForwardAuth))
	}
	if err != nil {
		return &usageError{err}
	}
	fmt.Fprintln(stdout, "the configuration is right")
	return nil
}
