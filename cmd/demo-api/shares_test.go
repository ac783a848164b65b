package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/shares"
)

var sharesFor = flag.Duration("shares-window", 5*time.Second, "the window that real processes share a quota of 300 of; from 10s on, they also have to use it")

// dividing is demos in separate processes that divide a quota, under load from the test.
type dividing struct {
	t       *testing.T
	window  time.Duration
	refresh time.Duration
	dir     string
	members []*member
	cut     [3]atomic.Bool // from the others

	start time.Time
	load  [3]atomic.Int64 // requests a window
	ends  chan struct{}
	busy  sync.WaitGroup

	mu       sync.Mutex
	admitted []admitted
}

type admitted struct {
	by           int // index of a member
	began, ended time.Duration
}

const (
	sharesQuota = 300 // a window
	sharesBurst = 30
)

// member is one of the demos.
type member struct {
	name   string // the address of its relay, where the others reach it
	listen string
	config string
	epoch  int
	list   []string

	cmd    *exec.Cmd
	pid    atomic.Int64 // of cmd, for relays; 0 before the first
	ended  chan error
	stderr *output
	stdin  io.Closer
	url    string
	debug  string
	client *http.Client
}

func newDividing(t *testing.T) *dividing {
	f := &dividing{t: t, window: *sharesFor, refresh: *sharesFor / 10, dir: t.TempDir(), ends: make(chan struct{})}
	if err := os.WriteFile(filepath.Join(f.dir, "key"), []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		m := &member{config: filepath.Join(f.dir, fmt.Sprint(i, ".yaml")), epoch: 1}
		m.name, m.listen = f.relay(i)
		f.members = append(f.members, m)
	}
	t.Cleanup(func() {
		close(f.ends)
		f.busy.Wait()
		for _, m := range f.members {
			if m.cmd == nil || m.cmd.Process == nil {
				continue
			}
			_ = m.cmd.Process.Signal(syscall.SIGCONT)
			_ = m.stdin.Close()
			f.t.Logf("%s ended with %v", m.name, <-m.ended)
			if m.client != nil {
				m.client.CloseIdleConnections()
			}
		}
	})
	for i, m := range f.members {
		m.list = f.names(0, 1, 2)
		f.write(m)
		f.run(i)
	}
	return f
}

func (f *dividing) sorted(members ...int) []string {
	return slices.Sorted(slices.Values(f.names(members...)))
}

func (f *dividing) names(members ...int) (names []string) {
	for _, i := range members {
		names = append(names, f.members[i].name)
	}
	return names
}

// relay returns the address of a relay to member i, and the address that it forwards to. It
// drops messages from and to members that are cut off.
func (f *dividing) relay(i int) (addr, to string) {
	to = testserver.FreeAddr(f.t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() { f.pass(in, i, to) })
		}
	})
	f.t.Cleanup(func() { _ = listener.Close(); open.Wait() })
	return listener.Addr().String(), to
}

// pass forwards data of a connection to member i, and back. While one of the two is cut off,
// it drops the data, and the connection stays open.
func (f *dividing) pass(in net.Conn, i int, to string) {
	defer in.Close()
	from := sync.OnceValue(func() int { return f.sender(in) }) // expensive: see sender
	isCut := func() bool {
		if f.cut[i].Load() {
			return true
		}
		for k := range f.cut {
			if f.cut[k].Load() && from() == k {
				return true
			}
		}
		return false
	}
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			defer func() { ended <- struct{}{} }()
			b := make([]byte, 64<<10)
			for {
				n, err := way[0].Read(b)
				if n > 0 && !isCut() {
					_, _ = way[1].Write(b[:n])
				}
				if err != nil {
					return
				}
			}
		}()
	}
	select {
	case <-ended:
	case <-f.ends:
	}
}

// sender returns the member whose process opened a connection, because the data is encrypted.
// It reads the table of all sockets, and earlier tests leave thousands there.
func (f *dividing) sender(c net.Conn) int {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		f.t.Error(err)
		return -1
	}
	port := fmt.Sprintf("0100007F:%04X", c.RemoteAddr().(*net.TCPAddr).Port)
	inode := ""
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); fields[1] == port {
			inode = fields[9]
		}
	}
	return slices.IndexFunc(f.members, func(m *member) bool {
		pid := m.pid.Load()
		if pid == 0 { // otherwise these are our own files
			return false
		}
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		return slices.ContainsFunc(files, func(file string) bool {
			to, _ := os.Readlink(file)
			return to == "socket:["+inode+"]"
		})
	})
}

// write writes a member's configuration.
func (f *dividing) write(m *member) {
	text := fmt.Sprintf(`
backend: shares
shares: {self: %q, listen: %q, members: ["%s"], epoch: %d, key_file: key, refresh: %v}
tokens: any
on_failure: closed
deadline: 10s
policies:
  core: {limits: [{quota: %d, window: %v, algorithm: token-bucket, burst: %d}]}
  secondary: {limits: [{quota: 4000000, window: 60s, algorithm: token-bucket}]}
`, m.name, m.listen, strings.Join(m.list, `", "`), m.epoch, f.refresh, sharesQuota, f.window, sharesBurst)
	if err := os.WriteFile(m.config, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// run starts the process of member i.
func (f *dividing) run(i int) {
	m := f.members[i]
	m.cmd = exec.Command(os.Args[0], "-test.run=^TestDemoProcess$")
	m.cmd.Env = append(os.Environ(), processConfig+"="+m.config)
	stdout, stderr := newOutput(), newOutput()
	m.cmd.Stdout, m.cmd.Stderr, m.stderr = stdout, stderr, stderr
	var err error
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		f.t.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	m.pid.Store(int64(m.cmd.Process.Pid))
	ended := make(chan error, 1)
	m.ended = ended
	cmd := m.cmd
	go func() { ended <- cmd.Wait() }()
	defer func() {
		if f.t.Failed() {
			f.t.Logf("%s wrote %s", m.name, stderr)
		}
	}()
	m.url = stdout.find(f.t, `serving on (http://\S+);`, ended)
	m.debug = stdout.find(f.t, `curl +(http://\S+)/debug\n`, ended)
	if m.client != nil {
		m.client.CloseIdleConnections()
	}
	m.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: 5 * time.Second}
}

func (f *dividing) signal(i int, s syscall.Signal) {
	f.t.Helper()
	if err := f.members[i].cmd.Process.Signal(s); err != nil {
		f.t.Fatal(err)
	}
}

// offer sends requests to each member, at the rates of f.load, until the test ends.
func (f *dividing) offer() {
	f.start = time.Now()
	for i := range f.members {
		f.busy.Go(func() {
			var all sync.WaitGroup
			defer all.Wait()
			room := make(chan struct{}, 50) // for unanswered requests
			for next := time.Now(); ; {
				rate := f.load[i].Load()
				wait := 10 * time.Millisecond
				if rate > 0 {
					next = next.Add(f.window / time.Duration(rate))
					wait = time.Until(next)
				} else {
					next = time.Now()
				}
				select {
				case <-f.ends:
					return
				case <-time.After(wait):
				}
				if rate == 0 {
					continue
				}
				select {
				case room <- struct{}{}:
					url, client := f.members[i].url, f.members[i].client
					all.Go(func() {
						f.ask(i, client, url)
						<-room
					})
				default:
				}
			}
		})
	}
}

func (f *dividing) ask(i int, client *http.Client, url string) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url+"/repos/acme/rockets", nil)
	if err != nil {
		f.t.Error(err)
		return
	}
	r.Header.Set("Authorization", "Bearer one")
	a := admitted{by: i, began: time.Since(f.start)}
	w, err := client.Do(r)
	if err != nil {
		return // its process is stopped, or starting
	}
	_, _ = io.Copy(io.Discard, w.Body)
	_ = w.Body.Close()
	a.ended = time.Since(f.start)
	if w.StatusCode == http.StatusOK {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.admitted = append(f.admitted, a)
	}
}

// phase offers load, in parts of the quota, for some windows. It returns the part of the
// quota that was used from the third round on.
func (f *dividing) phase(what string, windows float64, load ...float64) float64 {
	f.t.Helper()
	for i, part := range load {
		f.load[i].Store(int64(part * sharesQuota))
	}
	time.Sleep(3 * f.refresh)
	begin := time.Since(f.start)
	time.Sleep(time.Duration(windows*float64(f.window)) - 3*f.refresh)
	end := time.Since(f.start)
	f.mu.Lock()
	defer f.mu.Unlock()
	by := make([]int, 3)
	n := 0
	for _, a := range f.admitted {
		if a.ended >= begin && a.ended < end {
			by[a.by]++
			n++
		}
	}
	used := float64(n) / (sharesQuota * float64(end-begin) / float64(f.window))
	f.t.Logf("%s: %.1f %% of the quota was used, by each of them %v", what, 100*used, by)
	return used
}

// most returns the highest number of requests admitted in any window.
func (f *dividing) most() (most int, at time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// A request counts in a window if it began and ended there, because it was decided in
	// between.
	slices.SortFunc(f.admitted, func(a, b admitted) int { return int(a.began - b.began) })
	for i, first := range f.admitted {
		n := 0
		for _, a := range f.admitted[i:] {
			if a.began > first.began+f.window {
				break
			}
			if a.ended <= first.began+f.window {
				n++
			}
		}
		if n > most {
			most, at = n, first.began
		}
	}
	return most, at
}

// status waits until right reports true for the member's status.
func (f *dividing) status(i int, what string, right func(*shares.Status) bool) *shares.Status {
	f.t.Helper()
	var answer struct{ Shares *shares.Status }
	for begin := time.Now(); ; {
		w, err := f.members[i].client.Get(f.members[i].debug + "/debug/weir?format=json")
		if err == nil {
			err = json.NewDecoder(w.Body).Decode(&answer)
			_ = w.Body.Close()
		}
		if err == nil && right(answer.Shares) {
			return answer.Shares
		}
		if time.Since(begin) > time.Minute {
			f.t.Fatalf("%s: after a minute, the status is %+v, %v", what, answer.Shares, err)
		}
		time.Sleep(f.refresh / 4)
	}
}

func isValid(s *shares.Status) bool { return s.Valid && len(s.Silent) == 0 }

func hasEpoch(epoch uint64) func(*shares.Status) bool {
	return func(s *shares.Status) bool { return s.Epoch == epoch }
}

// Three processes that divide a quota use it, wherever the load falls, and never exceed it:
// while one is stopped, cut off, killed and started again, or removed from the list.
func TestSharesOfProcesses(t *testing.T) {
	t.Parallel() // it waits most of the time
	f := newDividing(t)
	// The part of the quota used within rounds of half a second depends on the machine.
	// The upper bound doesn't.
	long, windows := f.window >= 10*time.Second, 0.45
	if long {
		windows = 2
	}
	want := func(least float64, what string, load ...float64) {
		t.Helper()
		used := f.phase(what, windows, load...)
		if used >= least || !long {
			return
		}
		t.Errorf("%s: %.1f %% of the quota was used; want %.0f %%", what, 100*used, 100*least)
	}
	for i := range 3 {
		f.status(i, "after the start", isValid)
	}
	f.offer()
	want(0.9, "all at the first", 1.5, 0, 0)
	want(0.9, "all at the second", 0, 1.5, 0)
	want(0.9, "even", 0.5, 0.5, 0.5)

	f.signal(2, syscall.SIGSTOP)
	// Each keeps its share.
	for range 3 {
		want(0.6, "the third is stopped", 0.8, 0.8, 0)
	}
	f.signal(2, syscall.SIGCONT)
	f.status(2, "after SIGCONT", isValid)
	want(0.9, "the third is back", 0.8, 0.8, 0)

	f.cut[0].Store(true)
	want(0.6, "the first is cut off", 0.75, 0.75, 0)
	f.cut[0].Store(false)
	f.status(0, "after the cut", isValid)
	want(0.9, "the first is back", 0, 0, 1.5)

	f.load[1].Store(0)
	if err := f.members[1].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	t.Logf("the second ended with %v", <-f.members[1].ended)
	f.run(1)
	f.status(1, "after its restart", isValid)
	want(0.9, "the second has started again", 0.75, 0.75, 0)

	// A list without the third, given only to the first.
	f.members[0].list, f.members[0].epoch = f.names(0, 1), 2
	f.write(f.members[0])
	f.signal(0, syscall.SIGHUP)
	f.status(2, "left out of the list", func(s *shares.Status) bool { return !s.Valid && s.Epoch == 2 })
	f.status(1, "without the third", func(s *shares.Status) bool { return s.Epoch == 2 && len(s.Members) == 2 && s.Complete })
	for _, m := range f.members {
		m.stderr.find(t, "(members that divide the quotas have changed.* epoch=2)", m.ended)
	}
	want(0.9, "the third is left out", 0.5, 0.5, 0.5)

	most, at := f.most()
	t.Logf("at most %d were admitted in any %v, %v after the start; a bucket of the quota would admit %d", most, f.window, at.Round(time.Millisecond), sharesQuota+sharesBurst)
	// A starting process has the capacity of the least share once: a token.
	if most > sharesQuota+sharesBurst+1 {
		t.Errorf("%d were admitted in %v, from %v on; want at most the quota and the burst, %d", most, f.window, at, sharesQuota+sharesBurst)
	}
}

// SIGHUP puts the file's current list in force.
func TestHangupReadsMembers(t *testing.T) {
	f := newDividing(t)
	for i := range 3 {
		f.status(i, "after the start", isValid)
	}
	m := f.members[0]
	m.epoch = 5
	f.write(m)
	f.signal(0, syscall.SIGHUP)
	s := f.status(2, "after SIGHUP at the first", hasEpoch(5))
	if !slices.Equal(s.Members, f.sorted(0, 1, 2)) {
		t.Errorf("the members are %q", s.Members)
	}
	f.signal(0, syscall.SIGHUP) // the same list again
	m.stderr.find(t, "(SIGHUP: nothing was changed.*Epoch is 5; it must be higher)", m.ended)
	m.epoch = 6
	f.write(m)
	text, err := os.ReadFile(m.config)
	if err != nil {
		t.Fatal(err)
	}
	changed := regexp.MustCompile(`refresh: \w+`).ReplaceAll(text, []byte("refresh: 3s"))
	if err := os.WriteFile(m.config, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	f.signal(0, syscall.SIGHUP)
	m.stderr.find(t, `(are not read again.*ignored=shares)`, m.ended)
	f.status(1, "after SIGHUP with another refresh", hasEpoch(6))
	if err := os.WriteFile(m.config, []byte("backend: disk\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.signal(0, syscall.SIGHUP)
	m.stderr.find(t, "(SIGHUP: nothing was changed.*backend is ..disk..)", m.ended)
	f.status(0, "after a wrong file", hasEpoch(6))
}
