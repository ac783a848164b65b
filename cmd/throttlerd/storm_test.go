package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

var (
	calls   = flag.Int("calls", 500, "how many calls TestReloadsUnderLoad and TestProcessesEndUnderLoad make")
	program = flag.String("program", "", "runs the program with this environment, in JSON")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *program != "" {
		var environ []string
		testserver.SelfJob(*program, &environ)
		os.Args = os.Args[:1]
		for _, v := range environ {
			name, value, _ := strings.Cut(v, "=")
			_ = os.Setenv(name, value)
		}
		main()
		return
	}
	os.Exit(m.Run())
}

// version returns the n-th version of a file, which is broken if n is odd.
func version(n int) string {
	limit := 20 + 10*(n/2%4)
	text := fmt.Sprintf("domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: %d, name: v%d}}\n", limit, limit)
	if n%2 == 0 {
		return text
	}
	broken := []string{
		strings.Replace(text, "year", "fortnight", 1),
		strings.Replace(text, "name", "title", 1),
		strings.Replace(text, "domain: d", "", 1),
		text[:len(text)-4],
		"",
		text + "---\n" + text,
		"\x00",
	}
	return broken[n/2%len(broken)]
}

// client is a user that asks repeatedly, and counts its usage.
type client struct {
	name string
	used uint32
}

// ask asks once. It returns an error if the call was dropped, or if no version of the file
// explains the answer.
func (c *client) ask(ctx context.Context, rls ratelimitv3.RateLimitServiceClient) (over bool, err error) {
	resp, err := rls.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "d", Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: c.name}}},
	}})
	if err != nil {
		return false, err
	}
	s := resp.Statuses[0]
	limit := s.GetCurrentLimit().GetRequestsPerUnit()
	if over = resp.OverallCode == ratelimitv3.RateLimitResponse_OVER_LIMIT; !over {
		c.used++
	}
	left := uint32(0)
	if c.used < limit {
		left = limit - c.used
	}
	if limit < 20 || limit > 50 || s.CurrentLimit.Name != fmt.Sprint("v", limit) || over && c.used < limit || c.used > limit && !over || s.LimitRemaining != left {
		return over, fmt.Errorf("%s, which has used %d: %v", c.name, c.used, resp)
	}
	return over, nil
}

// load runs clients, with names that begin with name, until *calls calls are made and done
// reports true. It returns the clients.
func load(t *testing.T, name string, rls ratelimitv3.RateLimitServiceClient, done func() bool, failed func(c *client, err error)) (all []*client) {
	t.Helper()
	workers, pause := 8, time.Duration(0)
	if *calls < 100_000 { // leave time for other tests
		workers, pause = 16, 2*time.Millisecond
	}
	var made atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for n := 0; int(made.Load()) < *calls || !done(); n++ {
				c := &client{name: fmt.Sprintf("%s-%d-%d", name, w, n)}
				for refused := 0; refused < 10 && !t.Failed(); {
					made.Add(1)
					time.Sleep(pause)
					over, err := c.ask(t.Context(), rls)
					if err != nil {
						failed(c, err)
						break // its usage is unknown
					}
					if over {
						refused++
					}
				}
				mu.Lock()
				all = append(all, c)
				mu.Unlock()
				if t.Failed() {
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d calls of %d clients", made.Load(), len(all))
	return all
}

// The file changes every 100 ms, and half of its versions are broken: no call is dropped, no
// window restarts, and some version explains each refusal.
//
//	go test -run ReloadsUnderLoad -timeout 2h . -calls 10000000
func TestReloadsUnderLoad(t *testing.T) {
	t.Parallel() // it waits most of the time
	d := started(t, version(0), "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+testserver.Redis(t).Addr, "WEIR_DEADLINE=10s", "LOG_LEVEL=error")
	d.remains("first", 19)
	var written atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				d.write(version(n))
				written.Add(1)
			}
		}
	}()
	loads := func(name string) int { return d.counter("ratelimit_service_config_load_" + name) }
	// The file is read less often than it is written: some versions of each kind must be read.
	both := func() bool { return written.Load() >= 10 && loads("success") > 1 && loads("error") > 0 }
	load(t, "a", d.rls, both, func(c *client, err error) { t.Errorf("a call was dropped or its answer is wrong: %v", err) })
	close(stop)
	<-stopped
	t.Logf("of %d versions %d were put in force, and %d refused", written.Load(), loads("success"), loads("error"))
}

// process is the program in a separate process.
type process struct {
	*os.Process
	wait func() error
}

func startProcess(t *testing.T, socket string, environ ...string) *process {
	t.Helper()
	cmd, _ := testserver.Self(t, "program", append([]string{
		"GRPC_UDS=" + socket, "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "LOG_LEVEL=error",
	}, environ...))
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &process{cmd.Process, cmd.Wait}
}

// Two processes serve one proxy. One is terminated, and drops no call; one is killed, and the
// counts stay: answered calls are counted once, and the others at most once.
func TestProcessesEndUnderLoad(t *testing.T) {
	t.Parallel() // it waits most of the time
	d := &daemon{t: t, dir: t.TempDir()}
	d.write(version(0))
	environ := []string{"RUNTIME_ROOT=" + d.dir, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + testserver.Redis(t).Addr, "WEIR_DEADLINE=10s"}
	a, b := filepath.Join(d.dir, "a.sock"), filepath.Join(d.dir, "b.sock")
	first := startProcess(t, a, environ...)
	startProcess(t, b, environ...)
	r := manual.NewBuilderWithScheme("both")
	r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: "unix:" + a}, {Addr: "unix:" + b}}})
	// Sockets connect one after the other, and a pick fails unless one is ready.
	conn, err := grpc.NewClient("both:///", grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	rls := ratelimitv3.NewRateLimitServiceClient(conn)
	serves := func(socket string) {
		t.Helper()
		one, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer one.Close()
		d.health = grpc_health_v1.NewHealthClient(one)
		d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	}
	serves(a)
	serves(b)
	// end calls how while clients ask, and returns the clients when the process has ended.
	end := func(name string, how func(), p *process, failed func(*client, error)) (all []*client, status error) {
		t.Helper()
		ended := make(chan error, 1)
		time.AfterFunc(100*time.Millisecond, func() {
			how()
			ended <- p.wait()
		})
		all = load(t, name, rls, func() bool { return len(ended) > 0 }, failed)
		return all, <-ended
	}
	_, err = end("ended", func() { _ = first.Signal(syscall.SIGTERM) }, first, func(_ *client, err error) { t.Errorf("a call was dropped or its answer is wrong: %v", err) })
	if err != nil {
		t.Errorf("after SIGTERM the process ended with %v", err)
	}

	first = startProcess(t, a, environ...)
	serves(a)
	var mu sync.Mutex
	dropped := make(map[*client]bool)
	all, _ := end("killed", func() { _ = first.Kill() }, first, func(c *client, err error) {
		if status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		dropped[c] = true
	})
	t.Logf("%d calls were dropped with the killed process", len(dropped))
	for _, c := range all {
		if !dropped[c] {
			continue
		}
		_, err := c.ask(t.Context(), rls)
		if err != nil { // the dropped call was charged, or the count is wrong
			c.used++
			_, err = c.ask(t.Context(), rls)
		}
		if err != nil {
			t.Errorf("after a process was killed: %v", err)
		}
	}
}
