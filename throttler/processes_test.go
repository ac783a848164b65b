package throttler_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

var asProcess = flag.String("process", "", "for the tests themselves")

func TestMain(m *testing.M) {
	if flag.Parse(); *asProcess != "" {
		serve(*asProcess)
		return
	}
	os.Exit(m.Run())
}

// A process of these tests is the test binary, started again. It carries out the orders in a
// list at the Redis server that keeps its counts, one after the other, and appends outcomes to
// another list. Orders move its clock. The first order after a stop is the time, since a
// process that continues finds that time has passed.

// processJob contains the parameters of a process.
type processJob struct {
	Addr, Name string
	Now        int64 // ms since the epoch

	Wait *waitJob // if not nil, the process does nothing else
}

// order is an order to a process, about the decision called Name.
type order struct {
	Do, Name string
	Policy   *throttler.Policy
	Key      string
	Cost     int64
	WantText bool   // of a take: return the receipt's text
	Text     string // a receipt's
	Now      int64  // the clock's new time, in ms since the epoch
}

// outcome is the outcome of an order.
type outcome struct {
	Allowed bool
	Used    []int64 // of each limit
	RetryIn time.Duration
	Lost    []string // the decisions that have lapsed
	Text    string
	Err     string
	Settled bool // the error is ErrSettled
}

// steps is a Timer that calls the functions that are due, in the order of AfterFunc.
type steps struct {
	clock.Manual
	mu  sync.Mutex
	due []*step
}

type step struct {
	at time.Time
	f  func()
}

func (s *steps) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := &step{s.Now().Add(d), f}
	s.due = append(s.due, own)
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		before := len(s.due)
		s.due = slices.DeleteFunc(s.due, func(o *step) bool { return o == own })
		return len(s.due) < before
	}
}

// reach moves the time to now, and returns when all functions that are due have returned.
func (s *steps) reach(now time.Time) {
	s.Set(now)
	for {
		s.mu.Lock()
		i := slices.IndexFunc(s.due, func(o *step) bool { return !o.at.After(now) })
		if i < 0 {
			s.mu.Unlock()
			return
		}
		next := s.due[i]
		s.due = slices.Delete(s.due, i, i+1)
		s.mu.Unlock()
		next.f()
	}
}

// receiptKey is shared by the processes, like the server.
var receiptKey = []byte("a secret of all processes")

// newProcess returns a throttler with clock c over the server at addr, and a function to end it.
func newProcess(addr string, c clock.Clock) (th *throttler.Throttler, end func()) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	backend, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, nil)
	if err != nil {
		panic(err)
	}
	return throttler.New(backend, &throttler.Options{Clock: c, ReceiptKey: receiptKey}), func() {
		backend.Close()
		_ = client.Close()
	}
}

// held is a decision of a process.
type held struct {
	d    throttler.Decision
	stop func()
}

// serve is the main function of a process.
func serve(text string) {
	var j processJob
	testserver.SelfJob(text, &j)
	if j.Wait != nil {
		j.Wait.run(j.Addr)
		return
	}
	c := new(steps)
	c.Set(time.UnixMilli(j.Now))
	th, _ := newProcess(j.Addr, c)
	client := redis.NewClient(&redis.Options{Addr: j.Addr})
	ctx, all := context.Background(), make(map[string]*held)
	var lost []string
	for {
		found, err := client.BLPop(ctx, 0, "orders:"+j.Name).Result()
		if err != nil {
			panic(err)
		}
		var o order
		if err := json.Unmarshal([]byte(found[1]), &o); err != nil {
			panic(err)
		}
		var a outcome
		a.note(carryOut(ctx, th, c, &o, all, &lost))
		a.Lost, lost = lost, nil
		if o.WantText && a.Allowed {
			if a.Text, err = th.Receipt(all[o.Name].d); err != nil {
				a.Err = err.Error()
			}
		}
		answer, err := json.Marshal(a)
		if err != nil {
			panic(err)
		}
		if err := client.RPush(ctx, "outcomes:"+j.Name, answer).Err(); err != nil {
			panic(err)
		}
	}
}

func (a *outcome) note(d throttler.Decision, err error) {
	if err != nil {
		a.Err, a.Settled = err.Error(), errors.Is(err, throttler.ErrSettled)
		return
	}
	a.Allowed = d.Allowed
	for _, l := range d.Limits() {
		a.Used = append(a.Used, l.Used)
	}
	if !d.Allowed && d.NumLimits() > 0 {
		a.RetryIn = d.RetryAt().Sub(d.At())
	}
}

func carryOut(ctx context.Context, th *throttler.Throttler, c *steps, o *order, all map[string]*held, lost *[]string) (d throttler.Decision, err error) {
	charge := throttler.Charge{Policy: o.Policy, Key: o.Key, Cost: o.Cost}
	switch of := all[o.Name]; o.Do {
	case "time":
		c.reach(time.UnixMilli(o.Now))
	case "take":
		if d, err = th.Take(ctx, charge); err == nil && d.Allowed {
			all[o.Name] = &held{d, th.Hold(ctx, d, func(error) { *lost = append(*lost, o.Name) })}
		}
	case "settle":
		of.stop()
		return th.Settle(ctx, of.d)
	case "settle receipt":
		if d, err = th.Open(o.Text); err == nil {
			return th.Settle(ctx, d, o.Cost)
		}
	case "peek":
		return th.Peek(ctx, charge)
	case "reset":
		err = th.Reset(ctx, charge)
	}
	return d, err
}

// process is a handle of a process.
type process struct {
	t       *testing.T
	client  *redis.Client
	name    string
	cmd     *exec.Cmd
	stopped bool
}

// start starts a process, which ends with the test.
func start(t *testing.T, client *redis.Client, name string, now time.Time) *process {
	t.Helper()
	addr := client.Options().Addr
	cmd, _ := testserver.Self(t, "process", processJob{Addr: addr, Name: name, Now: now.UnixMilli()})
	p := &process{t: t, client: client, name: name, cmd: cmd}
	t.Cleanup(p.kill)
	return p
}

// do gives an order, and returns its outcome.
func (p *process) do(o order) (a outcome) {
	p.t.Helper()
	p.give(o)
	return p.hear()
}

func (p *process) give(o order) {
	p.t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.client.RPush(p.t.Context(), "orders:"+p.name, text).Err(); err != nil {
		p.t.Fatal(err)
	}
}

// hear returns the outcome of the oldest order without one.
func (p *process) hear() (a outcome) {
	p.t.Helper()
	found, err := p.client.BLPop(p.t.Context(), time.Minute, "outcomes:"+p.name).Result()
	if err != nil {
		p.t.Fatalf("process %s does not answer: %v", p.name, err)
	}
	if err := json.Unmarshal([]byte(found[1]), &a); err != nil {
		p.t.Fatal(err)
	}
	return a
}

// kill ends p as a crash does, stopped or not. It may be called again.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// stop stops p, and returns when it has stopped.
func (p *process) stop() {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
	for {
		if _, err := syscall.Wait4(p.cmd.Process.Pid, nil, syscall.WUNTRACED, nil); err != syscall.EINTR {
			break
		}
	}
	p.stopped = true
}

// goOn continues p, sets its clock to now, and returns the outcome.
func (p *process) goOn(now time.Time) outcome {
	p.t.Helper()
	p.stopped = false
	p.give(order{Do: "time", Now: now.UnixMilli()})
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		p.t.Fatal(err)
	}
	return p.hear()
}

// processes are several processes over one Redis server, and their time.
type processes struct {
	*testing.T
	client *redis.Client
	now    time.Time
	all    []*process
	begun  int
}

func startProcesses(t *testing.T, n int) *processes {
	client := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	t.Cleanup(func() { _ = client.Close() })
	f := &processes{T: t, client: client, now: t0}
	for range n {
		f.all = append(f.all, f.start())
	}
	return f
}

func (f *processes) start() *process {
	f.begun++
	return start(f.T, f.client, fmt.Sprint(f.begun), f.now)
}

// pass lets time pass for the running processes, and returns the decisions that they lost.
func (f *processes) pass(d time.Duration) (lost []string) {
	f.Helper()
	f.now = f.now.Add(d)
	for _, p := range f.all {
		if p.stopped || p.cmd.ProcessState != nil {
			continue
		}
		a := p.do(order{Do: "time", Now: f.now.UnixMilli()})
		if a.Err != "" {
			f.Errorf("process %s: %s", p.name, a.Err)
		}
		lost = append(lost, a.Lost...)
	}
	return lost
}
