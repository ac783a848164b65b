package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// docs/operations.md has the command for a run of some minutes.
var (
	failoverRounds   = flag.Int("failover-rounds", 1, "failovers of each kind")
	failoverClients  = flag.Int("failover-clients", 8, "clients of TestFailover")
	failoverPause    = flag.Duration("failover-pause", 10*time.Millisecond, "time between two requests of a client")
	failoverDeadline = flag.Duration("failover-deadline", 250*time.Millisecond, "deadline of the demos' decisions")
)

// TestFailover runs two demos, as processes, on Sentinels and on a Cluster that nothing
// but their configuration names, and makes a replica primary while clients send
// requests: once by plan, once by SIGKILL. It reports for how long requests were not
// decided, and how many that were served are not counted afterwards.
func TestFailover(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "demo-api")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for range *failoverRounds {
		for _, planned := range []bool{true, false} {
			how := map[bool]string{true: "planned", false: "killed"}[planned]
			t.Run("Sentinel/"+how, func(t *testing.T) {
				t.Parallel() // it waits most of the time
				primary := testserver.Redis(t)
				replica := testserver.RedisReplica(t, primary)
				s := testserver.Sentinel(t, "shard-a", primary, 1, time.Second)
				shard := `sentinel: {master: shard-a, addrs: ["` + strings.Join(s.Addrs, `", "`) + `"]}`
				failOver(t, binary, shard, replica, event(planned, s.Failover, primary))
			})
			t.Run("Cluster/"+how, func(t *testing.T) {
				t.Parallel()
				c := testserver.Cluster(t, 3, 1, "--cluster-node-timeout", "1000")
				shard := `cluster: ["` + strings.Join(c.Addrs, `", "`) + `"]`
				failOver(t, binary, shard, c.Nodes[3], event(planned, func() error { return c.Failover(c.Nodes[3]) }, c.Nodes[0]))
			})
		}
	}
}

func event(planned bool, plan func() error, primary *testserver.RedisServer) func() error {
	if planned {
		return plan
	}
	return func() error { primary.Kill(); return nil }
}

// failOver runs demos on shard and makes something happen after which replica is a
// primary.
func failOver(t *testing.T, binary, shard string, replica *testserver.RedisServer, happen func() error) {
	config := writeConfig(t, withShard(shard)+fmt.Sprintf(`
tokens: any
on_failure: closed
deadline: %v
policies:
  core: {limits: [{quota: 1000000000, window: 24h}]}
  secondary: {limits: [{quota: 1000000000, window: 24h}]}
`, *failoverDeadline))
	r := &record{served: map[string]int{}, unknown: map[string]int{}}
	demos := []*demoProcess{startBinary(t, binary, config), startBinary(t, binary, config)}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range *failoverClients {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(*failoverPause):
				}
				r.add(demos[n%len(demos)].get(fmt.Sprintf("client%d-%d", i, n%6))) // callers on all nodes
			}
		})
	}
	r.await(t, "requests that are served", func() bool { return r.all >= 20 })
	began := time.Now()
	if err := happen(); err != nil {
		t.Fatal(err)
	}
	promoted, err := replica.AwaitPrimary()
	if err != nil {
		t.Fatal(err)
	}
	r.await(t, "all requests to be decided", func() bool {
		return time.Since(promoted) > 3*time.Second && time.Since(r.last) > 3*time.Second
	})
	close(stop)
	clients.Wait()

	lost, twice := 0, 0
	for token, served := range r.served {
		used := r.used(t, demos[0], token) - 1 // by this request
		lost += max(0, served-used)
		twice += max(0, used-served-r.unknown[token])
	}
	report := fmt.Sprintf("promoted after %v; %d requests served", promoted.Sub(began).Round(time.Millisecond), r.all)
	if r.failed == 0 {
		report += ", none undecided"
	} else {
		report += fmt.Sprintf(", %d undecided, in %v, until %v after the promotion", r.failed,
			r.last.Sub(r.first).Round(time.Millisecond), r.last.Sub(promoted).Round(time.Millisecond))
	}
	t.Logf("%s; %d served and not counted", report, lost)
	if twice > 0 {
		t.Errorf("%d requests were charged twice", twice)
	}
	if late := r.last.Sub(promoted); late > 10*time.Second {
		t.Errorf("requests were undecided until %v after the promotion", late)
	}
}

// record is what became of requests.
type record struct {
	mu              sync.Mutex
	served, unknown map[string]int // by token
	all, failed     int
	first, last     time.Time // of those that were not decided
	wrong           []string
}

func (r *record) add(answer answer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil && answer.status == http.StatusOK && answer.header.Get("X-RateLimit-Used") != "":
		r.all++
		r.served[answer.token]++
	case err == nil && answer.status == http.StatusServiceUnavailable:
		r.failed++
		r.unknown[answer.token]++
		r.last = time.Now()
		if r.first.IsZero() {
			r.first = r.last
		}
	default:
		r.wrong = append(r.wrong, fmt.Sprint(answer, err))
	}
}

// used returns what a response says that token has used. A request that a busy machine
// does not decide in time is made again.
func (r *record) used(t *testing.T, demo *demoProcess, token string) int {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		answer, err := demo.get(token)
		used, parseErr := strconv.Atoi(answer.header.Get("X-RateLimit-Used"))
		if err = errors.Join(err, parseErr); err == nil {
			return used
		}
		if answer.status != http.StatusServiceUnavailable || time.Now().After(deadline) {
			t.Fatalf("status %d: %v", answer.status, err)
		}
		r.unknown[token]++
	}
}

func (r *record) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		r.mu.Lock()
		done, wrong := is(), r.wrong
		r.mu.Unlock()
		if len(wrong) > 0 {
			t.Fatalf("got %s, want 200 with rates or 503", wrong[0])
		}
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited two minutes for %s", what)
		}
	}
}

// demoProcess is a demo that runs as a process of its own.
type demoProcess struct {
	url    string
	client *http.Client
}

type answer struct {
	token  string
	status int
	header http.Header
}

// startBinary starts a demo on a free port. It ends with the test, and must then end
// as SIGTERM asks, without a panic or a request that is stuck.
func startBinary(t *testing.T, binary, config string) *demoProcess {
	t.Helper()
	cmd := exec.Command(binary, "-listen", "127.0.0.1:0", "-config", config)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &demoProcess{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: 10 * time.Second}}
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		stuck := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer stuck.Stop()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || strings.Contains(log.String(), "panic") {
			t.Errorf("the demo ended with %v; it said\n%s", err, &log)
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if m := regexp.MustCompile(`serving on (http://\S+);`).FindStringSubmatch(lines.Text()); m != nil {
			p.url = m[1]
			go func() { // or the demo waits for a reader
				for lines.Scan() {
				}
			}()
			return p
		}
	}
	t.Fatalf("the demo did not serve; it said\n%s", &log)
	return nil
}

func (p *demoProcess) get(token string) (answer, error) {
	request, err := http.NewRequest(http.MethodGet, p.url+"/repos/acme/rockets", nil)
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	r, err := p.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	_ = r.Body.Close()
	return answer{token, r.StatusCode, r.Header}, nil
}
