package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// counts are the numbers of descriptors in a request.
var counts = []int{1, 2, 5}

// sample is a measurement, or the median of several.
type sample struct {
	PerSecond float64 `json:"per_s"`
	CPU       float64 `json:"cpu_us"` // of the service and its Redis, for each decision
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
}

// request returns a request of client i with n descriptors. Requests with different numbers of
// descriptors belong to different clients.
func request(i, n int) *rls.RateLimitRequest {
	r := &rls.RateLimitRequest{Domain: "bench"}
	for _, key := range keys[:n] {
		r.Descriptors = append(r.Descriptors, &common.RateLimitDescriptor{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: fmt.Sprintf("client-%d-%06d", n, i)}},
		})
	}
	return r
}

// measure measures all programs in each pass, in random order.
func (s *settings) measure(ctx context.Context, dir string, programs []program) (*results, error) {
	redis, err := testserver.StartRedis()
	if err != nil {
		return nil, err
	}
	defer redis.Stop()
	if s.pins {
		if err := pin(ctx, redis.Pid(), serviceCore); err != nil {
			return nil, err
		}
	}
	all := newResults(s)
	for pass := range s.passes {
		for _, i := range rand.Perm(len(programs)) {
			p := programs[i]
			_, _ = fmt.Fprintf(s.progress, "pass %d of %d: %s\n", pass+1, s.passes, p.name)
			if err := s.visit(ctx, dir, &p, redis, all); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return all, nil
}

// visit adds the measurements of one program to all.
func (s *settings) visit(ctx context.Context, dir string, p *program, redis *testserver.RedisServer, all *results) error {
	service, err := p.start(ctx, dir, redis.Addr, s.pins)
	if err != nil {
		return err
	}
	defer service.stop()
	for _, n := range counts {
		if p.name == floor && n > 1 {
			continue
		}
		if _, err := s.load(ctx, service.addr, n, s.sample/4, nil); err != nil { // lets it see most keys
			return err
		}
		measured, err := s.load(ctx, service.addr, n, s.sample, []int{service.cmd.Process.Pid, redis.Pid()})
		if err != nil {
			return err
		}
		all.add(p.name, n, measured)
	}
	if p.name == floor {
		return nil
	}
	hung, err := s.hung(ctx, service.addr, redis.Pid())
	all.Hung[p.name] = append(all.Hung[p.name], hung...)
	return err
}

// load calls on all connections, for length.
func (s *settings) load(ctx context.Context, addr string, descriptors int, length time.Duration, pids []int) (sample, error) {
	connections := make([]*wire, s.connections)
	for i := range connections {
		c, err := dial(addr)
		if err != nil {
			return sample{}, err
		}
		defer c.close()
		connections[i] = c
	}
	requests := make([][]byte, s.clients)
	for i := range requests {
		message, err := proto.Marshal(request(i, descriptors))
		if err != nil {
			return sample{}, err
		}
		requests[i] = frame(message)
	}
	cpu, err := cpuOf(pids...)
	if err != nil {
		return sample{}, err
	}
	start := time.Now()
	latencies, errs := make([][]time.Duration, len(connections)), make([][]error, len(connections))
	var wg sync.WaitGroup
	for i, c := range connections {
		wg.Go(func() { latencies[i], errs[i] = ask(ctx, c, requests, start.Add(length)) })
	}
	wg.Wait()
	elapsed := time.Since(start)
	if failed := slices.Concat(errs...); len(failed) > 0 {
		calls := len(failed) + len(slices.Concat(latencies...))
		if _, err := fmt.Fprintf(s.progress, "%d of %d calls failed: %v\n", len(failed), calls, failed[0]); err != nil || len(failed) > calls/100 {
			return sample{}, fmt.Errorf("%d of %d calls failed: %w", len(failed), calls, failed[0])
		}
	}
	after, err := cpuOf(pids...)
	if err != nil {
		return sample{}, err
	}
	sorted := slices.Concat(latencies...)
	if len(sorted) == 0 {
		return sample{}, nil // no sample was requested
	}
	slices.Sort(sorted)
	micro := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	n := len(sorted)
	return sample{float64(n) / elapsed.Seconds(), micro(after-cpu) / float64(n), micro(sorted[n/2]), micro(sorted[n*99/100])}, nil
}

// ask makes one call after another until end. It returns the latencies of the successful calls
// and the errors of the others.
func ask(ctx context.Context, c *wire, requests [][]byte, end time.Time) (all []time.Duration, failed []error) {
	var r rls.RateLimitResponse
	for ctx.Err() == nil && time.Now().Before(end) {
		start := time.Now()
		message, err := c.call(rls.RateLimitService_ShouldRateLimit_FullMethodName, requests[rand.IntN(len(requests))])
		took := time.Since(start)
		if err != nil {
			return all, append(failed, err) // the connection is unusable
		}
		if err = proto.Unmarshal(message, &r); err == nil && r.OverallCode != rls.RateLimitResponse_OK {
			err = fmt.Errorf("answered %v; want OK", r.OverallCode)
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		all = append(all, took)
	}
	return all, failed
}

// deadlines are the deadlines of calls while Redis hangs: Envoy's default, and no deadline.
var deadlines = []time.Duration{20 * time.Millisecond, 0}

// hung stops the redis-server, and returns the answers to calls in that time.
func (s *settings) hung(ctx context.Context, addr string, redis int) ([]hungSample, error) {
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	client := rls.NewRateLimitServiceClient(c)
	if _, err := client.ShouldRateLimit(ctx, request(0, 1)); err != nil {
		return nil, err
	}
	if err := syscall.Kill(redis, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Kill(redis, syscall.SIGCONT) }()
	var all []hungSample
	for _, deadline := range deadlines {
		one := hungSample{Deadline: deadline}
		call, cancel := context.WithTimeout(ctx, s.hungFor)
		if deadline > 0 {
			call, cancel = context.WithTimeout(ctx, deadline)
		}
		start := time.Now()
		r, err := client.ShouldRateLimit(call, request(1, 1))
		one.Took = time.Since(start)
		ended := call.Err() != nil
		cancel()
		switch {
		case err == nil:
			one.Answer = r.OverallCode.String()
		case !ended: // an error of the service, not the caller's deadline
			one.Answer = "error " + status.Code(err).String()
		}
		all = append(all, one)
	}
	return all, nil
}
