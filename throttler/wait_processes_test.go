package throttler_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// waitJob is the job of a process of TestProcessesWait: five workers wait for Starts starts.
type waitJob struct {
	Limit  throttler.Limit
	Starts int
	Seed   uint64 // if it is not 0, every other context is canceled, sooner or later
}

// started is the outcome of a call of Wait, as the process writes it.
type started struct {
	At       int64 // ms since the epoch: when it may start
	Canceled bool
	Early    bool // it returned before its start
	Err      string
}

func (j *waitJob) run(addr string) {
	th, end := newProcess(addr, clock.System{})
	defer end()
	policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{j.Limit}}
	var mu sync.Mutex
	out, random := json.NewEncoder(os.Stdout), rand.New(rand.NewPCG(j.Seed, 0))
	var began atomic.Int64
	var workers sync.WaitGroup
	for range 5 {
		workers.Go(func() {
			for int(began.Add(1)) <= j.Starts {
				ctx, cancel := context.WithCancel(context.Background())
				mu.Lock()
				if j.Seed != 0 && random.IntN(2) == 0 {
					time.AfterFunc(time.Duration(random.IntN(600))*time.Millisecond, cancel)
				}
				mu.Unlock()
				d, err := th.Wait(ctx, policy.Charge("key"))
				for errors.Is(err, driver.ErrOverloaded) { // of a process that had no processor for a second
					d, err = th.Wait(ctx, policy.Charge("key"))
				}
				var s started
				switch {
				case errors.Is(err, context.Canceled):
					s.Canceled = true
				case err != nil:
					s.Err = err.Error()
				default:
					s.At, s.Early = max(d.StartAt().UnixMilli(), d.At().UnixMilli()), time.Now().Before(d.StartAt())
				}
				cancel()
				mu.Lock()
				_ = out.Encode(s)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
}

var calls = regexp.MustCompile(`cmdstat_(eval|evalsha):calls=(\d+)`)

// callsOf returns the number of scripts that the server has run, one for each decision.
func callsOf(t *testing.T, client *redis.Client) (n int) {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range calls.FindAllStringSubmatch(info, -1) {
		more, _ := strconv.Atoi(match[2])
		n += more
	}
	return n
}

// mostIn returns the maximum number of times of at, in ms since the epoch, in any second.
func mostIn(at []int64) (most int) {
	slices.Sort(at)
	for i := range at {
		n := 0
		for n < len(at)-i && at[i+n] < at[i]+1000 {
			n++
		}
		most = max(most, n)
	}
	return most
}

// Three processes of five workers share ten starts a second through Redis. The starts are the
// server's, and the calls are as it has counted them.
func TestProcessesWait(t *testing.T) {
	for _, test := range []struct {
		name   string
		limit  throttler.Limit
		most   int // starts in any second
		faults bool
	}{
		{"leaky bucket", throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket}, 10, false},
		{"token bucket", throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 1}, 11, false},
		{"leaky bucket, contexts that end and a killed process", throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket}, 10, true},
		{"token bucket, contexts that end and a killed process", throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 1}, 11, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // the test mostly waits
			client := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
			t.Cleanup(func() { _ = client.Close() })
			var running sync.WaitGroup
			var all [3][]started
			victim := make(chan struct{}) // closed when process 0 has made some calls
			for i := range all {
				job := waitJob{Limit: test.limit, Starts: 17}
				if test.faults {
					job.Seed, job.Starts = uint64(i+1), 26
				}
				cmd, out := testserver.Self(t, "process", processJob{Addr: client.Options().Addr, Wait: &job})
				running.Go(func() {
					begin := sync.OnceFunc(func() { close(victim) })
					all[i] = read(t, out, func(n int) {
						if i == 0 && n == 6 {
							begin()
						}
					})
					if i == 0 {
						begin()
					}
					if err := cmd.Wait(); err != nil && (i > 0 || !test.faults) {
						t.Errorf("process %d: %v", i, err)
					}
				})
				t.Cleanup(func() { _ = cmd.Process.Kill() })
				if i == 0 && test.faults {
					running.Go(func() { <-victim; killed(t, cmd) })
				}
			}
			running.Wait()
			var at []int64
			canceled := 0
			for i, of := range all {
				for _, s := range of {
					if s.Early || s.Err != "" {
						t.Errorf("process %d: %+v", i, s)
					}
					if s.Canceled {
						canceled++
						continue
					}
					at = append(at, s.At)
				}
			}
			n := callsOf(t, client)
			t.Logf("%d calls for %d starts, %d canceled; at most %d in a second", n, len(at), canceled, mostIn(at))
			if most := mostIn(at); most > test.most {
				t.Errorf("%d starts in a second; want at most %d", most, test.most)
			}
			tight := 0
			for i := range at[1:] { // sorted now
				if gap := at[i+1] - at[i]; gap < 99 { // of a token bucket, rounded up
					tight++
				}
			}
			// A token bucket doesn't know the calls behind a start that is given back: the next
			// call may get a start that another has.
			if test.limit.Algorithm == throttler.LeakyBucket && tight > 0 || tight > canceled {
				t.Errorf("%d starts are less than 99 ms after another, and %d were given back", tight, canceled)
			}
			// A context that ends costs at most a take and a settlement; a killed process, two takes.
			if most := float64(len(at))*1.2 + float64(2*canceled); float64(n) > most || n < len(at) {
				t.Errorf("%d calls; want at most %v", n, most)
			}
			if !test.faults && (len(at) != 51 || canceled > 0) || test.faults && (len(at) < 15 || canceled < 5) {
				t.Errorf("%d starts, and %d contexts that ended", len(at), canceled)
			}
		})
	}
}

// killed kills a process.
func killed(t *testing.T, cmd *exec.Cmd) {
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
}

// read reads the outcomes of a process until it ends, and calls each with their number.
func read(t *testing.T, from io.Reader, each func(n int)) (all []started) {
	for decoder := json.NewDecoder(from); ; {
		var s started
		if err := decoder.Decode(&s); err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, os.ErrClosed) {
				t.Error(fmt.Errorf("reading what a process writes: %w", err))
			}
			return all
		}
		all = append(all, s)
		each(len(all))
	}
}
