package synced

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testserver"
	"github.com/weir-go/weir/throttler"
)

var (
	realFor  = flag.Duration("real-for", time.Second, "how long real processes are offered load, for each distribution; from 30s on, all distributions, within what is promised")
	asWorker = flag.String("real-worker", "", "for the test itself")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *asWorker != "" {
		work(*asWorker, os.Stdin, os.Stdout)
		return
	}
	goleak.VerifyTestMain(m)
}

// job is what a process of TestRealProcesses does.
type job struct {
	Addr  string
	Limit throttler.Limit
	Key   string
	Begin time.Time
	For   time.Duration

	// It is offered Rate requests a second, or in seconds i with i % Of == Turn, if Of
	// is not 0.
	Rate     float64
	Of, Turn int
}

// work offers load, and prints how many requests were admitted in each second.
func work(text string, stdin io.Reader, stdout io.Writer) {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		panic(err)
	}
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{j.Addr}})
	if err != nil {
		panic(err)
	}
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{j.Limit}}
	b, err := New([]Root{{"root", client}}, []*throttler.Policy{policy}, nil)
	if err != nil {
		panic(err)
	}
	defer b.Close()
	go func() { // ends with its parent
		_, _ = io.Copy(io.Discard, stdin)
		os.Exit(1)
	}()
	th := throttler.New(b, nil)
	admitted := make([]int, int(j.For/time.Second))
	next := j.Begin
	for {
		next = next.Add(time.Duration(rand.ExpFloat64() / j.Rate * float64(time.Second)))
		second := int(next.Sub(j.Begin) / time.Second)
		if second >= len(admitted) {
			break
		}
		if j.Of > 0 && second%j.Of != j.Turn {
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
		if d.Allowed {
			admitted[second]++
		}
	}
	_ = json.NewEncoder(stdout).Encode(admitted)
}

// Real processes on a real server, offered 1.6 times the quota.
func TestRealProcesses(t *testing.T) {
	server := testserver.Redis(t)
	const processes, quota = 8, 1000
	for _, limit := range []throttler.Limit{
		{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: quota / 4},
		{Quota: quota, Window: time.Second, Aligned: true},
	} {
		for _, load := range []string{"even", "one hot", "moving each second"} {
			if long := *realFor >= 30*time.Second; load == "one hot" && !long {
				continue
			}
			t.Run(fmt.Sprintf("%v/%s", limit, load), func(t *testing.T) {
				// A whole second, and one more to begin with.
				begin := time.Now().Truncate(time.Second).Add(2 * time.Second)
				length := realFor.Truncate(time.Second) + time.Second
				total := make([]int, int(length/time.Second))
				var outputs []io.Reader
				var all []*exec.Cmd
				for i := range processes {
					j := job{Addr: server.Addr, Limit: limit, Key: t.Name(), Begin: begin, For: length, Rate: 1.6 * quota / processes}
					switch {
					case load == "one hot" && i == 0:
						j.Rate = 1.6 * quota * 0.9
					case load == "one hot":
						j.Rate = 1.6 * quota * 0.1 / (processes - 1)
					case load == "moving each second":
						j.Rate, j.Of, j.Turn = 1.6*quota, processes, i
					}
					text, err := json.Marshal(j)
					if err != nil {
						t.Fatal(err)
					}
					cmd := exec.CommandContext(t.Context(), os.Args[0], "-real-worker", string(text))
					cmd.Stderr, cmd.SysProcAttr = os.Stderr, testserver.DieWithParent()
					out, err := cmd.StdoutPipe()
					if err != nil {
						t.Fatal(err)
					}
					if _, err = cmd.StdinPipe(); err != nil {
						t.Fatal(err)
					}
					if err := cmd.Start(); err != nil {
						t.Fatal(err)
					}
					outputs, all = append(outputs, bufio.NewReader(out)), append(all, cmd)
				}
				for i := range all {
					var admitted []int
					if err := json.NewDecoder(outputs[i]).Decode(&admitted); err != nil {
						t.Fatal(err)
					}
					for s, n := range admitted {
						total[s] += n
					}
					if err := all[i].Wait(); err != nil {
						t.Error(err)
					}
				}
				n, seconds := sum(total[1:]), len(total)-1
				off := 100 * (float64(n)/float64(quota*seconds) - 1)
				t.Logf("%+.2f %% of the quota in %d s, from %d to %d a second", off, seconds, slices.Min(total[1:]), slices.Max(total[1:]))
				over, under := 25.0, -25.0 // a busy machine, for a moment
				if *realFor >= 30*time.Second {
					over, under = 1, -2
				}
				if off > over || off < under {
					t.Errorf("%+.2f %% of the quota was admitted; want from %v to %v", off, under, over)
				}
			})
		}
	}
}
