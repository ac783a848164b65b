package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// serviceVersion is the measured version of envoyproxy/ratelimit, which tags no versions.
const serviceVersion = "v1.4.1-0.20260122083618-3fb702589d36"

// floor is the peer with the lowest possible cost of a call.
const floor = "a handler that decides nothing"

// program is a service, and how to start it. Its path is a name in the lab's programs.
type program struct {
	name string
	role peers.Role
	path string
	args []string
	env  []string
}

var services = []program{
	{name: "throttlerd", role: peers.Ours, path: "throttlerd"},
	{name: "envoyproxy/ratelimit", path: "service_cmd"},
	// As its README recommends for load.
	{name: "envoyproxy/ratelimit, pipelined", path: "service_cmd", env: []string{"REDIS_PIPELINE_WINDOW=150us", "REDIS_PIPELINE_LIMIT=8"}},
	{name: floor, role: peers.Ceiling, args: []string{"-empty"}},
}

// serviceRows measure services over gRPC, with the same descriptors, on a redis-server: calls
// of 1, 2 and 5 descriptors; HTTP requests through an Envoy, if there is one in PATH; and a call while
// Redis hangs, with Envoy's default deadline and with none.
func (l *lab) serviceRows() (rows []row) {
	add := func(name string, x int, measure func(context.Context, *process) sample) {
		r := row{name: name, x: float64(x)}
		for _, p := range services {
			if p.name == floor && x != 1 {
				continue
			}
			r.cells = append(r.cells, cell{p.name, p.role, func(ctx context.Context) sample {
				service := l.start(ctx, p)
				defer service.stop()
				return measure(ctx, service)
			}})
		}
		rows = append(rows, r)
	}
	for _, n := range []int{1, 2, 5} {
		add(fmt.Sprintf("service/descriptors/%d", n), n, func(ctx context.Context, p *process) sample {
			return l.call(ctx, p.addr, n, p.cmd.Process.Pid, l.redis("main").Pid())
		})
	}
	if _, err := exec.LookPath("envoy"); err == nil {
		add("service/envoy", 1, func(ctx context.Context, p *process) sample {
			return l.callEnvoy(ctx, p, p.cmd.Process.Pid, l.redis("main").Pid())
		})
	}
	add("service/hung/20ms", 0, func(ctx context.Context, p *process) sample { return l.callHung(ctx, p.addr, 20*time.Millisecond) })
	add("service/hung/none", 0, func(ctx context.Context, p *process) sample { return l.callHung(ctx, p.addr, 0) })
	return rows
}

// build builds the services. With several cores, it gives one to the services and Redis, and
// the others to the load.
func (l *lab) build(ctx context.Context) {
	if l.programs != "" {
		return
	}
	l.programs = must(os.MkdirTemp("", "weir-service-"))
	for _, args := range [][]string{{"-C", "../../cmd/throttlerd", "install", "."}, {"-C", l.programs, "install", "github.com/envoyproxy/ratelimit/src/service_cmd@" + serviceVersion}} {
		c := exec.CommandContext(ctx, "go", args...)
		c.Env = append(os.Environ(), "GOWORK=off", "GOBIN="+l.programs)
		if output, err := c.CombinedOutput(); err != nil {
			check(fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, output))
		}
	}
	pin(ctx, os.Getpid(), fmt.Sprintf("1-%d", runtime.NumCPU()-1))
	pin(ctx, l.redis("main").Pid(), serviceCore)
}

// serviceCore is the core of a service and its Redis.
const serviceCore = "0"

// pin restricts a process and its threads to these cores, if the machine has several.
func pin(ctx context.Context, pid int, cores string) {
	if runtime.NumCPU() > 1 {
		must(exec.CommandContext(ctx, "taskset", "-a", "-p", "-c", cores, strconv.Itoa(pid)).Output())
	}
}

// process is a running service.
type process struct {
	cmd  *exec.Cmd
	addr string
	log  strings.Builder
}

// descriptors are the keys that both services limit, by client.
var descriptors = []string{"a", "b", "c", "d", "e"}

// start starts a service, and returns when it answers.
func (l *lab) start(ctx context.Context, p program) *process {
	l.build(ctx)
	config := filepath.Join(l.programs, "ratelimit", "config")
	check(os.MkdirAll(config, 0o755)) //nolint:gosec // the services read it
	text := "domain: bench\ndescriptors:\n"
	for _, key := range descriptors {
		text += fmt.Sprintf("  - key: %s\n    rate_limit: {unit: hour, requests_per_unit: 1000000000}\n", key)
	}
	check(os.WriteFile(filepath.Join(config, "bench.yaml"), []byte(text), 0o644)) //nolint:gosec // the services read it
	var ports [3]string
	for i := range ports {
		_, ports[i], _ = net.SplitHostPort(must(testserver.FindAddr()))
	}
	s := &process{addr: "127.0.0.1:" + ports[1]}
	path := must(os.Executable())
	if p.path != "" {
		path = filepath.Join(l.programs, p.path)
	} else {
		p.args = append(p.args, s.addr)
	}
	args := append([]string{path}, p.args...)
	if runtime.NumCPU() > 1 { // pinned before its first thread starts
		args = append([]string{"taskset", "-c", serviceCore}, args...)
	}
	s.cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.Env = append(append(os.Environ(),
		"HOST=127.0.0.1", "PORT="+ports[0], "GRPC_HOST=127.0.0.1", "GRPC_PORT="+ports[1], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+ports[2],
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+l.redis("main").Addr, "RUNTIME_ROOT="+l.programs, "RUNTIME_SUBDIRECTORY=ratelimit", "USE_STATSD=false", "LOG_LEVEL=warn"), p.env...)
	check(s.cmd.Start())
	if err := ready(ctx, s.addr); err != nil {
		s.stop()
		check(fmt.Errorf("%s: %w\n%s", p.name, err, s.log.String()))
	}
	return s
}

func (s *process) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// client returns a client of the service at addr.
func client(addr string) (rls.RateLimitServiceClient, *grpc.ClientConn) {
	c := must(grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials())))
	return rls.NewRateLimitServiceClient(c), c
}

// ready waits until the service answers.
func ready(ctx context.Context, addr string) error {
	c, conn := client(addr)
	defer conn.Close()
	return until(ctx, func(ctx context.Context) error {
		_, err := c.ShouldRateLimit(ctx, request("0", 1), grpc.WaitForReady(true))
		return err
	})
}

// until calls f until it returns nil, for at most 20 s, and returns its last error.
func until(ctx context.Context, f func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if err = f(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// request returns a request of a client with n descriptors. Requests with different numbers of
// descriptors belong to different clients.
func request(client string, n int) *rls.RateLimitRequest {
	r := &rls.RateLimitRequest{Domain: "bench"}
	for _, key := range descriptors[:n] {
		r.Descriptors = append(r.Descriptors, &common.RateLimitDescriptor{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: fmt.Sprintf("%s-%d", client, n)}},
		})
	}
	return r
}

// call puts a load of calls of n descriptors on a service, and returns the costs of a call.
// pids are the processes whose CPU time counts.
func (l *lab) call(ctx context.Context, addr string, n int, pids ...int) sample {
	connections := make(chan *connection, l.connections)
	for range l.connections {
		c := must(dial(addr, rls.RateLimitService_ShouldRateLimit_FullMethodName))
		defer c.Close()
		connections <- c
	}
	messages := make(map[string][]byte)
	for _, key := range l.keys {
		messages[key] = must(proto.Marshal(request(key, n)))
	}
	return l.calls(ctx, func(_ context.Context, key string) (bool, error) {
		c := <-connections
		defer func() { connections <- c }()
		message, err := c.call(messages[key])
		var answer rls.RateLimitResponse
		if err == nil {
			err = proto.Unmarshal(message, &answer)
		}
		return answer.OverallCode == rls.RateLimitResponse_OK, err
	}, pids)
}

// calls puts a load of take on a service, and returns the costs of a call.
func (l *lab) calls(ctx context.Context, take func(context.Context, string) (bool, error), pids []int) sample {
	r := must(measure.Load{
		Goroutines: l.connections, Warmup: l.warmup(), Duration: l.sample, Keys: l.keys, Take: take,
		ServerCPU: func() time.Duration { return cpuOf(pids) },
	}.Run(ctx))
	if r.ServerCPU == 0 {
		check(errors.New("the service was not asked"))
	}
	if r.Errors > r.Decisions/100 {
		check(fmt.Errorf("%d calls failed: %w", r.Errors, r.Err))
	}
	check(plausible(r, pattern{quota: unlimited}))
	calls := float64(r.Decisions)
	return sample{values: map[string]float64{
		"per_s": calls / r.Elapsed.Seconds(), "cpu_us": micros(r.ServerCPU) / calls, "p50_us": micros(r.P50), "p99_us": micros(r.P99),
	}}
}

// callHung stops the redis-server, and measures how long a service takes to answer.
func (l *lab) callHung(ctx context.Context, addr string, deadline time.Duration) (s sample) {
	c, conn := client(addr)
	defer conn.Close()
	must(c.ShouldRateLimit(ctx, request("0", 1)))
	server := l.redis("main")
	server.Pause()
	defer server.Resume()
	call, cancel := context.WithTimeout(ctx, cmp.Or(deadline, 5*time.Second))
	defer cancel()
	begin := time.Now()
	r, err := c.ShouldRateLimit(call, request("1", 1))
	s.values = map[string]float64{"took_ms": micros(time.Since(begin)) / 1000}
	switch {
	case err == nil:
		s.text = r.OverallCode.String()
	case call.Err() != nil: // the caller's deadline, not an error of the service
		s.text = "no answer"
	default:
		s.text = "error " + status.Code(err).String()
	}
	return s
}

// cpuOf returns the CPU time used by processes.
func cpuOf(pids []int) (sum time.Duration) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux
	for _, pid := range pids {
		_, stat, _ := strings.Cut(string(must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))), ") ")
		fields := strings.Fields(stat)
		if len(fields) < 13 {
			check(errors.New("/proc has no times of the process"))
		}
		for _, field := range fields[11:13] { // utime and stime
			sum += time.Duration(must(strconv.ParseInt(field, 10, 64))) * tick
		}
	}
	return sum
}

type emptyService struct {
	rls.UnimplementedRateLimitServiceServer
}

func (emptyService) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}, nil
}

// serveEmpty serves a service that decides nothing.
func serveEmpty(ctx context.Context, addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(s, emptyService{})
	context.AfterFunc(ctx, s.Stop)
	return s.Serve(l)
}
