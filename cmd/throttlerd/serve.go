package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/weir-go/weir/cmd/internal/build"
	"github.com/weir-go/weir/cmd/internal/cmdline"
	"github.com/weir-go/weir/cmd/throttlerd/internal/admin"
	"github.com/weir-go/weir/cmd/throttlerd/internal/files"
	"github.com/weir-go/weir/cmd/throttlerd/internal/forwardauth"
	"github.com/weir-go/weir/cmd/throttlerd/internal/ports"
	"github.com/weir-go/weir/cmd/throttlerd/internal/rls"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/cmd/throttlerd/internal/xds"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler/policies"
)

// streamWorkers is the number of goroutines with grown stacks that are kept for calls: as many
// as wait for a store in a busy service. More calls get their own goroutines.
const streamWorkers = 256

// window is how many bytes of calls a client may send before they are read. Without it, gRPC
// measures the bandwidth with a ping for each call, a read and a write that a call of a few
// hundred bytes doesn't need.
const window = 1 << 20

// A client's unfinished calls take at most maxStreams times maxMessage bytes for each of its
// connections, 64 MiB. Further calls wait at the client. Headers of requests in descriptors
// are 96 KiB at most in Envoy.
const (
	maxStreams = 256
	maxMessage = 256 << 10
)

// maxIdle is how long a connection of gRPC may be without calls. A proxy opens another when it
// has one.
const maxIdle = 15 * time.Minute

// healthName is the service that proxies ask about.
const healthName = "ratelimit"

// service is the running service.
type service struct {
	settings *settings.Settings
	log      *slog.Logger
	stack    *config.Stack
	observed *observation
	registry *prometheus.Registry
	table    *policies.Table
	rls      *rls.Server
	xds      *xds.Client    // nil if the configuration is in files
	files    *files.Watcher // or nil
	health   *health.Server
	ending   atomic.Bool
	grpc     *grpc.Server
	http     []*http.Server

	levels map[string]consistency.Level // of policies of all configurations that were ever in force

	forward *forwardauth.Keys // nil without forward auth
}

// serve serves until ctx is done, and then until the calls in flight have ended.
func serve(ctx context.Context, s *settings.Settings, log *slog.Logger) error {
	observed, err := newObservation(ctx, s, log)
	if err != nil {
		return err
	}
	defer observed.close(log)
	program := new(forwardauth.Program)
	table := new(policies.Table)
	c, err := s.Config(&config.Options{Log: log, Observer: observed.Observer, Program: program, Levels: true, Table: table, CountsHavePolicies: true})
	if err == nil {
		err = checkShares(c, isAlone(s, program.ForwardAuth))
	}
	if err != nil {
		return cmdline.Usage(err)
	}
	for _, warning := range warningsOf(c) {
		if !strings.HasPrefix(warning, "policy ") { // WatchFile warns of these
			log.Warn(warning)
		}
	}
	if s.ConfigFile != "" {
		// Before Open: the policies and overrides of a server are above the file's.
		watch, err := policies.WatchFile(table.Source("file"), s.ConfigFile, &policies.FileOptions{Parse: c.ParsePolicies, Observer: observed.Observer})
		if err != nil {
			return cmdline.Usage(err)
		}
		defer watch.Close()
	}
	stack, err := c.Open()
	if err != nil {
		return cmdline.Usage(err)
	}
	defer func() {
		if err := stack.Close(); err != nil {
			log.Warn("leases were not given back; their units count until their windows end", "error", err)
		}
	}()
	observed.show(stack)
	sv := newService(s, log, stack, table, observed)
	defer sv.rls.Close() // before the stack
	sv.forward = program.ForwardAuth
	if s.ConfigType != "FILE" {
		if sv.xds, err = xds.NewClient(s.XDS, log, sv.apply); err != nil {
			return cmdline.Usage(err)
		}
		defer sv.xds.Close()
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	sv.begin(watching)
	client, closeClient, err := sv.clientPage()
	if err != nil {
		return errors.Join(err, sv.close())
	}
	defer func() { _ = closeClient() }() // nothing was written that could be lost
	failed := make(chan error, 8)
	if err := errors.Join(sv.listen(client, failed), sv.serveForwardAuth(program.ForwardAuth, failed)); err != nil {
		return errors.Join(err, sv.close())
	}
	if sv.files != nil {
		go sv.files.Watch(watching)
	}
	release, revision := build.Version()
	log.Warn("serving", "version", release, "revision", revision, "counts", c.Places(), "overrides", cmp.Or(c.PoliciesAt(), "none: policies_at is not set")) // a line at any level, like envoyproxy/ratelimit
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for {
		select {
		case err = <-failed:
			return errors.Join(err, sv.close())
		case <-hangups:
			sv.reread()
		case <-ctx.Done():
			return sv.drain(context.WithoutCancel(ctx))
		}
	}
}

// reread reads the file of WEIR_CONFIG again. The files of descriptors are watched.
func (sv *service) reread() {
	sv.log.Warn("SIGHUP: the files of descriptors, and the policies of WEIR_CONFIG, are in force within seconds of a change; the rest is read at the start")
	if sv.settings.ConfigFile == "" {
		return
	}
	if err := sv.stack.Reread(); err != nil {
		sv.log.Error("the file of WEIR_CONFIG was not read again", "error", err)
	}
}

// newService returns the service of a stack, without a configuration of descriptors yet.
func newService(s *settings.Settings, log *slog.Logger, stack *config.Stack, table *policies.Table, observed *observation) *service {
	sv := &service{settings: s, log: log, stack: stack, table: table, observed: observed, registry: prometheus.NewRegistry(), health: health.NewServer(), levels: make(map[string]consistency.Level)}
	sv.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	sv.rls = rls.New(stack.Backend, stack.Clock(), &rls.Options{Answers: s.Answers, Remote: stack.Config.Remote(), Metrics: rls.NewMetrics(sv.registry, s.Compatible), Table: table, Observer: observed.Observer})
	sv.grpc = grpc.NewServer(append(observed.tracing.ServerOptions,
		grpc.NumStreamWorkers(streamWorkers),
		grpc.WaitForHandlers(true), // they use the stack
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxMessage),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle, MaxConnectionAge: s.MaxConnectionAge, MaxConnectionAgeGrace: s.MaxConnectionAgeGrace}),
		// gRPC's default minimum of five minutes closes the connections of proxies that ping
		// more often.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Nanosecond, PermitWithoutStream: true}),
	)...)
	sv.countCache()
	ratelimitv3.RegisterRateLimitServiceServer(sv.grpc, sv.rls)
	grpc_health_v1.RegisterHealthServer(sv.grpc, sv.health)
	reflection.Register(sv.grpc)
	sv.tellHealth()
	return sv
}

// countCache adds the counters of the refusal cache by the names of envoyproxy/ratelimit's local
// cache.
func (sv *service) countCache() {
	numbers := func() rls.CacheStats { s, _ := sv.rls.Cache(); return s }
	if _, compatible := sv.rls.Cache(); !compatible {
		cache := sv.stack.Refusals
		if cache == nil {
			return
		}
		numbers = func() rls.CacheStats {
			s := cache.Stats()
			return rls.CacheStats{Hits: s.Answered, Misses: s.Asked, Counts: s.Keys, Evicted: s.PushedOut}
		}
	}
	for name, value := range map[string]func(s rls.CacheStats) int64{
		"hitCount": func(s rls.CacheStats) int64 { return s.Hits }, "missCount": func(s rls.CacheStats) int64 { return s.Misses },
		"lookupCount": func(s rls.CacheStats) int64 { return s.Hits + s.Misses }, "entryCount": func(s rls.CacheStats) int64 { return s.Counts },
		"evacuateCount": func(s rls.CacheStats) int64 { return s.Evicted },
	} {
		sv.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "ratelimit_localcache_" + name, Help: "Of the refusal cache, as of envoyproxy/ratelimit's local cache."},
			func() float64 { return float64(value(numbers())) }))
	}
}

// healthy reports whether proxies should send calls: there is a configuration, or the settings
// make the service healthy without one. With HealthyOnceConfigured it must not be empty.
func (sv *service) healthy() bool {
	set := sv.rls.Set()
	configured := set != nil && (!sv.settings.HealthyOnceConfigured || !set.Empty())
	return !sv.ending.Load() && (configured || set == nil && sv.settings.HealthyAtOnce && !sv.settings.HealthyOnceConfigured)
}

func (sv *service) tellHealth() {
	status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if sv.healthy() {
		status = grpc_health_v1.HealthCheckResponse_SERVING
	}
	sv.health.SetServingStatus(healthName, status)
}

// listen opens the ports and serves them, with the page about one client. It sends later errors to failed.
func (sv *service) listen(client http.Handler, failed chan<- error) error {
	network, addr := sv.settings.GRPC()
	if network == "unix" {
		if f, err := os.Lstat(addr); err == nil && f.Mode().Type() == fs.ModeSocket {
			_ = os.Remove(addr) // left by a process that was killed
		}
	}
	l, err := (&port{network: network, addr: addr, connections: ports.GRPC(), certs: sv.settings.GRPCCerts()}).listen(sv.log)
	if err != nil {
		return fmt.Errorf("gRPC: %w", err)
	}
	public, debug := admin.Public(sv.rls, sv.healthy), admin.Debug(sv.rls, sv.registry)
	sv.probes(public)
	sv.probes(debug)
	debug.Handle("/debug/weir", sv.observed.page.Handler())
	debug.Handle("/debug/weir/client", client)
	pages := map[*port]http.Handler{
		{addr: sv.settings.HTTP(), certs: sv.settings.HTTPCerts()}: public,
		{addr: sv.settings.Debug()}:                                debug,
	}
	if sv.settings.UsePrometheus {
		mux := http.NewServeMux()
		mux.Handle(sv.settings.PrometheusPath, admin.Metrics(sv.registry))
		pages[&port{addr: sv.settings.PrometheusAddr}] = mux
	}
	for p, h := range pages {
		p.network, p.connections = "tcp", ports.HTTP()
		if err := sv.serveHTTP(p, h, failed); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	serveOn("gRPC", l, sv.grpc.Serve, failed) // the last, so that a service that answers has all ports open
	return nil
}

// serveHTTP opens a port, and serves h on it.
func (sv *service) serveHTTP(p *port, h http.Handler, failed chan<- error) error {
	l, err := p.listen(sv.log)
	if err != nil {
		return err
	}
	s := ports.NewServer(h, sv.log)
	sv.http = append(sv.http, s)
	serveOn(p.addr, l, s.Serve, failed)
	return nil
}

// serveOn serves the connections of l. It sends later errors to failed.
func serveOn(label string, l net.Listener, serve func(net.Listener) error, failed chan<- error) {
	go func() {
		if err := serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("%s: %w", label, err)
		}
	}()
}

// drain makes proxies leave, and returns when the calls in flight have ended. The wait is
// bounded, because a client never ends a Watch of the health.
func (sv *service) drain(ctx context.Context) error {
	sv.log.Warn("ending: calls in flight are finished; a second signal ends at once")
	sv.ending.Store(true)
	sv.health.Shutdown()
	every.Wait(ctx, sv.settings.DrainWait)
	ctx, cancel := context.WithTimeout(ctx, sv.settings.DrainTimeout)
	defer cancel()
	done := make(chan struct{})
	go func() { sv.grpc.GracefulStop(); close(done) }()
	errs := make([]error, len(sv.http))
	var pages sync.WaitGroup
	for i, s := range sv.http { // all at once: no port waits for another
		pages.Go(func() {
			if errs[i] = s.Shutdown(ctx); errs[i] != nil {
				_ = s.Close() // what is left
			}
		})
	}
	pages.Wait()
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
