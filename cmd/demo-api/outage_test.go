package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

const processConfig = "WEIR_TEST_DEMO_CONFIG"

// TestDemoProcess is the process of startProcess: a demo that ends when its stdin does.
// Without a configuration it does nothing.
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

// startProcess starts a demo in a separate process. It ends with the test.
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

// asked is one request of a load, with its times and its response.
type asked struct {
	process, client int
	began, took     time.Time
	status          int
	rates           bool // it had rate headers: from Redis, or from a remembered refusal
}

var outageLasts = flag.Duration("outage", 2*time.Second, "how long Redis is dead at least in TestOutageOfProcesses; from 1m on, it also hangs for so long")

// TestOutageOfProcesses takes the only Redis from three processes under load for some windows:
// killed, and restarted empty, or hung. It checks the promises of docs/reference/operations.md: windows
// within the outage allow the processes' shares, one window at its begin and one at its end
// allow both, and all others allow the quota.
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
		if name == "hung" && *outageLasts < time.Minute {
			continue // redisbackend's TestOutage opens breakers so, and fallback's TestOutageHistories checks the counts
		}
		t.Run(name, func(t *testing.T) { outageOfProcesses(t, outage.begin, outage.end) })
	}
}

func outageOfProcesses(t *testing.T, begin, end func(*testserver.RedisServer) error) {
	const (
		processes, clients = 3, 3
		quota              = 20
		window             = 1500 * time.Millisecond
		deadline           = 200 * time.Millisecond
		share              = (quota + processes - 1) / processes
		edge               = 50 * time.Millisecond // more than the difference between our clock and the demos', corrected by Redis
		onTime             = 20 * time.Millisecond // a response takes less time, unless the machine is busy
	)
	windowOf := func(at time.Time) int64 { return at.UnixNano() / int64(window) }
	sleepUntil := func(w int64, offset time.Duration) { time.Sleep(time.Until(time.Unix(0, w*int64(window)).Add(offset))) }
	server := testserver.Redis(t)
	config := writeConfig(t, fmt.Sprintf(`
backend: redis
redis: {shards: [{name: a, primary: %s}]}
tokens: any
policies:
  core: {limits: [{quota: %d, window: %v, aligned: true}], on_failure: local}
  secondary: {limits: [{quota: 1000000, window: 1h}]}
processes: %d
deadline: %v
`, server.Addr, quota, window, processes, deadline))
	var demos []*demo
	for range processes {
		demos = append(demos, startProcess(t, config))
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	var all []asked
	var load sync.WaitGroup
	for process, d := range demos {
		for client := range clients {
			load.Go(func() {
				for ctx.Err() == nil {
					a := asked{process: process, client: client, began: time.Now()}
					r, err := d.try("GET", "/repos/acme/rockets", "Authorization", fmt.Sprintf("Bearer client-%d", client))
					if err != nil {
						t.Error(err)
						return
					}
					a.took, a.status, a.rates = time.Now(), r.status, r.header.Get("X-RateLimit-Limit") != ""
					mu.Lock()
					all = append(all, a)
					mu.Unlock()
					time.Sleep(15 * time.Millisecond) // spare the machine's cores
				}
			})
		}
	}
	// Redis dies in the middle of a window, and is back at the begin of one. So these windows
	// are known, although the processes notice it later.
	sleepUntil(windowOf(time.Now())+2, window/2)
	failed := time.Now()
	if err := begin(server); err != nil {
		t.Fatal(err)
	}
	down := time.Now()
	sleepUntil(windowOf(down.Add(*outageLasts))+1, window/25)
	ends := time.Now()
	if err := end(server); err != nil {
		t.Fatal(err)
	}
	up := time.Now()
	for _, d := range demos {
		for d.stats().Fallback.Outages > 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	sleepUntil(windowOf(time.Now())+2, 0)
	last := windowOf(time.Now()) - 1
	stop()
	load.Wait()

	// At the edge of two windows, a request may belong to either.
	type at struct {
		client int
		window int64
	}
	asks, served := map[at]int{}, map[at]int{}
	servedAtBegin := map[at]int{} // or in the window before
	refused := map[at]int{}       // processes that Redis refused before it failed, as bits
	var back [processes]time.Time
	statuses := map[int]int{}
	var slowest time.Duration // of requests that began at least a second into the outage
	for _, a := range all {
		statuses[a.status]++
		of := at{a.client, windowOf(a.took.Add(edge))}
		certain := windowOf(a.began.Add(-edge)) == of.window
		switch {
		case windowOf(a.began.Add(-edge)) < of.window-1: // of several possible windows
		case a.status == http.StatusOK && certain:
			served[of]++
		case a.status == http.StatusOK:
			servedAtBegin[of]++
		case certain && a.rates && a.took.Before(failed):
			refused[of] |= 1 << a.process
		}
		asks[of]++
		if a.rates && a.began.After(ends) && (back[a.process].IsZero() || a.took.Before(back[a.process])) {
			back[a.process] = a.took
		}
		if a.began.After(down.Add(time.Second)) && a.took.Before(ends) {
			slowest = max(slowest, a.took.Sub(a.began))
		}
		remembered := a.status == http.StatusTooManyRequests && windowOf(a.began) == windowOf(down) // Redis refused it before
		if a.began.After(down) && a.took.Before(ends) && a.rates && !remembered {
			t.Errorf("a response of the outage, %v after its begin, has rate headers: %d", a.began.Sub(down), a.status)
		}
	}

	// A process does not use Redis before its first answer. Other local decisions come from a
	// busy machine, where responses are late and deadlines pass.
	ended := ends
	late := map[int64]bool{}
	passed := func(of asked) bool {
		return slices.ContainsFunc(all, func(a asked) bool {
			return a.took.Sub(a.began) >= onTime && a.began.Before(of.took) && a.took.After(of.began.Add(-3*time.Second))
		})
	}
	for _, a := range all {
		switch {
		case a.rates || a.began.After(failed) && a.took.Before(ends) || a.began.Before(down) && a.took.After(failed):
		case a.took.After(ends) && a.began.Before(back[a.process]):
			if a.began.After(ended) {
				ended = a.began
			}
		case passed(a):
			for w := windowOf(a.began); w <= windowOf(a.took); w++ {
				late[w] = true
			}
		default:
			t.Errorf("process %d decided by itself, %v after Redis was back, and all responses were on time", a.process, a.began.Sub(ends))
		}
	}
	text := ""
	room := [clients]int{quota, quota, quota} // left in the window before
	for w := windowOf(failed) - 1; w <= last; w++ {
		bound, what := quota, "outside"
		switch {
		case w >= windowOf(failed) && w <= windowOf(down):
			bound, what = quota+processes*share, "begin"
		case w > windowOf(down) && w < windowOf(ends):
			bound, what = processes*share, "within"
		case w >= windowOf(ends) && w <= windowOf(ended):
			bound, what = quota+processes*share, "end"
		case late[w]:
			bound, what = quota+processes*share, "late"
		}
		for client := range clients {
			of, most := at{client, w}, bound
			if what == "begin" && refused[of] == 1<<processes-1 {
				most = quota + processes - 1 // each process knew of the refusal
			}
			n := served[of] + max(0, servedAtBegin[of]-room[client])
			room[client] = max(0, min(most, quota+processes-1)-n)
			text += fmt.Sprintf(" %s:%d/%d", what, n, most)
			if n > most {
				t.Errorf("client %d was served %d in a window %s the outage, at most %d", client, n, what, most)
			}
			if what == "within" && served[of]+servedAtBegin[of] == 0 && asks[of] > 0 {
				t.Errorf("client %d was served nothing in a window of the outage", client)
			}
		}
	}
	// Half a second is usual. On a machine so busy that responses are late, too, a process may
	// need another window.
	var longest time.Duration
	for _, a := range all {
		if a.took.After(ends) && a.began.Before(ended) {
			longest = max(longest, a.took.Sub(a.began))
		}
	}
	// The server also needs time to start.
	if after := ended.Sub(up); after > 10*time.Second || windowOf(ended) > windowOf(up) && longest < onTime {
		t.Errorf("a process decided by itself until %v after Redis was back, in the next window; the longest response then took %v", after, longest)
	}
	t.Logf("back after %v; statuses %v; slowest in the outage %v;%s", ended.Sub(ends), statuses, slowest, text)
	if statuses[http.StatusOK]+statuses[http.StatusTooManyRequests] != len(all) {
		t.Errorf("statuses are %v, want 200 and 429 alone", statuses)
	}
	lines, handedOver := 0, int64(0)
	for i, d := range demos {
		s := d.stats().Fallback
		t.Logf("process %d: %+v\n%s", i, s, d.stderr)
		if s.Held != 0 {
			t.Errorf("process %d: got %+v, want all handed over", i, s)
		}
		handedOver += s.HandedOver // in a stalled process, the windows may have ended
		lines += strings.Count(d.stderr.String(), "\n")
	}
	if handedOver == 0 {
		t.Error("nothing was handed over")
	}
	// Some lines at the begin and the end of an outage, and one every 10 s in between.
	most := processes * (15 + 2*int(*outageLasts/(10*time.Second)))
	if t.Logf("%d lines of log", lines); lines > most {
		t.Errorf("the processes logged %d lines, at most %d are enough", lines, most)
	}
}
