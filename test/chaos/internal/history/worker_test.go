package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/test/chaos/internal/job"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// policies have small quotas and short windows, so that histories contain refusals and resets.
var policies = byName(
	throttler.Policy{Name: "fixed", Limits: []throttler.Limit{{Quota: 12, Window: 300 * time.Millisecond}}},
	throttler.Policy{Name: "sliding", Limits: []throttler.Limit{{Quota: 12, Window: 300 * time.Millisecond, Algorithm: throttler.SlidingWindow}}},
	throttler.Policy{Name: "log", Limits: []throttler.Limit{{Quota: 12, Window: 300 * time.Millisecond, Algorithm: throttler.SlidingLog}}},
	throttler.Policy{Name: "bucket", Limits: []throttler.Limit{{Quota: 12, Window: 300 * time.Millisecond, Algorithm: throttler.TokenBucket, Burst: 7}}},
	throttler.Policy{Name: "queue", Limits: []throttler.Limit{{Quota: 12, Window: 300 * time.Millisecond, Algorithm: throttler.LeakyBucket}}},
	throttler.Policy{Name: "two", Limits: []throttler.Limit{
		{Quota: 9, Window: 200 * time.Millisecond},
		{Quota: 30, Window: time.Second, Algorithm: throttler.TokenBucket},
	}},
)

func byName(list ...throttler.Policy) map[string]*throttler.Policy {
	named := make(map[string]*throttler.Policy)
	for i := range list {
		named[list[i].Name] = &list[i]
	}
	return named
}

// users are the policies of a partition's second count. The first count is under policy fixed.
var users = []string{"fixed", "sliding", "log", "bucket", "queue", "two"}

// Work describes the work of a worker process.
type Work struct {
	Process  int           // its number
	Store    string        // "redis" or "memcached"
	Addr     string        // of the server, or of a link to it
	Record   string        // the file to write
	Seed     uint64        // of the choice of operations
	Clients  int           // goroutines, each with one operation at a time
	Cells    int           // partitions in use at a time
	NewCells time.Duration // after which new ones replace them
	Every    time.Duration // mean time between the operations of a client
	Deadline time.Duration // of each operation
	Lasts    time.Duration
}

const workVariable = "WEIR_HISTORY_WORK"

// Main does the work that [Work.Environ] describes and exits, if the environment contains any.
// A program that starts itself as a worker calls it first.
func Main() {
	var w Work
	job.Main(workVariable, &w, func() error { return w.run() })
}

// Environ returns the environment variable that makes Main do w.
func (w Work) Environ() string { return job.Environ(workVariable, w) }

func (w Work) run() error {
	backend, done, err := w.open()
	if err != nil {
		return err
	}
	defer done()
	recorder, err := NewRecorder(w.Process, w.Record)
	if err != nil {
		return err
	}
	defer recorder.Close()
	ctx, cancel := context.WithTimeout(context.Background(), w.Lasts)
	defer cancel()
	var group sync.WaitGroup
	errs := make([]error, w.Clients)
	for i := range w.Clients {
		c := client{Work: w, backend: backend, recorder: recorder, random: rand.New(rand.NewPCG(w.Seed, uint64(w.Process<<16+i)))}
		group.Go(func() { errs[i] = c.run(ctx) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (w Work) open() (b driver.Backend, done func(), err error) {
	switch w.Store {
	case "redis":
		c, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{w.Addr}})
		if err != nil {
			return nil, nil, err
		}
		b, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: c}}, nil)
		return b, func() { b.Close(); _ = c.Close() }, err
	case "memcached":
		c := memcachedbackend.NewClient(w.Addr)
		b, err := memcachedbackend.New([]memcachedbackend.Server{{Name: "a", Client: c}}, nil)
		return b, func() { b.Close(); _ = c.Close() }, err
	}
	return nil, nil, fmt.Errorf("store is %q", w.Store)
}

// client is one goroutine of a worker.
type client struct {
	Work
	backend  driver.Backend
	recorder *Recorder
	random   *rand.Rand

	takes []take // to settle
}

// take is an allowed take.
type take struct {
	id       int
	decision driver.Decision
}

func (c *client) run(ctx context.Context) error {
	for every.Wait(ctx, time.Duration(c.random.Int64N(2*int64(c.Every)))) {
		var err error
		switch n := c.random.IntN(10); {
		case n < 2:
			err = c.peek()
		case n < 4 && len(c.takes) > 0:
			err = c.settle()
		default:
			err = c.take()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *client) take() error {
	call := Record{Op: Take, Now: time.Now().UnixMilli()}
	call.Partition, call.Charges = c.choose()
	id, err := c.recorder.Call(call)
	if err != nil {
		return err
	}
	o := Operation{Call: call}
	ctx, cancel := context.WithTimeout(context.Background(), c.Deadline)
	defer cancel()
	d, err := c.backend.Take(ctx, o.request())
	if err == nil && d.Allowed {
		c.takes = append(c.takes, take{id, d})
	}
	return c.recorder.Return(returned(id, d, err))
}

// peek asks about one count, because reading two at one instant is not promised.
func (c *client) peek() error {
	call := Record{Op: Peek, Now: time.Now().UnixMilli()}
	call.Partition, call.Charges = c.choose()
	call.Charges = call.Charges[len(call.Charges)-1:]
	id, err := c.recorder.Call(call)
	if err != nil {
		return err
	}
	o := Operation{Call: call}
	ctx, cancel := context.WithTimeout(context.Background(), c.Deadline)
	defer cancel()
	d, err := c.backend.Peek(ctx, o.request())
	return c.recorder.Return(returned(id, d, err))
}

// settle settles one of the client's takes, at up to two units more than it charged.
func (c *client) settle() error {
	i := c.random.IntN(len(c.takes))
	t := c.takes[i]
	c.takes = append(c.takes[:i], c.takes[i+1:]...)
	call := Record{Op: Settle, Now: time.Now().UnixMilli(), Of: t.id, Partition: t.decision.Charges()[0].Partition}
	for _, charge := range t.decision.Charges() {
		call.Costs = append(call.Costs, c.random.Int64N(charge.Cost+3))
	}
	id, err := c.recorder.Call(call)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.Deadline)
	defer cancel()
	d, err := c.backend.Settle(ctx, driver.Settlement{Now: call.Now, Charged: t.decision, Costs: call.Costs})
	return c.recorder.Return(returned(id, d, err))
}

// choose returns a partition that is in use now, with one or both of its counts. Partitions
// change with time, because each unknown outcome doubles the work of the check.
func (c *client) choose() (partition string, charges []Charge) {
	epoch := Monotonic() / int64(c.NewCells)
	cell := c.random.IntN(c.Cells)
	partition = fmt.Sprint("cell ", cell, " of ", epoch)
	user := users[(int(epoch)*c.Cells+cell)%len(users)]
	pair := []Charge{
		{Policy: "fixed", Key: partition, Cost: 1 + c.random.Int64N(2)},
		{Policy: user, Key: "user " + strconv.Itoa(cell), Cost: 1 + c.random.Int64N(3)},
	}
	switch c.random.IntN(3) {
	case 0:
		return partition, pair[:1]
	case 1:
		return partition, pair[1:]
	}
	return partition, pair
}

func returned(id int, d driver.Decision, err error) Record {
	r := Record{ID: id, Fate: FateOf(err)}
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.Allowed = d.Allowed
	for _, result := range d.Results() {
		result.Mark.Note = 0
		r.Results = append(r.Results, result)
	}
	return r
}
