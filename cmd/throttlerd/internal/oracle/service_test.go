//go:build service

package oracle

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// module is envoyproxy/ratelimit in the module proxies.
const module = "github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36"

// build builds both programs.
func build(t *testing.T) (theirs, ours string) {
	t.Helper()
	dir := t.TempDir()
	install := exec.Command("go", "install", module)
	install.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "GOWORK=off")
	install.Dir = dir // outside of this module
	ours = filepath.Join(dir, "throttlerd")
	for _, c := range []*exec.Cmd{install, exec.Command("go", "build", "-o", ours, "../..")} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
	}
	return filepath.Join(dir, "service_cmd"), ours
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(testserver.FreeAddr(t))
	return port
}

type client struct {
	ratelimitv3.RateLimitServiceClient
}

func (c client) ShouldRateLimit(ctx context.Context, req *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return c.RateLimitServiceClient.ShouldRateLimit(ctx, req)
}

// start runs a program in the environment of envoyproxy/ratelimit, on a separate Redis.
func start(t *testing.T, program string, environ ...string) asked {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "ratelimit", "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "ratelimit", "config", "a.yaml"), []byte(descriptors), 0o644); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	c := exec.Command(program)
	c.Env = append([]string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + testserver.Redis(t).Addr, "RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit",
		"HOST=127.0.0.1", "PORT=" + freePort(t), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + freePort(t), "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port,
		"USE_STATSD=false", "LOG_LEVEL=ERROR",
		"WEIR_DEADLINE=10s", // the test compares answers, not their speed on a busy machine
	}, environ...)
	var log bytes.Buffer
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Logf("%s: %s", program, log.String()[:min(log.Len(), 4000)])
		}
	})
	conn, err := grpc.NewClient("127.0.0.1:"+port, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s := client{ratelimitv3.NewRateLimitServiceClient(conn)}
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		// Before they have a configuration, both allow all requests, or answer none.
		if strings.HasPrefix(answer(t.Context(), s, refused), "OVER") {
			return s
		}
		if time.Since(begin) > 30*time.Second {
			t.Fatalf("%s does not answer: %s", program, log.String())
		}
	}
}

// refused is refused as soon as there is a configuration.
var refused = &ratelimitv3.RateLimitRequest{Domain: "d", Descriptors: []*commonv3.RateLimitDescriptor{
	{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "none"}}, HitsAddend: wrapperspb.UInt64(1)},
}}

const workers = 4

// TestOracle sends 100,000 requests to both programs in the same environment.
func TestOracle(t *testing.T) {
	theirs, ours := build(t)
	compare(t, start(t, theirs), start(t, ours, "WEIR_COUNT_REFUSED=true"), false)
}

// TestOracleAllOrNothing tests both without WEIR_COUNT_REFUSED. Answers after a refusal
// differ, because it charges nothing here. So a refusal ends an episode, and the next one uses
// other values.
func TestOracleAllOrNothing(t *testing.T) {
	theirs, ours := build(t)
	compare(t, start(t, theirs), start(t, ours), true)
}

func compare(t *testing.T, theirs, ours asked, atomic bool) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	why := make(map[string]int)
	perEach := 25_000
	if testing.Short() {
		perEach = 500
	}
	for w := range workers {
		wg.Go(func() {
			g := newGenerator(fmt.Sprint(w), uint64(w))
			g.alone = atomic
			for range perEach {
				req := g.next()
				a, b := answer(t.Context(), theirs, req), answer(t.Context(), ours, req)
				if atomic && (a != b || strings.Contains(a, "!")) { // later answers differ
					g.episode++
				}
				if a == b {
					continue
				}
				reason := explain(atomic, req, a, b)
				mu.Lock()
				if why[reason]++; reason == "" && why[""] < 10 {
					t.Errorf("%v: %s\nenvoyproxy/ratelimit: %s", req, b, a)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d requests, differences %v", workers*perEach, why)
}
