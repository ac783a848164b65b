package regions

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

var asWorker = flag.String("regions-worker", "", "for the test's own processes")

func TestMain(m *testing.M) {
	flag.Parse()
	if *asWorker != "" {
		var j job
		testserver.SelfJob(*asWorker, &j)
		if err := j.run(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// job is the work of a process: it decides each policy at its level, at the same rate.
type job struct {
	East, West string // addresses of the servers, as its data centre sees them
	Begin      time.Time
	Seconds    int
	Rate       float64 // requests a second for each level
	Process    uint64  // the stream of its random choices
}

// second counts the answers of a second.
type second struct{ Admitted, Refused, Failed, Degraded int }

// report is the output of a process.
type report struct {
	Seconds [levels][]second
	Late    time.Duration // the longest delay of a request
}

// A level is a way to decide a policy.
const (
	exact     = iota
	leasing   // leases of the exact counts
	oneRoot   // synced, with a root in the east
	rootsBoth // synced, with a root in each
	levels
)

var names = [levels]string{"exact", "leased", "synced, a root in the east", "synced, a root in each"}

const quota = 100 // a second

// policies are the policies by level. Leases are of windows.
var policies = [levels]*throttler.Policy{
	exact:     {Name: "exact", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Aligned: true}}},
	leasing:   {Name: "leased", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Aligned: true}}},
	oneRoot:   {Name: "one", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 2 * quota}}},
	rootsBoth: {Name: "both", Limits: []throttler.Limit{{Quota: quota, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 2 * quota}}},
}

// run offers the load, and prints a report.
func (j *job) run(stdout io.Writer) error {
	var clients [2]redis.UniversalClient
	for i, addr := range []string{j.East, j.West} {
		client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{addr}})
		if err != nil {
			return err
		}
		defer client.Close()
		clients[i] = client
	}
	store, err := redisbackend.New([]redisbackend.Shard{{Name: "east", Primary: clients[0]}}, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	lessee, err := leased.New(store, nil)
	if err != nil {
		return err
	}
	defer lessee.Close(context.Background())
	backends := [levels]driver.Backend{exact: store, leasing: lessee}
	roots := []synced.Root{{Name: "east", Client: clients[0]}, {Name: "west", Client: clients[1]}}
	for level, n := range map[int]int{oneRoot: 1, rootsBoth: 2} {
		b, err := synced.New(roots[:n], &synced.Options{Sync: 200 * time.Millisecond, Low: 0.5, Prefix: fmt.Sprintf("weir-sync-%d:", n)})
		if err != nil {
			return err
		}
		defer b.Close()
		backends[level] = b
	}
	var r report
	var mu sync.Mutex
	var working sync.WaitGroup
	for level, backend := range backends {
		r.Seconds[level] = make([]second, j.Seconds)
		working.Go(func() { j.offer(level, throttler.New(backend, nil), &r, &mu) })
	}
	working.Wait()
	return json.NewEncoder(stdout).Encode(r)
}

// offer makes requests at j's rate. None waits for the answer of another.
func (j *job) offer(level int, t *throttler.Throttler, r *report, mu *sync.Mutex) {
	var asked sync.WaitGroup
	defer asked.Wait()
	random := rand.New(rand.NewPCG(j.Process, uint64(level)))
	for next := j.Begin; ; {
		next = next.Add(time.Duration(random.ExpFloat64() / j.Rate * float64(time.Second)))
		if next.Sub(j.Begin) >= time.Duration(j.Seconds)*time.Second {
			return
		}
		time.Sleep(time.Until(next))
		asked.Go(func() {
			start := time.Now()
			d, err := t.Take(context.Background(), policies[level].Charge("alice"))
			mu.Lock()
			defer mu.Unlock()
			r.Late = max(r.Late, start.Sub(next))
			i := int(start.Sub(j.Begin) / time.Second)
			if l := policies[level].Limits[0]; l.Aligned && err == nil { // the window that was charged
				i = int(d.Limit(0).ResetAt.Sub(j.Begin)/time.Second) - 1
			}
			if i < 0 || i >= j.Seconds {
				return
			}
			switch s := &r.Seconds[level][i]; {
			case err != nil:
				s.Failed++
			case d.Allowed:
				s.Admitted++
			default:
				s.Refused++
			}
			if d.Degraded {
				r.Seconds[level][i].Degraded++
			}
		})
	}
}
