package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/test/bench/internal/report"
	"github.com/weir-go/weir/test/bench/peers"
	"github.com/weir-go/weir/test/bench/result"
)

// asCommand makes the test binary run the command: see startCommand.
const asCommand = "WEIR_BENCH_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// tiny measures everything, too briefly to mean anything.
var tiny = settings{
	passes: 1, sample: 2 * time.Millisecond, clients: 50,
	goroutines: []int{1, 64}, contended: []int{64}, distant: []int{64}, awake: []int{1},
	patience: 100 * time.Millisecond, connections: 4, processes: []int{1, 2},
	maxKeys: 100, logs: []int{10, 20}, crowds: []int{1, 4}, shards: []int{1, 8}, shardsKeys: 1000,
}

// Every row measures every peer, except the hung row, which TestHung tests. Every block and
// figure is present.
func TestWholeRun(t *testing.T) {
	lab := newLab(tiny)
	defer lab.close()
	rows := slices.DeleteFunc(lab.rows(), func(r row) bool { return r.name == "hung" })
	set, err := lab.run(t.Context(), rows, 1, true, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if err := failures(t.Output(), set.Results); err != nil {
		t.Error(err)
	}
	for _, r := range set.Results {
		for metric, values := range r.Values {
			for _, v := range values {
				if v < 0 && r.Row != "bytes/memory" { // the heap may shrink by more than the size of 50 keys
					t.Errorf("%s, %s: %s is %v", r.Row, r.Peer, metric, v)
				}
			}
		}
	}
	text := report.Text(set)
	for _, want := range []string{"## Summary", "## Setup", "## Shards that a load needs", "## Balance", "## Growth", "## Processes", "## HTTP", "rueidislimiter", "weir ÷ best rival"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
	for name, svg := range report.Figures(set) {
		checkXML(t, name, svg)
	}
}

// A hung server keeps each peer for its own time, and the deadline keeps weir.
func TestHung(t *testing.T) {
	patient := tiny
	patient.patience = 500 * time.Millisecond // decisions with a deadline of 50 ms end earlier, also on a busy machine
	lab := newLab(patient)
	defer lab.close()
	// rueidislimiter v1.0.76 is left out because it fails under the race detector: when a
	// context ends, it reuses the buffer of the key while the client may still be writing it.
	contenders := slices.DeleteFunc(exclude(peers.Redis(), peers.Variant, peers.Ceiling), func(p peers.Peer) bool { return p.Name == "rueidislimiter" })
	samples := lab.hang(t.Context(), contenders)
	for _, p := range contenders {
		values := samples[p.Name].values
		if values["first_ms"] <= 0 || values["deadline_first_ms"] <= 0 {
			t.Errorf("%s: %v", p.Name, values)
		}
	}
	// weir has a timeout of 1 s without a deadline, twice the lab's patience.
	if weir := samples["weir"].values; weir["first_ms"] != 500 || len(weir) != 3 {
		t.Errorf("weir has %v; want 500 ms, given up, and two decisions with a deadline", weir)
	}
}

func checkXML(t *testing.T, name string, data []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(data))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
	}
}

// The figures and tables of the documentation are drawn from the results stored with them.
func TestDocumentationIsOfItsResults(t *testing.T) {
	const root = "../.."
	for _, stored := range []string{"results.json", "service.json"} {
		stored = "docs/inside/performance/" + stored
		set, err := result.Read(filepath.Join(root, stored))
		if err != nil {
			t.Fatal(err)
		}
		if got := report.ResultsFile(set); got != stored {
			t.Errorf("%s would be stored in %s", stored, got)
		}
		files, err := report.Render(root, set)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range files {
			if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s is not what the results say (error %v); run: go -C test/bench run . -from ../../%s -docs ../..", name, err, stored)
			}
		}
	}
}

// The load reaches a service, and a call that fails does not end the connection.
func TestServiceLoad(t *testing.T) {
	addr, err := testserver.FindAddr()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- serveEmpty(ctx, addr) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if err := ready(ctx, addr); err != nil {
		t.Fatal(err)
	}
	c, err := dial(addr, "/none")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if _, err := c.call(nil); err == nil || err.Error() != `grpc-status "12"` {
			t.Errorf("a call of no method returned %v", err)
		}
	}
	longer := tiny
	longer.sample = 500 * time.Millisecond // processes' CPU times are in ticks of 10 ms
	lab := newLab(longer)
	for _, n := range []int{1, 5} {
		values := lab.call(ctx, addr, n, os.Getpid()).values
		if values["per_s"] <= 0 || values["p50_us"] <= 0 || values["p99_us"] < values["p50_us"] {
			t.Errorf("%d descriptors: %v", n, values)
		}
	}
}

func TestRunVisitsEachCellInEachPass(t *testing.T) {
	counts := make(map[string]int)
	visit := func(name string) func(context.Context) sample {
		return func(context.Context) sample {
			counts[name]++
			return sample{values: map[string]float64{"n": float64(counts[name])}}
		}
	}
	failing := func(context.Context) sample {
		counts["failing"]++
		return must(sample{}, errors.New("no answer"))
	}
	failingOnce := func(context.Context) sample {
		if counts["once"]++; counts["once"] == 1 {
			check(errors.New("late"))
		}
		return sample{values: map[string]float64{"n": 1}}
	}
	rows := []row{
		{name: "a", x: 7, cells: []cell{{"p", peers.Ours, visit("a p")}, {"q", peers.Rival, failing}, {"r", peers.Rival, failingOnce}}},
		{name: "b", fixed: true, cells: []cell{{"p", peers.Ours, visit("b p")}}},
	}
	results, err := run(t.Context(), rows, 4, rand.New(rand.NewPCG(1, 1)), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if want := (map[string]int{"a p": 4, "failing": 4, "b p": 1, "once": 4}); fmt.Sprint(counts) != fmt.Sprint(want) {
		t.Errorf("visits are %v, want %v", counts, want)
	}
	if r := results[0]; r.Row != "a" || r.X != 7 || fmt.Sprint(r.Values["n"]) != "[1 2 3 4]" {
		t.Errorf("first result is %+v", r)
	}
	if n := len(results[2].Values["n"]); n != 3 {
		t.Errorf("a peer that failed once of 4 times has %d values", n)
	}
	var mentioned strings.Builder
	if err := failures(&mentioned, results); err == nil || err.Error() != "a, q: no answer" || !strings.Contains(mentioned.String(), "a, r: late") {
		t.Errorf("failures are %v, and in some passes %q", err, mentioned.String())
	}
}

func TestMatchingKeepsTheBareHandler(t *testing.T) {
	rows := func() []row {
		return []row{
			{name: "http/memory", cells: []cell{{peer: report.BareHandler}, {peer: "weir"}, {peer: "other"}}},
			{name: "memory/hot", cells: []cell{{peer: "other"}}},
		}
	}
	got, err := matching(rows(), "", "^weir$")
	if err != nil || len(got) != 1 || len(got[0].cells) != 2 || got[0].cells[0].peer != report.BareHandler {
		t.Errorf("got %+v, error %v", got, err)
	}
	if got, err := matching(rows(), "^memory", ""); err != nil || len(got) != 1 || got[0].name != "memory/hot" {
		t.Errorf("got %+v, error %v", got, err)
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{
		{"-rows", "("}, {"-only", "("}, {"-rows", "nothing has this name"}, {"-docs", ".", "-rows", "memory"}, {"-from", "missing.json"}, {"-guard", "missing.json"}, {"-unknown"},
	} {
		if err := bench(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%q is no error", args)
		}
	}
}

// Ctrl-C ends the run soon, with the status of an interrupt, and no server is left running.
func TestInterrupt(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-quick", "-rows", "^redis/allowed")
	cmd.Env = append(os.Environ(), asCommand+"=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }() // if the test fails before it ends
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "pass ") {
	}
	servers := children(t, cmd.Process.Pid)
	if len(servers) == 0 {
		t.Error("it measures, and has no server")
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	output, _ := io.ReadAll(stderr)
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit status is %d (%v), want 130; its output is %s", code, err, output)
	}
	for _, pid := range servers {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the server, process %d, is still there: %v", pid, err)
		}
	}
}

// children returns the processes started by pid.
func children(t *testing.T, pid int) []int {
	t.Helper()
	output, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		if len(fields) == 2 && fields[1] == strconv.Itoa(pid) {
			child, err := strconv.Atoi(fields[0])
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, child)
		}
	}
	return pids
}
