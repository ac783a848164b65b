package leased_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
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
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
)

var (
	realFor  = flag.Duration("real-for", 2*time.Second, "how long real processes are offered load, for each distribution; from 30s on, all distributions, and 90 % of the quota is to be used")
	asWorker = flag.String("real-worker", "", "for the test itself")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *asWorker != "" {
		work(*asWorker, os.Stdout)
		return
	}
	goleak.VerifyTestMain(m)
}

// job describes the work of a process of TestRealProcesses.
type job struct {
	Addr       string
	Limit      throttler.Limit
	Key        string
	Begin, End time.Time

	// The process is offered Rate requests a second or, if Of is not 0, only in seconds i with
	// i % Of == Turn.
	Rate     float64
	Of, Turn int

	Process uint64 // the stream of its random choices
}

// work offers load, and writes the outcome of each request at once: the end of its window, in
// ms, negative if it was refused. At the end it writes 0 and its number of calls.
func work(text string, stdout io.Writer) {
	var j job
	testserver.SelfJob(text, &j)
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{j.Addr}})
	if err != nil {
		panic(err)
	}
	store, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, nil)
	if err != nil {
		panic(err)
	}
	b, err := leased.New(store, nil)
	if err != nil {
		panic(err)
	}
	write := func(n int64) { _ = binary.Write(stdout, binary.LittleEndian, n) }
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{j.Limit}}
	front, err := refusals.New(b, nil)
	if err != nil {
		panic(err)
	}
	th := throttler.New(front, nil)
	next, random := j.Begin, rand.New(rand.NewPCG(testseed.Value(), j.Process))
	if now := time.Now(); now.After(next) { // it replaces a killed process
		next = now
	}
	for {
		next = next.Add(time.Duration(random.ExpFloat64() / j.Rate * float64(time.Second)))
		if !next.Before(j.End) {
			break
		}
		if second := int(next.Sub(j.Begin) / time.Second); j.Of > 0 && second%j.Of != j.Turn {
			next = j.Begin.Add(time.Duration(second+1) * time.Second)
			continue
		}
		if wait := time.Until(next); wait > 2*time.Millisecond {
			time.Sleep(wait)
		}
		d, err := th.Take(context.Background(), policy.Charge(j.Key))
		if err != nil {
			panic(err)
		}
		window := d.Limit(0).ResetAt.UnixMilli()
		if !d.Allowed {
			window = -window
		}
		write(window)
	}
	write(0)
	write(b.Stats().Asked)
	_ = b.Close(context.Background())
}

// tally sums the output of all processes.
type tally struct {
	mu                sync.Mutex
	admitted, offered map[int64]int // by window
	decisions, calls  int64
}

// read reads the output of a process, until it ends or is killed.
func (c *tally) read(from io.Reader) error {
	r := bufio.NewReader(from)
	for {
		var window int64
		if err := binary.Read(r, binary.LittleEndian, &window); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrClosed) {
				return nil // killed
			}
			return err
		}
		c.mu.Lock()
		switch {
		case window == 0:
			var calls int64
			err := binary.Read(r, binary.LittleEndian, &calls)
			c.calls += calls
			c.mu.Unlock()
			return err
		case window > 0:
			c.admitted[window]++
			c.offered[window]++
		default:
			c.offered[-window]++
		}
		c.decisions++
		c.mu.Unlock()
	}
}

// Real processes on a real server are offered 1.6 times the quota. Some are killed and
// replaced. No window admits more than the quota, and nearly all of it is used if no process is
// killed.
func TestRealProcesses(t *testing.T) {
	server := testserver.Redis(t)
	long := *realFor >= 30*time.Second
	for _, limit := range []throttler.Limit{
		{Quota: 1000, Window: time.Second, Aligned: true},
		{Quota: 5000, Window: 5 * time.Second},
	} {
		for _, load := range []string{"even", "one hot", "moving each second"} {
			for _, kills := range []bool{false, true} {
				if !long && (kills != (load == "even") || load == "one hot" || !limit.Aligned) {
					continue
				}
				t.Run(fmt.Sprintf("%v/%s/kills %v", limit, load, kills), func(t *testing.T) {
					if !long {
						t.Parallel() // they wait most of the time
					}
					realProcesses(t, server.Addr, limit, load, kills)
				})
			}
		}
	}
}

func realProcesses(t *testing.T, addr string, limit throttler.Limit, load string, kills bool) {
	const processes = 8
	quota := float64(limit.Quota)
	perSecond := 1.6 * quota / limit.Window.Seconds()
	begin := time.Now().Truncate(time.Second).Add(2 * time.Second)
	end := begin.Add(*realFor)
	c := &tally{admitted: map[int64]int{}, offered: map[int64]int{}}
	running := make([]*exec.Cmd, processes)
	var readers sync.WaitGroup
	started := uint64(0)
	start := func(i int) {
		started++
		j := job{Process: started, Addr: addr, Limit: limit, Key: t.Name(), Begin: begin, End: end, Rate: perSecond / processes}
		switch {
		case load == "one hot" && i == 0:
			j.Rate = perSecond * 0.9
		case load == "one hot":
			j.Rate = perSecond * 0.1 / (processes - 1)
		case load == "moving each second":
			j.Rate, j.Of, j.Turn = perSecond, processes, i
		}
		cmd, out := testserver.Self(t, "real-worker", j)
		running[i] = cmd
		readers.Go(func() {
			if err := c.read(out); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range processes {
		start(i)
	}
	killed := 0
	if kills {
		r := testseed.Rand(t, 0)
		time.Sleep(time.Until(begin))
		for time.Until(end) > time.Second {
			time.Sleep(time.Duration(200+r.IntN(600)) * time.Millisecond)
			i := r.IntN(processes)
			if err := running[i].Process.Kill(); err != nil {
				t.Fatal(err)
			}
			killed++
			old := running[i]
			start(i)
			defer func() { _ = old.Wait() }() // its reader has to read all first
		}
	}
	readers.Wait()
	for _, cmd := range running {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	// Windows that were offered clearly more than the quota, without the first and the last.
	contested, used, most := 0, 0.0, 0
	first, last := begin.Add(limit.Window).UnixMilli(), end.UnixMilli()
	for window, n := range c.admitted {
		most = max(most, n)
		if n > int(limit.Quota) {
			t.Errorf("%d were admitted in a window; the quota is %d", n, limit.Quota)
		}
		if window > first && window <= last && float64(c.offered[window]) > 1.3*quota {
			contested++
			used += float64(n) / quota
		}
	}
	least, long := 0.7, *realFor >= 30*time.Second // the machine may be busy for a moment
	if long {
		least = 0.9
	}
	switch {
	case contested == 0 && long:
		t.Fatalf("in no window more than the quota was offered: %v", c.offered)
	case contested == 0:
		t.Logf("the machine is too busy to offer more than the quota: %v; how much of it is used is not judged", c.offered)
		return
	}
	used /= float64(contested)
	t.Logf("%.1f %% of the quota used in %d windows, at most %d of %d; %d processes killed", 100*used, contested, most, limit.Quota, killed)
	if !kills {
		t.Logf("%.0f decisions for each call", float64(c.decisions)/float64(c.calls))
	}
	if !kills && used < least {
		t.Errorf("%.1f %% of the quota was used; want %.0f", 100*used, 100*least)
	}
}
