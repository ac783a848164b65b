package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// A tally counts the outcomes of takes of one unit from some keys.
type tally struct {
	mu      sync.Mutex
	used    map[string]map[int64]bool // the values of used that allowed takes reported, by key
	unknown map[string]int64          // takes of unknown outcome
	unsent  int64
	refused int64
}

func newTally() *tally {
	return &tally{used: make(map[string]map[int64]bool), unknown: make(map[string]int64)}
}

// add records the outcome of a take.
func (y *tally) add(t *testing.T, key string, d throttler.Decision, err error) {
	t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	switch {
	case errors.Is(err, throttler.ErrUnavailable):
		y.unknown[key]++
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		y.unsent++
	case err != nil:
		t.Errorf("key %s: %v", key, err)
	case !d.Allowed:
		y.refused++
	default:
		if y.used[key] == nil {
			y.used[key] = make(map[int64]bool)
		}
		if used := d.Limit(0).Used; y.used[key][used] {
			t.Errorf("key %s: two takes report %d used", key, used)
		} else {
			y.used[key][used] = true
		}
	}
}

// check compares the callers' outcomes with the server's counts: each answered take is charged
// once, and each take of unknown outcome at most once.
func (y *tally) check(t *testing.T, th *throttler.Throttler, p *throttler.Policy) {
	t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	keys := make(map[string]bool)
	for key := range y.used {
		keys[key] = true
	}
	for key := range y.unknown {
		keys[key] = true
	}
	for key := range keys {
		d, err := th.Peek(t.Context(), p.Charge(key))
		if err != nil {
			t.Fatal(err)
		}
		used, answered := d.Limit(0).Used, int64(len(y.used[key]))
		if used < answered || used > answered+y.unknown[key] {
			t.Errorf("key %s: the server counts %d; %d takes were answered, the outcome of %d is unknown", key, used, answered, y.unknown[key])
		}
	}
}

func (y *tally) sum() (answered, unknown int64) {
	for _, used := range y.used {
		answered += int64(len(used))
	}
	for _, n := range y.unknown {
		unknown += n
	}
	return answered, unknown
}

// load runs that many goroutines, each with that many takes of one unit from one of 20 keys.
func (y *tally) load(t *testing.T, th *throttler.Throttler, p *throttler.Policy, goroutines, takes int, bounded func() (context.Context, context.CancelFunc)) {
	t.Helper()
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			for range takes {
				key := fmt.Sprint("key", random.IntN(20))
				ctx, cancel := bounded()
				d, err := th.Take(ctx, p.Charge(key))
				cancel()
				y.add(t, key, d, err)
			}
		})
	}
	all.Wait()
}

func unbounded() (context.Context, context.CancelFunc) { return context.Background(), func() {} }

func within(d time.Duration) func() (context.Context, context.CancelFunc) {
	return func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), d)
	}
}

// eventually waits until is returns true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// idle reports whether no decision waits or is in flight.
func (b *bench) idle() bool {
	inFlight, waiting := b.backend.Batches()
	return inFlight == 0 && waiting == 0
}

var everyLimit = []throttler.Limit{
	{Quota: 1 << 30, Window: time.Hour},
	{Quota: 1 << 30, Window: time.Hour, Algorithm: throttler.SlidingWindow},
}

// Decisions of many goroutines share round trips, and each is exact.
func TestSharedRoundTripsAreExact(t *testing.T) {
	for _, limit := range everyLimit {
		for name, bounded := range map[string]func() (context.Context, context.CancelFunc){"unbounded": unbounded, "bounded": within(time.Minute)} {
			t.Run(limit.Algorithm.String()+"/"+name, func(t *testing.T) {
				b := newBench(t, newClient(t, testserver.Redis(t).Addr))
				p := policy("core", limit)
				if err := b.backend.Load(t.Context()); err != nil {
					t.Fatal(err)
				}
				y := newTally()
				y.load(t, b.Throttler, p, 64, 10, bounded)
				y.check(t, b.Throttler, p)
				if answered, unknown := y.sum(); answered != 64*10 || unknown > 0 {
					t.Errorf("%d takes were answered, %d are unknown, want all %d", answered, unknown, 64*10)
				}
				if calls := commandStats(t, b.client)["evalsha"].calls; calls > 64*10/2 {
					t.Errorf("%d EVALSHA for %d decisions of 64 goroutines", calls, 64*10)
				}
				eventually(t, "all batches to end", b.idle)
			})
		}
	}
}

// Goroutines that are ready to run when a decision is about to be sent run first, and share
// its round trip.
func TestReadyCallersJoinABatch(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // or some would run beside the first
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	if err := b.backend.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := policy("core", perHour(1000))
	const bursts, callers = 10, 8
	for range bursts {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				if _, err := b.Take(t.Context(), p.Charge("all")); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	// Occasionally the scheduler continues the first before the others.
	if calls := commandStats(t, b.client)["evalsha"].calls; calls > 3*bursts/2 {
		t.Errorf("%d EVALSHA for %d times %d decisions at once, want one each time", calls, bursts, callers)
	}
}

// Takes, refusals, settlements, refunds and chains of several charges share calls and
// pipelines, with the same outcomes as alone.
func TestMixedDecisionsTravelTogether(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	window, small := policy("window", perHour(1<<30)), policy("small", perHour(3))
	chain := policy("chain", everyLimit...)
	var all sync.WaitGroup
	var allowed atomic.Int64
	for g := range 64 {
		all.Go(func() {
			own := fmt.Sprint("own", g)
			for i := range int64(10) {
				d, err := b.Take(t.Context(), window.Charge("all"), chain.Charge(own))
				if err != nil || d.Limit(1).Used != i+1 {
					t.Errorf("chain %d: used %d, %v; want %d", i, d.Limit(1).Used, err, i+1)
					return
				}
				if d, err := b.Take(t.Context(), small.Charge("few")); err != nil {
					t.Error(err)
				} else if d.Allowed {
					allowed.Add(1)
				}
				extra, err := b.Take(t.Context(), window.Charge("all"))
				if err != nil {
					t.Error(err)
				}
				if _, err := b.Refund(t.Context(), extra); err != nil {
					t.Error(err)
				}
				if d, err = b.Settle(t.Context(), d, 2, 1); err != nil || d.Limit(1).Used != i+1 {
					t.Errorf("settlement %d: used %d, %v; want %d", i, d.Limit(1).Used, err, i+1)
				}
			}
		})
	}
	all.Wait()
	d, err := b.Peek(t.Context(), window.Charge("all"))
	if err != nil || d.Limit(0).Used != 64*10*2 {
		t.Errorf("used %d, %v; want %d: 2 for each chain, and no more for what was refunded", d.Limit(0).Used, err, 64*10*2)
	}
	if allowed.Load() != 3 {
		t.Errorf("%d takes were allowed of a quota of 3", allowed.Load())
	}
}

// Replies of whole batches are lost, and the client's settings allow three retries: nothing is
// charged twice.
func TestLostRepliesOfBatches(t *testing.T) {
	server := testserver.Redis(t)
	var answers atomic.Int64
	relay := testserver.Relay(t, server.Addr, func([]byte) bool { return answers.Add(1)%10 == 0 })
	c := redis.NewClient(&redis.Options{Addr: relay}) // MaxRetries 0 means 3
	t.Cleanup(func() { _ = c.Close() })
	lossy, direct := newBench(t, c), newBench(t, newClient(t, server.Addr))
	p := policy("core", perHour(1<<30))
	y := newTally()
	y.load(t, lossy.Throttler, p, 64, 30, unbounded)
	y.check(t, direct.Throttler, p)
	if answered, unknown := y.sum(); unknown == 0 || answered == 0 {
		t.Errorf("%d takes were answered, %d are unknown; want some of each", answered, unknown)
	}
}

// A caller that leaves before its decision is sent gets its context's error, and the decision
// is never sent. A caller that leaves later gets that error and ErrUnavailable, at once.
func TestLeaving(t *testing.T) {
	p := policy("core", perHour(100))
	staying, leaveBatches := context.WithCancel(t.Context())
	defer leaveBatches()
	server, b, sent := newFull(t, staying, p)
	direct := newBench(t, newClient(t, server.Addr))
	leaves, leaveQueue := context.WithCancel(t.Context())
	defer leaveQueue()
	left := make(chan error, 1)
	go func() {
		_, err := b.Take(leaves, p.Charge("leaves"))
		left <- err
	}()
	eventually(t, "one that waits", func() bool { _, waiting := b.backend.Batches(); return waiting == 1 })
	stays := make(chan error, 1)
	go func() {
		_, err := b.Take(t.Context(), p.Charge("stays"))
		stays <- err
	}()
	eventually(t, "two that wait", func() bool { _, waiting := b.backend.Batches(); return waiting == 2 })

	leaveQueue()
	if err := <-left; !errors.Is(err, context.Canceled) || errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("one that left the queue: %v; want context.Canceled, and not ErrUnavailable", err)
	}
	leaveBatches()
	for range redisbackend.MaxInFlight {
		err := <-sent
		var unavailable *driver.UnavailableError
		if !errors.Is(err, context.Canceled) || !errors.As(err, &unavailable) || unavailable.Shard != "a" {
			t.Errorf("one that left its batch: %v; want context.Canceled, of an UnavailableError of shard a", err)
		}
	}
	server.Resume()
	if err := <-stays; err != nil {
		t.Errorf("one that stayed: %v", err)
	}
	for key, want := range map[string]int64{"leaves": 0, "stays": 1, "sent0": 1} {
		if d, err := direct.Peek(t.Context(), p.Charge(key)); err != nil || d.Limit(0).Used != want {
			t.Errorf("%s: used %d, %v; want %d", key, d.Limit(0).Used, err, want)
		}
	}
}

// newFull returns a bench over a server that hangs, with MaxInFlight batches in flight. Each
// is a take of p from one of the keys sent0, sent1 and so on; sent receives their errors.
func newFull(t *testing.T, ctx context.Context, p *throttler.Policy) (server *testserver.RedisServer, b bench, sent <-chan error) {
	t.Helper()
	server = testserver.Redis(t)
	b = newBench(t, newClient(t, server.Addr))
	if _, err := b.Take(t.Context(), p.Charge("first")); err != nil { // opens a connection, and loads the script
		t.Fatal(err)
	}
	eventually(t, "the batches of before to end", b.idle) // or they would take the next along
	server.Pause()
	b.backend.SetFar()
	errs := make(chan error, redisbackend.MaxInFlight)
	for i := range redisbackend.MaxInFlight {
		go func() {
			_, err := b.Take(ctx, p.Charge(fmt.Sprint("sent", i)))
			errs <- err
		}()
		eventually(t, "batches in flight", func() bool { inFlight, waiting := b.backend.Batches(); return inFlight == i+1 && waiting == 0 })
	}
	return server, b, errs
}

// Whatever the server does and whenever other callers leave, no caller waits beyond its
// deadline, and each gets its context's error or breaker.ErrOpen.
func TestHungServer(t *testing.T) {
	for _, name := range []string{"recommended", "plain"} {
		t.Run(name, func(t *testing.T) {
			server := testserver.Redis(t)
			c := newClient(t, server.Addr)
			if name == "plain" {
				c = redis.NewClient(&redis.Options{Addr: server.Addr}) // ends a call only at its ReadTimeout
				t.Cleanup(func() { _ = c.Close() })
			}
			b := newBench(t, c)
			p := policy("core", perHour(1<<30))
			y := newTally()
			y.load(t, b.Throttler, p, 64, 5, unbounded)
			server.Pause()
			var all sync.WaitGroup
			var unknown, latest atomic.Int64
			lateness := pauses()
			for g := range 200 {
				all.Go(func() {
					random := rand.New(rand.NewPCG(uint64(g), 2))
					for i := range 3 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+random.IntN(60))*time.Millisecond)
						want := context.DeadlineExceeded
						if g%4 == 0 {
							time.AfterFunc(5*time.Millisecond, cancel)
							want = context.Canceled
						}
						began := time.Now()
						_, err := b.Take(ctx, p.Charge(fmt.Sprint("hung", g, i)))
						deadline, _ := ctx.Deadline()
						cancel()
						if late := time.Since(deadline); time.Since(began) > time.Second {
							for most := latest.Load(); int64(late) > most && !latest.CompareAndSwap(most, int64(late)); most = latest.Load() {
							}
						}
						// A call that was sent alone ends with its deadline, not when it is cancelled.
						if !errors.Is(err, want) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, breaker.ErrOpen) {
							t.Errorf("%v, want %v", err, want)
						}
						if errors.Is(err, throttler.ErrUnavailable) {
							unknown.Add(1)
						}
					}
				})
			}
			all.Wait()
			// A busy machine is late itself, and more than once in a call.
			if late, machine := time.Duration(latest.Load()), lateness(); late > time.Second+10*machine {
				t.Errorf("a call returned %v after its deadline; the machine was %v late", late, machine)
			}
			if unknown.Load() == 0 {
				t.Error("nothing was sent")
			}
			server.Resume()
			eventually(t, "a take of the server that is back", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := b.Take(ctx, p.Charge("alice"))
				return err == nil
			})
		})
	}
}

func TestFullQueue(t *testing.T) {
	p := policy("core", perHour(100))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	server, b, sent := newFull(t, ctx, p)
	b.backend.SetRoom(5)
	waited := make(chan error, 5)
	for range 5 {
		go func() {
			_, err := b.Take(ctx, p.Charge("waits"))
			waited <- err
		}()
	}
	eventually(t, "a full queue", func() bool { _, waiting := b.backend.Batches(); return waiting == 5 })
	for range 3 {
		if _, err := b.Take(ctx, p.Charge("crowded")); !errors.Is(err, throttler.ErrUnavailable) || !errors.Is(err, driver.ErrOverloaded) || driver.MayHaveCharged(err) || !strings.Contains(err.Error(), "queue") {
			t.Errorf("%v, want ErrUnavailable and ErrOverloaded, that nothing was sent, and that the queue is full", err)
		}
	}
	server.Resume()
	for range 5 {
		if err := <-waited; err != nil {
			t.Errorf("one that waited: %v", err)
		}
	}
	for range redisbackend.MaxInFlight {
		if err := <-sent; err != nil {
			t.Errorf("one that was sent: %v", err)
		}
	}
	if d, err := b.Peek(t.Context(), p.Charge("crowded")); err != nil || d.Limit(0).Used != 0 {
		t.Errorf("takes that found no room: used %d, %v; want 0", d.Limit(0).Used, err)
	}
}

// Callers that have left take no room in the queue.
func TestQueueOfCallersThatLeft(t *testing.T) {
	p := policy("core", perHour(100))
	server, b, sent := newFull(t, t.Context(), p)
	b.backend.SetRoom(3)
	ask := func(ctx context.Context, n int) <-chan error {
		errs := make(chan error, n)
		for range n {
			go func() {
				_, err := b.Take(ctx, p.Charge("waits"))
				errs <- err
			}()
		}
		return errs
	}
	leaving, leave := context.WithCancel(t.Context())
	defer leave()
	first := ask(t.Context(), 1)
	eventually(t, "one that stays", func() bool { _, waiting := b.backend.Batches(); return waiting == 1 })
	left := ask(leaving, 2)
	eventually(t, "a full queue", func() bool { _, waiting := b.backend.Batches(); return waiting == 3 })
	leave()
	for range 2 {
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("one that left: %v, want context.Canceled", err)
		}
	}
	stayed := ask(t.Context(), 2)
	eventually(t, "others in their place", func() bool { return b.backend.Waiting() == 3 || len(stayed) > 0 })
	server.Resume()
	if err := <-first; err != nil {
		t.Errorf("one that waited before: %v", err)
	}
	for range 2 {
		if err := <-stayed; err != nil {
			t.Errorf("one that came then: %v", err)
		}
	}
	for range redisbackend.MaxInFlight {
		if err := <-sent; err != nil {
			t.Errorf("one that was sent: %v", err)
		}
	}
}

// A key with a foreign value fails its own decisions, not other decisions in the same call.
func TestHostileNeighbour(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	p := policy("core", perHour(1<<30))
	if err := b.client.RPush(t.Context(), b.backend.Locate(p.Charge("hostile")).Key, "a").Err(); err != nil {
		t.Fatal(err)
	}
	var hostile sync.WaitGroup
	for range 16 {
		hostile.Go(func() {
			for range 40 {
				if _, err := b.Take(t.Context(), p.Charge("hostile")); !errors.Is(err, throttler.ErrUnavailable) || !strings.Contains(err.Error(), "newer version") {
					t.Errorf("the key that holds a list: %v", err)
				}
			}
		})
	}
	y := newTally()
	y.load(t, b.Throttler, p, 48, 40, unbounded)
	hostile.Wait()
	y.check(t, b.Throttler, p)
	if answered, unknown := y.sum(); answered != 48*40 || unknown > 0 {
		t.Errorf("%d of the others were answered, %d are unknown, want all %d", answered, unknown, 48*40)
	}
}

// One address may be a cluster node's, which refuses keys of different slots in one call. The
// backend finds that out, and no decision fails.
func TestKeysOfDifferentSlotsBehindOneAddress(t *testing.T) {
	t.Parallel() // it waits most of the time
	server := startCluster(t, 1)[0]
	b := newBench(t, newClient(t, server.Addr))
	p := policy("core", perHour(1<<30))
	y := newTally()
	y.load(t, b.Throttler, p, 64, 20, unbounded)
	y.check(t, b.Throttler, p)
	if answered, unknown := y.sum(); answered != 64*20 || unknown > 0 {
		t.Errorf("%d takes were answered, %d are unknown, want all %d", answered, unknown, 64*20)
	}
}

// A hook of the client that panics in a caller's goroutine does not stop the others.
func TestHookThatPanics(t *testing.T) {
	c := newClient(t, testserver.Redis(t).Addr)
	b := newBench(t, c)
	p := policy("core", perHour(1<<30))
	if _, err := b.Take(t.Context(), p.Charge("alice")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first batch to end", b.idle) // or the next take may join its goroutine
	var panics atomic.Bool
	c.AddHook(panicHook{&panics})
	for range 2 * redisbackend.MaxInFlight {
		panics.Store(true)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the hook did not panic")
				}
			}()
			_, _ = b.Take(context.Background(), p.Charge("alice"))
		}()
		panics.Store(false)
	}
	eventually(t, "all batches to end", b.idle)
	if d, err := b.Take(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != 2 {
		t.Errorf("afterwards: used %d, %v; want 2", d.Limit(0).Used, err)
	}
}

type panicHook struct{ panics *atomic.Bool }

func (panicHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (panicHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h panicHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.panics.Load() {
			panic("hook")
		}
		return next(ctx, cmd)
	}
}

// The bound on batches in flight is the client's number of connections, from 2 to 8.
func TestInFlightByConnections(t *testing.T) {
	s := testserver.Redis(t)
	for connections, want := range map[int]int{1: 2, 2: 2, 5: 5, 8: 8, 100: 8} {
		c := redis.NewClient(&redis.Options{Addr: s.Addr, PoolSize: connections})
		t.Cleanup(func() { _ = c.Close() })
		b := newBench(t, c)
		if got := b.backend.MostInFlight(); got != want {
			t.Errorf("%d connections: at most %d batches in flight, want %d", connections, got, want)
		}
	}
}

// A limitsHook records the number of limits in flight at each call.
type limitsHook struct {
	b      *redisbackend.Backend
	limits *[]int
}

func (limitsHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h limitsHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			*h.limits = append(*h.limits, h.b.LimitsInFlight())
		}
		return next(ctx, cmd)
	}
}

func (h limitsHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A batch counts its limits, whether its caller sends it or a goroutine does.
func TestBatchesCountLimits(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	two := policy("two", perHour(1<<30), throttler.Limit{Quota: 1 << 30, Window: time.Minute, Algorithm: throttler.TokenBucket})
	if _, err := b.Take(context.Background(), two.Charge("alice")); err != nil { // loads the script
		t.Fatal(err)
	}
	var limits []int
	b.client.AddHook(limitsHook{b.backend, &limits})
	cancelable, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, ctx := range []context.Context{context.Background(), cancelable, context.Background()} {
		eventually(t, "the batch to end", b.idle)
		charges := []throttler.Charge{policy("one", perHour(1<<30)).Charge("alice"), two.Charge("alice")}
		if _, err := b.Take(ctx, charges...); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(limits, []int{3, 3, 3}) {
		t.Errorf("limits in flight: %d, want 3 each time", limits)
	}
}

// Batches that callers send, and batches that goroutines send, show whether the server is far
// away.
func TestLateAnswersAreNoticed(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	p := policy("core", perHour(1<<30))
	cancelable, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, ctx := range map[string]context.Context{"alone": context.Background(), "in a goroutine": cancelable} {
		for _, late := range []bool{true, false} {
			eventually(t, "the batches of before to end", b.idle)
			if b.backend.SetNear(); late {
				b.backend.SetFar()
			}
			if _, err := b.Take(ctx, p.Charge("alice")); err != nil {
				t.Error(err)
			}
			eventually(t, "the batch to end", b.idle)
			if b.backend.Late() != late {
				t.Errorf("%s: the last answer is late: %v, want %v", name, !late, late)
			}
		}
	}
}
