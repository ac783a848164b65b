package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/test/chaos/internal/history"
	"github.com/weir-go/weir/test/chaos/internal/job"
	"github.com/weir-go/weir/test/chaos/internal/meter"
	"github.com/weir-go/weir/throttler"
)

// The load of the workers.
const (
	quota    = 20 // of a key under policy window
	window   = 2 * time.Second
	deadline = 50 * time.Millisecond

	windowKeys = 24
	exactKeys  = 8 // under policy exact, which refuses nothing
)

var (
	windowPolicy = &throttler.Policy{Name: "window", Limits: []throttler.Limit{{Quota: quota, Window: window, Aligned: true}}}
	exactPolicy  = &throttler.Policy{Name: "exact", Limits: []throttler.Limit{{Quota: 1 << 40, Window: 24 * time.Hour}}}
)

// chargeOf returns the charge of a key of the load.
func chargeOf(key int) throttler.Charge {
	if key < windowKeys {
		return windowPolicy.Charge(fmt.Sprint("client ", key))
	}
	return exactPolicy.Charge(fmt.Sprint("account ", key))
}

// work describes the work of a worker process, which ends with its standard input. A line
// "skew 1500" on it sets the clock 1,500 ms ahead.
type work struct {
	Process int
	Life    int // how many times the process was started before
	Seed    uint64
	Clients int // goroutines, each with one decision at a time
	Every   time.Duration
	Skew    int64 // ms
	Record  string
	Shards  []workShard
}

// workShard is a shard, with the addresses of this process's links to it, of its Sentinels, or
// of the nodes of its Cluster.
type workShard struct {
	Name    string
	Addrs   []string
	Master  string // to the Sentinels
	Replica string // or ""
}

const workVariable = "WEIR_CHAOS_WORK"

// runAsWorker does the work in the environment, if any, and exits.
func runAsWorker() {
	var w work
	job.Main(workVariable, &w, func() error { return w.run(os.Stdin, os.Stdout) })
}

// open returns a backend over shards, and a function that closes it and its clients.
func open(shards []workShard) (b *redisbackend.Backend, done func(), err error) {
	var clients []redis.UniversalClient
	client := func(master string, addrs ...string) redis.UniversalClient {
		c, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: addrs, MasterName: master})
		if err != nil {
			panic(err) // no addresses
		}
		clients = append(clients, c)
		return c
	}
	var redisShards []redisbackend.Shard
	for _, s := range shards {
		shard := redisbackend.Shard{Name: s.Name, Primary: client(s.Master, s.Addrs...)}
		if s.Replica != "" {
			shard.Replicas = []redis.UniversalClient{client("", s.Replica)}
		}
		redisShards = append(redisShards, shard)
	}
	if b, err = redisbackend.New(redisShards, nil); err != nil {
		return nil, nil, err
	}
	return b, func() {
		b.Close()
		for _, c := range clients {
			_ = c.Close()
		}
	}, nil
}

// skewed is a clock that is wrong.
type skewed struct{ skew atomic.Int64 } // ms

func (s *skewed) Now() time.Time {
	return time.Now().Add(time.Duration(s.skew.Load()) * time.Millisecond)
}

func (w work) run(orders io.Reader, ready io.Writer) error {
	logging.Disable()
	b, done, err := open(w.Shards)
	if err != nil {
		return err
	}
	defer done()
	file, err := os.OpenFile(w.Record, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	c := &crew{work: w, file: file, meter: meter.Start(), clock: new(skewed)}
	defer c.meter.Stop()
	c.clock.skew.Store(w.Skew)
	c.throttler = throttler.New(b, &throttler.Options{Clock: c.clock})
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	errs := make([]error, w.Clients)
	for i := range w.Clients {
		group.Go(func() { errs[i] = c.client(ctx, i) })
	}
	fmt.Fprintln(ready, "ready")
	for lines := bufio.NewScanner(orders); lines.Scan(); {
		var skew int64
		if _, err := fmt.Sscanf(lines.Text(), "skew %d", &skew); err != nil {
			break
		}
		c.clock.skew.Store(skew)
	}
	cancel()
	group.Wait()
	return errors.Join(errs...)
}

// crew is the clients of a worker process.
type crew struct {
	work
	throttler *throttler.Throttler
	clock     *skewed
	meter     *meter.Meter
	file      *os.File
	last      atomic.Int64 // ID
}

func (c *crew) client(ctx context.Context, i int) error {
	random := rand.New(rand.NewPCG(c.Seed, uint64(c.Process<<32+c.Life<<16+i)))
	for every.Wait(ctx, time.Duration(random.Int64N(2*int64(c.Every)))) {
		if err := c.decide(random.IntN(windowKeys+exactKeys), random.IntN(10) == 0); err != nil {
			return err
		}
	}
	return nil
}

// decide makes one decision about a key, and records it. It records the call first, so that a
// process that is killed leaves a record of its possible decision.
func (c *crew) decide(key int, peek bool) error {
	id := c.last.Add(1)
	if err := c.write(record{ID: id, At: history.Monotonic(), Peek: peek, Key: key}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	end := c.meter.Call(deadline)
	decide := c.throttler.Take
	if peek {
		decide = c.throttler.Peek
	}
	d, err := decide(ctx, chargeOf(key))
	took, stalled := end()
	a := answer{At: history.Monotonic(), Took: took, Stalled: stalled, Fate: history.FateOf(err)}
	if err == nil {
		s := d.Limit(0)
		a.Allowed, a.Degraded, a.Used, a.Reset, a.Decided = d.Allowed, d.Degraded, s.Used, s.ResetAt.UnixMilli(), d.At().UnixMilli()
	} else {
		a.Error = err.Error()
	}
	return c.write(record{ID: id, Answer: &a})
}

// write writes a record by one call, so that the records of a process that is killed are complete.
func (c *crew) write(r record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = c.file.Write(append(line, '\n'))
	return err
}

// record is a line in a worker's file: the call of a decision, or its answer.
type record struct {
	ID     int64
	At     int64 // of the call, by history.Monotonic
	Peek   bool
	Key    int
	Answer *answer // nil in the record of a call
}

// answer is the return of a decision.
type answer struct {
	At            int64 // by history.Monotonic
	Took, Stalled time.Duration
	Fate          history.Fate
	Allowed       bool
	Degraded      bool
	Used          int64
	Reset         int64 // ms
	Decided       int64 // ms, by the process's clock
	Error         string
}
