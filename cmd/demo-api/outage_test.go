package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testserver"
)

const processConfig = "WEIR_TEST_DEMO_CONFIG"

// TestDemoProcess is what startProcess starts: a demo in a process of its own, which
// ends when its stdin does. Without a configuration there is nothing to do.
func TestDemoProcess(t *testing.T) {
	config := os.Getenv(processConfig)
	if config == "" {
		return
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := run(ctx, []string{"-listen", "127.0.0.1:0", "-config", config}, os.Stdout, os.Stderr); err != nil {
		t.Error(err)
	}
}

// startProcess starts a demo as a process. It ends with the test.
func startProcess(t *testing.T, config string) *demo {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestDemoProcess$")
	cmd.Env = append(os.Environ(), processConfig+"="+config)
	d := &demo{t: t, ended: make(chan error, 1), stdout: newOutput(), stderr: newOutput(), client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: 30 * time.Second,
	}}
	cmd.Stdout, cmd.Stderr = d.stdout, d.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { d.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		stdin.Close()
		d.client.CloseIdleConnections()
		if err := d.end(); err != nil {
			t.Errorf("a demo ended with %v: %s", err, d.stderr)
		}
	})
	d.url = d.stdout.find(t, `serving on (http://\S+);`, d.ended)
	d.debug = d.stdout.find(t, `curl +(http://\S+)/debug\n`, d.ended)
	return d
}

// asked is one request of a load: between these times, and what it got.
type asked struct {
	client      int
	began, took time.Time
	status      int
	rates       bool // it had rate headers
}

var outageLasts = flag.Duration("outage", 4*time.Second, "how long Redis is dead in TestOutageOfProcesses")

// TestOutageOfProcesses takes the only Redis from three processes under load for some
// windows: dead, and restarted empty, or hung.
func TestOutageOfProcesses(t *testing.T) {
	for name, outage := range map[string]struct {
		begin, end func(*testserver.RedisServer) error
	}{
		"killed": {
			func(s *testserver.RedisServer) error { s.Kill(); return nil },
			func(s *testserver.RedisServer) error { return s.Restart() },
		},
		"hung": {
			func(s *testserver.RedisServer) error { s.Pause(); return nil },
			func(s *testserver.RedisServer) error { s.Resume(); return nil },
		},
	} {
		t.Run(name, func(t *testing.T) { outageOfProcesses(t, outage.begin, outage.end) })
	}
}

func outageOfProcesses(t *testing.T, begin, end func(*testserver.RedisServer) error) {
	const (
		processes, clients = 3, 3
		quota              = 20
		window             = time.Second
		share              = (quota + processes - 1) / processes
	)
	server := testserver.Redis(t)
	config := writeConfig(t, fmt.Sprintf(`
backend: redis
redis: {shards: [{name: a, primary: %s}]}
tokens: any
policies:
  core: {limits: [{quota: %d, window: %v, aligned: true}], on_failure: local}
  secondary: {limits: [{quota: 1000000, window: 1h}]}
processes: %d
deadline: 200ms
`, server.Addr, quota, window, processes))
	var demos []*demo
	for range processes {
		demos = append(demos, startProcess(t, config))
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	var all []asked
	var load sync.WaitGroup
	for _, d := range demos {
		for client := range clients {
			load.Go(func() {
				for ctx.Err() == nil {
					a := asked{client: client, began: time.Now()}
					r, err := d.try("GET", "/repos/acme/rockets", "Authorization", fmt.Sprintf("Bearer client-%d", client))
					if err != nil {
						t.Error(err)
						return
					}
					a.took, a.status, a.rates = time.Now(), r.status, r.header.Get("X-RateLimit-Limit") != ""
					mu.Lock()
					all = append(all, a)
					mu.Unlock()
					time.Sleep(5 * time.Millisecond) // not to burn the machine's cores
				}
			})
		}
	}
	time.Sleep(2 * window)
	failed := time.Now()
	if err := begin(server); err != nil {
		t.Fatal(err)
	}
	down := time.Now()
	time.Sleep(*outageLasts)
	ends := time.Now()
	if err := end(server); err != nil {
		t.Fatal(err)
	}
	for _, d := range demos {
		d.stderr.find(t, "(a shard answers again)", d.ended)
	}
	recovered := time.Now()
	time.Sleep(3 * window)
	stop()
	load.Wait()

	// What is certain of each aligned window: a request that may be of two is of none.
	type at struct {
		client int
		window int64
	}
	whole, served := map[at]int{}, map[at]int{}
	local := map[int64]bool{} // windows outside the outage in which a busy machine let a deadline pass
	statuses := map[int]int{}
	var slowest time.Duration // of those that began a second into the outage
	for _, a := range all {
		statuses[a.status]++
		first, last := a.began.UnixNano()/int64(window), a.took.UnixNano()/int64(window)
		if first == last {
			whole[at{a.client, first}]++
			if a.status == http.StatusOK {
				served[at{a.client, first}]++
			}
		}
		for w := first; w <= last && !a.rates; w++ {
			local[w] = true
		}
		if a.began.After(down.Add(time.Second)) && a.took.Before(ends) {
			slowest = max(slowest, a.took.Sub(a.began))
			if a.rates {
				t.Errorf("a response of the outage, %v after its begin, has rate headers", a.began.Sub(down))
			}
		}
	}
	text := ""
	for w := failed.Add(-window).UnixNano() / int64(window); w <= recovered.Add(2*window).UnixNano()/int64(window); w++ {
		began, ended := time.Unix(0, w*int64(window)), time.Unix(0, (w+1)*int64(window))
		most, what := quota+processes*share, "partly"
		switch {
		case began.After(down) && ended.Before(ends):
			most, what = processes*share, "within"
		case (ended.Before(failed) || began.After(recovered)) && !local[w]:
			most, what = quota, "outside"
		}
		for client := range clients {
			n := served[at{client, w}]
			text += fmt.Sprintf(" %s:%d/%d", what, n, most)
			if n > most {
				t.Errorf("client %d was served %d in a window %s the outage, at most %d", client, n, what, most)
			}
			if what == "within" && n == 0 && whole[at{client, w}] > 0 {
				t.Errorf("client %d was served nothing in a window of the outage", client)
			}
		}
	}
	t.Logf("statuses %v; slowest in the outage %v;%s", statuses, slowest, text)
	if statuses[http.StatusOK]+statuses[http.StatusTooManyRequests] != len(all) {
		t.Errorf("statuses are %v, want 200 and 429 alone", statuses)
	}
	lines := 0
	for i, d := range demos {
		s := d.backend().Fallback
		t.Logf("process %d: %+v\n%s", i, s, d.stderr)
		if s.Held != 0 || s.HandedOver == 0 {
			t.Errorf("process %d: got %+v, want all handed over", i, s)
		}
		lines += strings.Count(d.stderr.String(), "\n")
	}
	// Some at the begin and the end of an outage, and one every 10 s meanwhile.
	most := processes * (15 + 2*int(*outageLasts/(10*time.Second)))
	if t.Logf("%d lines of log", lines); lines > most {
		t.Errorf("the processes logged %d lines, at most %d are enough", lines, most)
	}
}
