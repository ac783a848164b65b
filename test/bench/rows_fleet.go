package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// fleetCallers is the number of goroutines that request decisions, in all processes together.
const fleetCallers = 200

// fleetRows measure only weir: a decision's cost for a server when its callers are divided
// among more and more processes, each with a limiter and connections.
func (l *lab) fleetRows() []row {
	var rows []row
	for _, n := range l.processes {
		rows = append(rows, row{name: fmt.Sprintf("fleet/%d", n), x: float64(n), cells: []cell{{"weir", peers.Ours, func(ctx context.Context) (sample, error) {
			return l.loadFleet(ctx, n)
		}}}})
	}
	return rows
}

// loadFleet puts the load of n processes on a server.
func (l *lab) loadFleet(ctx context.Context, n int) (_ sample, err error) {
	server, err := l.redis("fleet")
	if err != nil {
		return sample{}, err
	}
	program, err := os.Executable()
	if err != nil {
		return sample{}, err
	}
	ctx, stop := context.WithCancel(ctx) // ends all workers, also after an error
	defer stop()
	workers := make([]*fleetWorker, n)
	for i := range workers {
		callers := fleetCallers / n
		if i < fleetCallers%n {
			callers++
		}
		if workers[i], err = startWorker(ctx, program, workerFlags(server.Addr, callers, l.settings)); err != nil {
			return sample{}, err
		}
		defer workers[i].wait(&err)
	}
	if err := ready(workers); err != nil {
		return sample{}, err
	}
	cpu, err := server.cpu()
	if err != nil {
		return sample{}, err
	}
	calls, err := server.scriptCalls()
	if err != nil {
		return sample{}, err
	}
	connections, err := server.info("clients", "connected_clients")
	if err != nil {
		return sample{}, err
	}
	sum, err := loadBy(workers)
	if err != nil {
		return sample{}, err
	}
	after, err := server.cpu()
	if err != nil {
		return sample{}, err
	}
	callsAfter, err := server.scriptCalls()
	if err != nil {
		return sample{}, err
	}
	sum.ServerCPU = after - cpu
	s := decisions(sum, false)
	delete(s.values, "allocs")
	s.values["per_call"] = float64(sum.Decisions) / float64(callsAfter-calls)
	s.values["connections"] = connections - 1 // without the admin connection
	return s, nil
}

// ready returns when all workers are ready.
func ready(workers []*fleetWorker) error {
	for _, w := range workers {
		if !w.lines.Scan() || w.lines.Text() != workerReady {
			return fmt.Errorf("a process of the fleet printed %q in place of %q", w.lines.Text(), workerReady)
		}
	}
	return nil
}

// loadBy starts the load of all workers, and returns the sum of their reports.
func loadBy(workers []*fleetWorker) (sum measure.Report, err error) {
	for _, w := range workers {
		_, _ = io.WriteString(w.stdin, "begin\n") // a worker that has ended prints no report
	}
	for _, w := range workers {
		var r measure.Report
		if !w.lines.Scan() {
			return sum, errors.New("a process of the fleet ended without a report")
		}
		if err := json.Unmarshal(w.lines.Bytes(), &r); err != nil {
			return sum, err
		}
		sum.Decisions += r.Decisions
		sum.Errors += r.Errors
		sum.Elapsed = max(sum.Elapsed, r.Elapsed)
		sum.P50, sum.P99 = max(sum.P50, r.P50), max(sum.P99, r.P99) // of the slowest process
		sum.ClientCPU += r.ClientCPU
	}
	return sum, nil
}

// scriptCalls returns how many times the server has run a script by its hash.
func (s *server) scriptCalls() (n int64, err error) {
	text, err := s.infoText("commandstats", "cmdstat_evalsha")
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(text, "calls=%d", &n)
	return n, err
}

const workerReady = "ready"

// fleetWorker is a process of a fleet.
type fleetWorker struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

func workerFlags(addr string, callers int, s settings) []string {
	return []string{"-worker", addr, "-callers", strconv.Itoa(callers), "-sample", s.sample.String(), "-keys", strconv.Itoa(s.clients)}
}

func startWorker(ctx context.Context, program string, flags []string) (*fleetWorker, error) {
	w := &fleetWorker{cmd: exec.CommandContext(ctx, program, flags...)}
	w.cmd.Stderr = os.Stderr
	var err error
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.lines = bufio.NewScanner(stdout)
	return w, w.cmd.Start()
}

// wait ends the process, and sets err if it is nil and the process failed.
func (w *fleetWorker) wait(err *error) {
	_ = w.stdin.Close()
	if failed := w.cmd.Wait(); *err == nil {
		*err = failed
	}
}

// work is a process of a fleet: it opens a limiter, waits for a line, and reports the cost of
// a load.
func work(ctx context.Context, addr string, callers, keys int, sample time.Duration, stdin io.Reader, stdout io.Writer) error {
	limiter, err := peers.Weir.Open(peers.Config{Quota: unlimited, Window: window, Redis: addr, Keys: keys})
	if err != nil {
		return err
	}
	defer limiter.Close()
	load := measure.Load{Goroutines: callers, Duration: sample, Keys: clientKeys(keys), Take: limiter.Take}
	if _, err := load.Run(ctx); err != nil { // connects, and learns the distance of the server
		return err
	}
	if _, err := fmt.Fprintln(stdout, workerReady); err != nil {
		return err
	}
	if !bufio.NewScanner(stdin).Scan() {
		return nil // the parent has given up
	}
	report, err := load.Run(ctx)
	if err != nil {
		return err
	}
	report.Err = nil // JSON can't decode an interface
	return json.NewEncoder(stdout).Encode(report)
}
