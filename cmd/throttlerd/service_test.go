package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// daemon is the program in a test.
type daemon struct {
	t         *testing.T
	dir       string // RUNTIME_ROOT
	http      string // address of /json
	debug     string
	conn      *grpc.ClientConn
	rls       ratelimitv3.RateLimitServiceClient
	health    grpc_health_v1.HealthClient
	terminate context.CancelFunc
	ended     chan error
	log       *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

const perYear = `
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
`

// started runs the program on a configuration until the test ends.
func started(t *testing.T, text string, environ ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{t: t, dir: dir, http: testserver.FreeAddr(t), debug: testserver.FreeAddr(t), ended: make(chan error, 1), log: new(lockedBuffer)}
	d.write(text)
	port := func(addr string) string { return addr[strings.LastIndex(addr, ":")+1:] }
	socket := filepath.Join(dir, "grpc.sock")
	environ = append([]string{
		"BACKEND_TYPE=memory", "RUNTIME_ROOT=" + dir, "GRPC_UDS=" + socket, "LOG_LEVEL=info", "WEIR_DEADLINE=5s", // which a busy machine does not reach
		"HOST=127.0.0.1", "PORT=" + port(d.http), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + port(d.debug),
	}, environ...)
	var ctx context.Context
	ctx, d.terminate = context.WithCancel(context.Background())
	go func() { d.ended <- run(ctx, nil, environ, io.Discard, d.log) }()
	var err error
	if d.conn, err = grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	d.rls, d.health = ratelimitv3.NewRateLimitServiceClient(d.conn), grpc_health_v1.NewHealthClient(d.conn)
	t.Cleanup(func() {
		_ = d.conn.Close()
		d.terminate()
		select {
		case err := <-d.ended:
			if err != nil {
				t.Errorf("the program ended with %v", err)
			}
		case <-time.After(15 * time.Second):
			t.Error("the program does not end")
		}
		if t.Failed() {
			t.Log(d.log)
		}
	})
	return d
}

// write replaces the file of descriptors.
func (d *daemon) write(text string) {
	d.t.Helper()
	path := filepath.Join(d.dir, "config", "a.yaml")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Chtimes(path+".new", time.Time{}, time.Now().Add(-time.Hour)); err != nil { // in force at once
		d.t.Fatal(err)
	}
	if err := os.Rename(path+".new", filepath.Join(d.dir, "config", "a.yaml")); err != nil {
		d.t.Fatal(err)
	}
}

// ask charges a user, and returns the remaining units, or -1 if the request is refused.
func (d *daemon) ask(user string) (int, error) { return d.askIn(d.t.Context(), user) }

func (d *daemon) askIn(ctx context.Context, user string) (int, error) {
	resp, err := d.rls.ShouldRateLimit(ctx, &ratelimitv3.RateLimitRequest{Domain: "d", Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: user}}},
	}}, grpc.WaitForReady(true))
	switch {
	case err != nil:
		return 0, err
	case resp.OverallCode == ratelimitv3.RateLimitResponse_OVER_LIMIT:
		return -1, nil
	}
	return int(resp.Statuses[0].LimitRemaining), nil
}

// remains waits until a request of the user is answered with that many units remaining.
func (d *daemon) remains(user string, want int) {
	d.t.Helper()
	eventually(d.t, func() error {
		got, err := d.ask(user)
		if err == nil && got != want {
			err = fmt.Errorf("%d remain, want %d", got, want)
		}
		return err
	})
}

// serves waits until the health service returns want.
func (d *daemon) serves(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
	d.t.Helper()
	eventually(d.t, func() error {
		resp, err := d.health.Check(d.t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "ratelimit"}, grpc.WaitForReady(true))
		if err == nil && resp.Status != want {
			err = fmt.Errorf("%v, want %v", resp.Status, want)
		}
		return err
	})
}

func (d *daemon) page(url, body string) (status int, text string) {
	d.t.Helper()
	var resp *http.Response
	var err error
	if body == "" {
		resp, err = http.Get(url)
	} else {
		resp, err = http.Post(url, "application/json", strings.NewReader(body))
	}
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

// counter returns the value of an integer metric.
func (d *daemon) counter(name string) int {
	d.t.Helper()
	_, text := d.page("http://"+d.debug+"/metrics", "")
	_, rest, _ := strings.Cut(text, "\n"+name+" ")
	digits, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(digits)
	if err != nil {
		d.t.Errorf("%s: %v", name, err)
	}
	return n
}

func TestService(t *testing.T) {
	metrics := testserver.FreeAddr(t)
	d := started(t, perYear, "USE_PROMETHEUS=true", "PROMETHEUS_ADDR="+metrics)
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	for _, want := range []int{2, 1, 0, -1} {
		if got, err := d.ask("a"); got != want || err != nil {
			t.Errorf("%d remain, %v; want %d", got, err, want)
		}
	}
	json := `{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "%s"}]}]}`
	for _, step := range []struct {
		url, body string
		status    int
		text      string
	}{
		{d.http + "/json", fmt.Sprintf(json, "b"), 200, `"overallCode":"OK"`},
		{d.http + "/json", fmt.Sprintf(json, "a"), 429, `"overallCode":"OVER_LIMIT"`},
		{d.http + "/json", `{"domain": 5}`, 400, "Bad Request"},
		{d.http + "/json", `{"domain": "d"}`, 400, "rate limit descriptor list must not be empty"},
		{d.http + "/healthcheck", "", 200, "OK"},
		{d.debug + "/rlconfig", "", 200, "d.user: unit=YEAR requests_per_unit=3, shadow_mode: false, quota_mode: false, policy: d.user\n"},
		{d.debug + "/", "", 200, "/rlconfig"},
		{metrics + "/metrics", "", 200, `ratelimit_service_rate_limit_over_limit{domain="d",key1="user",key2=""} 2`},
		{metrics + "/metrics", "", 200, `ratelimit_service_rate_limit_near_limit{domain="d",key1="user",key2=""} 1`},
		{metrics + "/metrics", "", 200, `ratelimit_service_rate_limit_within_limit{domain="d",key1="user",key2=""} 4`},
		{metrics + "/metrics", "", 200, `ratelimit_service_rate_limit_total_hits{domain="d",key1="user",key2=""} 6`},
		{d.debug + "/metrics", "", 200, `ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 7`},
		{d.debug + "/metrics", "", 200, `ratelimit_service_should_rate_limit_error{err_type="service_error"} 1`},
		{d.debug + "/metrics", "", 200, "ratelimit_service_config_load_success 1"},
	} {
		status, text := d.page("http://"+step.url, step.body)
		if status != step.status || !strings.Contains(text, step.text) {
			t.Errorf("%s %s: %d %s\nwant %d %s", step.url, step.body, status, text, step.status, step.text)
		}
	}
}

func TestReload(t *testing.T) {
	t.Parallel() // it waits most of the time
	d := started(t, "domain: d\ndescriptors: [{key: 5, kee: 6}]\n")
	d.serves(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	wrong := func(times int) {
		t.Helper()
		eventually(t, func() error {
			if n := d.counter("ratelimit_service_config_load_error"); n != times {
				return fmt.Errorf("%d configurations were wrong, want %d", n, times)
			}
			return nil
		})
	}
	wrong(1)
	if _, err := d.ask("a"); err == nil {
		t.Error("a call without a configuration is answered")
	}
	d.write(perYear)
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	d.remains("a", 2)
	d.write("domain: d\n  descriptors: x") // the last good one stays
	wrong(2)
	if got, err := d.ask("a"); got != 1 || err != nil {
		t.Errorf("%d remain, %v; want 1", got, err)
	}
	d.write(strings.Replace(perYear, "3}", "10}", 1)) // the count continues
	eventually(t, func() error {
		if got, err := d.ask("b"); err != nil || got < 3 {
			return fmt.Errorf("%d remain, %w", got, err)
		}
		return nil
	})
	if got, err := d.ask("a"); got != 7 || err != nil {
		t.Errorf("%d remain, %v; want 7", got, err)
	}
}

// Envoy Gateway has no configuration for its service until an operator adds a limit.
func TestHealthyWithoutAConfiguration(t *testing.T) {
	d := started(t, "domain: d\nwrong: true\n", "FORCE_START_WITHOUT_INITIAL_CONFIG=true")
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	if status, text := d.page("http://"+d.http+"/healthcheck", ""); status != http.StatusOK {
		t.Errorf("/healthcheck: %d %s", status, text)
	}
	if _, err := d.ask("a"); err == nil {
		t.Error("a call without a configuration is answered")
	}
}

// A Watch of the health is a call that its client never ends.
func TestDrain(t *testing.T) {
	t.Parallel() // it waits most of the time
	d := started(t, perYear, "WEIR_DRAIN_TIMEOUT=100ms")
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	watch, err := d.health.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "ratelimit"})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := watch.Recv(); err != nil || resp.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatal(resp, err)
	}
	d.terminate()
	if resp, err := watch.Recv(); err != nil || resp.Status != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v, %v; want NOT_SERVING", resp, err)
	}
	if err := <-d.ended; err != nil {
		t.Error(err)
	}
	d.ended <- nil // for the end of the test
}

// The first call is decided by the files: no port is open before they were read, however long
// that takes.
func TestFilesAreReadBeforeTheFirstCall(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "config"), 0o755), os.WriteFile(filepath.Join(dir, "config", "a.yaml"), []byte(perYear), 0o644)); err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		other := fmt.Sprintf("domain: d%d\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]\n", i)
		if err := os.WriteFile(filepath.Join(dir, "config", fmt.Sprint(i)), []byte(other), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := started(t, perYear, "RUNTIME_ROOT="+dir, "FORCE_START_WITHOUT_INITIAL_CONFIG=true")
	if got, err := d.ask("alice"); got != 2 || err != nil {
		t.Errorf("the first call: %d remain, %v; want 2", got, err)
	}
}
