package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// peerVersion is the measured version of envoyproxy/ratelimit, which tags no versions.
const peerVersion = "v1.4.1-0.20260122083618-3fb702589d36"

// Names of the measured programs.
const (
	ours      = "throttlerd"
	theirs    = "envoyproxy/ratelimit"
	pipelined = "envoyproxy/ratelimit, pipelined" // as its README recommends for load
	floor     = "a handler that decides nothing"
)

// program is a service, and how to start it.
type program struct {
	name string
	path string
	args []string
	env  []string
}

// build returns the programs to measure, and builds those without a path.
func build(ctx context.Context, dir, throttlerd, peer string) ([]program, error) {
	if throttlerd == "" {
		throttlerd = filepath.Join(dir, "throttlerd")
		if err := goTool(ctx, "../../../cmd/throttlerd", nil, "build", "-o", throttlerd, "."); err != nil {
			return nil, err
		}
	}
	if peer == "" {
		peer = filepath.Join(dir, "service_cmd")
		if err := goTool(ctx, dir, []string{"GOBIN=" + dir}, "install", "github.com/envoyproxy/ratelimit/src/service_cmd@"+peerVersion); err != nil {
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []program{
		{name: ours, path: throttlerd},
		{name: theirs, path: peer},
		{name: pipelined, path: peer, env: []string{"REDIS_PIPELINE_WINDOW=150us", "REDIS_PIPELINE_LIMIT=8"}},
		{name: floor, path: self, args: []string{"-empty"}},
	}, nil
}

func goTool(ctx context.Context, dir string, env []string, args ...string) error {
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir, c.Env = dir, append(append(os.Environ(), "GOWORK=off"), env...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// descriptors returns the configuration of both services: keys a to e, with counts by client.
func descriptors() string {
	var b strings.Builder
	b.WriteString("domain: bench\ndescriptors:\n")
	for _, key := range keys {
		fmt.Fprintf(&b, "  - key: %s\n    rate_limit: {unit: hour, requests_per_unit: 1000000000}\n", key)
	}
	return b.String()
}

var keys = []string{"a", "b", "c", "d", "e"}

// process is a running program.
type process struct {
	cmd  *exec.Cmd
	addr string
	log  *os.File
}

// serviceCore is the core of a service and its Redis.
const serviceCore = "0"

// pin restricts a process and all its threads to these cores.
func pin(ctx context.Context, pid int, cores string) error {
	if out, err := exec.CommandContext(ctx, "taskset", "-a", "-p", "-c", cores, strconv.Itoa(pid)).CombinedOutput(); err != nil {
		return fmt.Errorf("taskset: %w\n%s", err, out)
	}
	return nil
}

// start starts p, with its counts in redis, and returns when it answers.
func (p *program) start(ctx context.Context, dir, redis string, pins bool) (_ *process, err error) {
	runtime, err := os.MkdirTemp(dir, "runtime-")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(runtime, "ratelimit", "config")
	if err := os.MkdirAll(config, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(config, "bench.yaml"), []byte(descriptors()), 0o600); err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	s := &process{addr: "127.0.0.1:" + ports[1]}
	if s.log, err = os.Create(filepath.Join(runtime, "log")); err != nil {
		return nil, err
	}
	args := append([]string{p.path}, p.args...)
	if len(p.args) > 0 {
		args = append(args, s.addr)
	}
	if pins { // before its first thread starts
		args = append([]string{"taskset", "-c", serviceCore}, args...)
	}
	s.cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.cmd.Env = append(os.Environ(),
		"HOST=127.0.0.1", "PORT="+ports[0], "GRPC_HOST=127.0.0.1", "GRPC_PORT="+ports[1], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+ports[2],
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis, "RUNTIME_ROOT="+runtime, "RUNTIME_SUBDIRECTORY=ratelimit", "USE_STATSD=false", "LOG_LEVEL=warn")
	s.cmd.Env = append(s.cmd.Env, p.env...)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		s.stop()
		text, _ := os.ReadFile(s.log.Name())
		return nil, fmt.Errorf("%s: %w\n%s", p.name, err, text)
	}
	return s, nil
}

// ready waits until the service answers.
func (s *process) ready(ctx context.Context) error {
	c, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		_, err := rls.NewRateLimitServiceClient(c).ShouldRateLimit(ctx, request(0, 1), grpc.WaitForReady(true))
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *process) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = s.log.Close()
}

func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		addr, err := testserver.FindAddr()
		if err != nil {
			return nil, err
		}
		_, port, _ := net.SplitHostPort(addr)
		ports = append(ports, port)
	}
	return ports, nil
}

// cpuOf returns the CPU time used by processes.
func cpuOf(pids ...int) (time.Duration, error) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux
	var sum time.Duration
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		_, after, ok := strings.Cut(string(text), ") ")
		fields := strings.Fields(after)
		if !ok || len(fields) < 13 {
			return 0, errors.New("/proc has no times of the process")
		}
		for _, field := range fields[11:13] { // utime and stime
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(n) * tick
		}
	}
	return sum, nil
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
