//go:build service

package oracle

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// Variables of TestCompatible: RATELIMIT_SOURCE is the source of another version of
// envoyproxy/ratelimit, such as a clone of its repository, ORACLE_WORLDS the number of
// configurations, and WEIR_SEED the seed of the first.
var (
	source = os.Getenv("RATELIMIT_SOURCE")
	worlds = number("ORACLE_WORLDS", 20)
	first  = number("WEIR_SEED", 1)
)

const perWorld = 500 // requests

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// buildSource builds both programs, envoyproxy/ratelimit from RATELIMIT_SOURCE if that is set.
func buildSource(t *testing.T) (theirs, ours string) {
	t.Helper()
	if source == "" {
		return build(t)
	}
	dir := t.TempDir()
	theirs, ours = filepath.Join(dir, "ratelimit"), filepath.Join(dir, "throttlerd")
	other := exec.Command("go", "build", "-o", theirs, "./src/service_cmd")
	other.Dir, other.Env = source, append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	for _, c := range []*exec.Cmd{other, exec.Command("go", "build", "-o", ours, "../..")} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
	}
	return theirs, ours
}

// TestCompatible sends requests about random configurations to both programs, and compares the
// whole answers and the metrics: with WEIR_COMPATIBLE, nothing differs.
func TestCompatible(t *testing.T) {
	theirs, ours := buildSource(t)
	servers := [2]string{testserver.Redis(t).Addr, testserver.Redis(t).Addr}
	requests := 0
	for seed := first; seed < first+worlds; seed++ {
		for again := 0; ; again++ {
			late := false
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				late = !(&round{seed: seed, again: again, world: newWorld(uint64(seed), source != "")}).run(t, [2]string{theirs, ours}, servers)
			})
			if !late || again == 5 {
				break
			}
		}
		requests += perWorld
	}
	t.Logf("%d requests", requests)
}

// round compares the programs in one world.
type round struct {
	*world
	seed, again int
	prometheus  bool
}

// both has something of envoyproxy/ratelimit, and then of throttlerd.
type both [2]*running

type running struct {
	client
	http, debug, metrics string
	statsd               *statsd
}

// run reports false if the answers to a request were given in different seconds: the later ones
// differ, then.
func (r *round) run(t *testing.T, programs, servers [2]string) bool {
	r.prometheus = r.seed%2 == 0
	var b both
	for i := range b {
		b[i] = r.start(t, programs[i], servers[i])
	}
	describe := func() string { return fmt.Sprintf("%v\n%s", r.env, r.file()) }
	for n := range perWorld {
		req := r.next()
		if f := time.Now().Nanosecond(); f > 850e6 {
			time.Sleep(time.Duration(1e9-f) + time.Millisecond)
		}
		second := time.Now().Unix()
		var got [2]string
		var wg sync.WaitGroup
		for i := range b {
			wg.Go(func() {
				if n%25 == 24 && !isRecent(req) {
					got[i] = b[i].json(req)
				} else {
					got[i] = whole(t.Context(), b[i], req)
				}
			})
		}
		wg.Wait()
		if time.Now().Unix() != second {
			return false
		}
		if got[0] != got[1] {
			t.Errorf("request %d, %v:\n%s\nenvoyproxy/ratelimit:\n%s\n%s", n, req, got[1], got[0], describe())
			return true
		}
	}
	numbers := [2]map[string]float64{b[0].numbers(t, r), b[1].numbers(t, r)}
	for _, name := range slices.Sorted(maps.Keys(maps.Collect(func(yield func(string, bool) bool) {
		for _, m := range numbers {
			for name := range m {
				yield(name, true)
			}
		}
	}))) {
		if numbers[0][name] != numbers[1][name] {
			t.Errorf("%s is %v; envoyproxy/ratelimit: %v", name, numbers[1][name], numbers[0][name])
		}
	}
	if t.Failed() {
		t.Log(describe())
	}
	if len(numbers[0]) < 5 && !t.Failed() {
		t.Errorf("only %v were compared", numbers[0])
	}
	return true
}

func (r *round) start(t *testing.T, program, redis string) *running {
	root := t.TempDir()
	dir := filepath.Join(root, "ratelimit", "config")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(r.file()), 0o644); err != nil {
		t.Fatal(err)
	}
	rn := &running{http: freePort(t), debug: freePort(t), metrics: freePort(t)}
	port := freePort(t)
	c := exec.Command(program)
	c.Env = append([]string{
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis, "RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit",
		"HOST=127.0.0.1", "PORT=" + rn.http, "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + rn.debug, "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port,
		"LOG_LEVEL=ERROR", "STATS_FLUSH_INTERVAL=100ms", fmt.Sprintf("CACHE_KEY_PREFIX=r%d-%d:", r.seed, r.again),
		"WEIR_COMPATIBLE=true", "WEIR_DEADLINE=10s",
	}, r.env...)
	if r.prometheus {
		c.Env = append(c.Env, "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:"+rn.metrics)
	} else {
		rn.statsd = newStatsd(t)
		c.Env = append(c.Env, "USE_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT="+rn.statsd.port)
	}
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
	rn.client = client{ratelimitv3.NewRateLimitServiceClient(conn)}
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		// Neither opens its ports before it has read its files.
		if resp, err := http.Get("http://127.0.0.1:" + rn.http + "/healthcheck"); err == nil {
			_ = resp.Body.Close()
			if _, err := rn.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "ready", Descriptors: refused.GetDescriptors()}); err == nil {
				return rn
			}
		}
		if time.Since(begin) > 30*time.Second {
			t.Fatalf("%s does not answer: %s\n%s", program, log.String(), r.file())
		}
	}
}

// isRecent reports whether a request has fields that envoyproxy/ratelimit does not know: its JSON
// must not have them.
func isRecent(req *ratelimitv3.RateLimitRequest) bool {
	return slices.ContainsFunc(req.GetDescriptors(), func(d *commonv3.RateLimitDescriptor) bool {
		return d.GetIsNegativeHits() || d.GetLimit().GetUnitMultiplier() != nil
	})
}

// json sends a request as JSON, and returns the answer.
func (rn *running) json(req *ratelimitv3.RateLimitRequest) string {
	body, err := protojson.Marshal(req)
	if err != nil {
		return err.Error()
	}
	resp, err := http.Post("http://127.0.0.1:"+rn.http+"/json", "application/json", bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusBadRequest || err != nil {
		return fmt.Sprint(resp.StatusCode, err)
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Sprint(resp.StatusCode, string(text))
	}

	text, _ = json.Marshal(v)
	return fmt.Sprint(resp.StatusCode, " ", strings.Join(strings.Fields(string(text)), " "))
}

// numbers returns the metrics that both programs have, by their names.
func (rn *running) numbers(t *testing.T, r *round) map[string]float64 {
	t.Helper()
	compared := func(name string) bool {
		switch {
		case strings.Contains(name, "response_time"):
			return false
		case strings.HasPrefix(name, "ratelimit.localcache."), strings.HasPrefix(name, "ratelimit_localcache_"):
			return strings.HasSuffix(name, "hitCount") || strings.HasSuffix(name, "missCount") || strings.HasSuffix(name, "lookupCount")
		}
		return strings.HasPrefix(name, "ratelimit.service.") || strings.HasPrefix(name, "ratelimit_service_") || strings.HasPrefix(name, "ratelimit_server.")
	}
	read := func() map[string]float64 {
		if rn.statsd != nil && len(rn.statsd.copy()) > 0 {
			return rn.statsd.copy()
		}
		url := "http://127.0.0.1:" + rn.debug + "/stats"
		if r.prometheus {
			url = "http://127.0.0.1:" + rn.metrics + "/metrics"
		}
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		return parse(resp.Body)
	}
	var before map[string]float64
	for begin := time.Now(); ; time.Sleep(350 * time.Millisecond) { // longer than a flush
		found := read()
		maps.DeleteFunc(found, func(name string, v float64) bool { return v == 0 || !compared(name) })
		if maps.Equal(found, before) && len(found) > 0 {
			return found
		}
		if before = found; time.Since(begin) > 10*time.Second {
			t.Fatalf("the metrics do not rest: %v", found)
		}
	}
}

// parse returns the numbers of lines such as "name: 1" or Prometheus' `name{label="value"} 1`.
func parse(from io.Reader) map[string]float64 {
	found := make(map[string]float64)
	for lines := bufio.NewScanner(from); lines.Scan(); {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || i < 0 {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			name := strings.TrimSuffix(line[:i], ":")
			found[strings.ReplaceAll(name, `,key2=""`, "")] += v
		}
	}
	return found
}

// statsd receives metrics.
type statsd struct {
	port   string
	mu     sync.Mutex
	values map[string]float64
}

func newStatsd(t *testing.T) *statsd {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s := &statsd{port: port, values: make(map[string]float64)}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.read(conn)
		}
	}()
	return s
}

func (s *statsd) read(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		text, kind, _ := strings.Cut(rest, "|")
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			continue
		}
		s.mu.Lock()
		switch kind {
		case "c":
			s.values[name] += v
		case "g":
			s.values[name] = v
		}
		s.mu.Unlock()
	}
}

func (s *statsd) copy() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.values)
}
