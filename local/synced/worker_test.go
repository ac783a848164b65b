package synced

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

var asWorker = flag.String("real-worker", "", "for the tests of real processes themselves")

func TestMain(m *testing.M) {
	flag.Parse()
	if *asWorker != "" {
		work(*asWorker, os.Stdout)
		return
	}
	goleak.VerifyTestMain(m)
}

// job describes the work of a process.
type job struct {
	Roots []string
	Limit throttler.Limit
	Key   string
	Begin time.Time
	For   time.Duration
	Slot  time.Duration // requests within it are counted together

	// The process is offered Rate requests a second or, if Of is not 0, only in seconds i with
	// i % Of == Turn.
	Rate     float64
	Of, Turn int

	Process uint64 // the stream of its random choices
}

// report is the output of a process.
type report struct {
	Admitted []int // in each slot
	Refused  int   // slot of the first refusal, or -1

	// Longest is the longest decision, and Pause the longest time between two reads of the
	// clock with nothing in between.
	Longest, Pause time.Duration

	// Late is the longest delay of a request.
	Late time.Duration

	// Sync is the longest time between the ends of two syncs, if the process has one root.
	Sync time.Duration
}

// syncTimes observes the syncs with one root.
type syncTimes struct {
	observe.Nothing

	mu      sync.Mutex
	last    time.Time // when the last one ended
	longest time.Duration
}

func (s *syncTimes) Sent(e observe.Sent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := e.Start.Add(e.Duration)
	if !s.last.IsZero() {
		s.longest = max(s.longest, end.Sub(s.last))
	}
	s.last = end
}

// work offers load, and prints a report.
func work(text string, stdout io.Writer) {
	var j job
	testserver.SelfJob(text, &j)
	var roots []Root
	for _, addr := range j.Roots {
		client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{addr}})
		if err != nil {
			panic(err)
		}
		roots = append(roots, Root{Name: addr, Client: client})
	}
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{j.Limit}}
	observed := new(syncTimes)
	b, err := New(roots, &Options{Observer: observed})
	if err != nil {
		panic(err)
	}
	defer b.Close()
	th := throttler.New(b, nil)
	r := report{Admitted: make([]int, int(j.For/j.Slot)), Refused: -1}
	next, random := j.Begin, rand.New(rand.NewPCG(testseed.Value(), j.Process))
	for {
		next = next.Add(time.Duration(random.ExpFloat64() / j.Rate * float64(time.Second)))
		slot, second := int(next.Sub(j.Begin)/j.Slot), int(next.Sub(j.Begin)/time.Second)
		if slot >= len(r.Admitted) {
			break
		}
		if j.Of > 0 && second%j.Of != j.Turn {
			next = j.Begin.Add(time.Duration(second+1) * time.Second)
			continue
		}
		if wait := time.Until(next); wait > 2*time.Millisecond {
			time.Sleep(wait)
		}
		start := time.Now()
		r.Late = max(r.Late, start.Sub(next))
		d, err := th.Take(context.Background(), policy.Charge(j.Key))
		if err != nil {
			panic(err)
		}
		end := time.Now()
		r.Longest, r.Pause = max(r.Longest, end.Sub(start)), max(r.Pause, time.Since(end))
		switch slot = int(end.Sub(j.Begin) / j.Slot); { // a busy machine is late
		case slot < 0 || slot >= len(r.Admitted):
		case d.Allowed:
			r.Admitted[slot]++
		case r.Refused < 0:
			r.Refused = slot
		}
	}
	observed.mu.Lock()
	r.Sync = observed.longest
	observed.mu.Unlock()
	_ = json.NewEncoder(stdout).Encode(r)
}

// fleetOf starts a process for each job, and returns a function that waits for their reports.
func fleetOf(t *testing.T, jobs []job) (reports func() []report) {
	t.Helper()
	var outputs []*json.Decoder
	var workers []*exec.Cmd
	for i, j := range jobs {
		j.Process = uint64(i)
		cmd, out := testserver.Self(t, "real-worker", j)
		outputs, workers = append(outputs, json.NewDecoder(out)), append(workers, cmd)
	}
	return func() []report {
		t.Helper()
		reports := make([]report, len(workers))
		for i := range workers {
			if err := outputs[i].Decode(&reports[i]); err != nil {
				t.Fatal(err)
			}
			if err := workers[i].Wait(); err != nil {
				t.Error(err)
			}
		}
		return reports
	}
}

// total returns the sums of the admitted requests, by slot.
func total(reports []report) []int {
	sums := make([]int, len(reports[0].Admitted))
	for _, r := range reports {
		for slot, n := range r.Admitted {
			sums[slot] += n
		}
	}
	return sums
}

// longest returns the longest decision of all, and the longest pause.
func longest(reports []report) (decision, pause time.Duration) {
	for _, r := range reports {
		decision, pause = max(decision, r.Longest), max(pause, r.Pause)
	}
	return decision, pause
}

// syncsInTime reports whether the syncs of processes in a short run came in time.
func syncsInTime(t *testing.T, reports []report) bool {
	t.Helper()
	longest := time.Duration(0)
	for _, r := range reports {
		longest = max(longest, r.Sync)
	}
	if longest > 2*DefaultSync && !promised() {
		t.Logf("a process waited %v for a sync: when processes refuse is not judged", longest)
		return false
	}
	return true
}

// judged reports whether the processes of a short run ran on time. On a machine that is too
// busy for that, no process knows the others' counts.
func judged(t *testing.T, reports []report) bool {
	t.Helper()
	late := time.Duration(0)
	for _, r := range reports {
		late = max(late, r.Late)
	}
	if late > DefaultSync && !promised() {
		t.Logf("a process ran %v late: what was admitted is not judged", late)
		return false
	}
	return true
}

// soon returns a whole second at which processes that start now are ready.
func soon() time.Time { return time.Now().Truncate(time.Second).Add(2 * time.Second) }
