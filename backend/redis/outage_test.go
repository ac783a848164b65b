package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// events collects an observer's events.
type events struct {
	observe.Nothing

	mu      sync.Mutex
	sent    []observe.Sent
	checked []observe.Checked
}

func (e *events) Sent(s observe.Sent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent = append(e.sent, s)
}

func (e *events) Checked(c observe.Checked) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checked = append(e.checked, c)
}

// opened counts the events of a breaker that opened.
func (e *events) opened() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, c := range e.checked {
		if c.Open {
			n++
		}
	}
	return n
}

// answered returns the round trips that did not fail.
func (e *events) answered() []observe.Sent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(e.sent), func(s observe.Sent) bool { return s.Err != nil })
}

// silent returns the address of a server that accepts connections and never answers, and the
// number of accepted connections.
func silent(t *testing.T) (addr string, accepted *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			accepted.Add(1)
		}
	})
	t.Cleanup(func() { _ = listener.Close(); accepting.Wait() })
	return listener.Addr().String(), accepted
}

// newObserved returns a bench over c, and its observer's events.
func newObserved(t *testing.T, c redis.UniversalClient, options redisbackend.Options) (bench, *events) {
	t.Helper()
	e := new(events)
	options.Observer = e
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: c}}, &options)
	clk := clock.NewManual(t0)
	own, _ := c.(*redis.Client)
	return bench{throttler.New(b, &throttler.Options{Clock: clk}), b, clk, own}, e
}

// quick returns a client with the recommended settings.
func quick(t *testing.T, addr string) *redis.Client {
	return connect(t, &redis.UniversalOptions{Addrs: []string{addr}}).(*redis.Client)
}

// A server that accepts connections and never answers costs a few decisions their
// deadlines, a few connections, and no more.
func TestSilentServer(t *testing.T) {
	for _, callers := range []int{1, 64} {
		for name, client := range map[string]func(*testing.T, string) *redis.Client{
			"recommended": quick,
			"plain":       func(_ *testing.T, addr string) *redis.Client { return redis.NewClient(&redis.Options{Addr: addr}) },
		} {
			t.Run(fmt.Sprintf("%s/%d callers", name, callers), func(t *testing.T) {
				addr, accepted := silent(t)
				c := client(t, addr)
				t.Cleanup(func() { _ = c.Close() })
				b, e := newObserved(t, c, redisbackend.Options{})
				p := policy("core", perHour(1<<30))
				call := func(g int) error {
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					defer cancel()
					_, err := b.Take(ctx, p.Charge(fmt.Sprint("key", g)))
					return err
				}
				var all sync.WaitGroup
				start := time.Now()
				for g := range callers {
					all.Go(func() {
						for !b.backend.Open() {
							if err := call(g); err == nil {
								t.Error("a server that never answers has answered")
							}
						}
					})
				}
				all.Wait()
				before, began := accepted.Load(), time.Now()
				// It opens in 150 ms, or later on a busy machine.
				if took := began.Sub(start); before > 40*(1+int64(took/(300*time.Millisecond))) {
					t.Errorf("%d connections until the breaker opened, after %v", before, took)
				}
				spent := processorTime(t)
				for range 2000 {
					err := call(0)
					var unavailable *driver.UnavailableError
					if !errors.Is(err, breaker.ErrOpen) || !errors.As(err, &unavailable) || unavailable.Shard != "a" {
						t.Fatalf("while the breaker is open: %v; want breaker.ErrOpen, of an UnavailableError of shard a", err)
					}
				}
				if took := processorTime(t) - spent; took > 2*time.Second { // 2 µs each are usual
					t.Errorf("2,000 decisions took %v of processors while the breaker was open", took)
				}
				seconds := time.Since(began).Seconds()
				if n := accepted.Load() - before; float64(n) > 12*(seconds+1) {
					t.Errorf("%d connections in %v s while the breaker was open", n, seconds)
				}
				if e.opened() != 1 {
					t.Errorf("the breaker opened %d times, want once", e.opened())
				}
			})
		}
	}
}

// All reads and writes fail at once while the breaker is open.
func TestOpenBreakerStopsAll(t *testing.T) {
	server := testserver.Redis(t)
	b, _ := newObserved(t, newClient(t, server.Addr), redisbackend.Options{})
	p := policy("core", perHour(100))
	d, err := b.Take(t.Context(), p.Charge("alice"))
	if err != nil {
		t.Fatal(err)
	}
	server.Pause()
	b.backend.Trip(errors.New("down"))
	c := p.Charge("alice")
	c.Partition = c.Key
	release := handoff.ReleaseRequest{Now: t0.UnixMilli(), Charges: []throttler.Charge{c}, To: handoff.IDOf("b"), Version: 1}
	readOnly := release
	readOnly.ReadOnly = true
	for name, call := range map[string]func() error{
		"take":         func() error { _, err := b.Take(t.Context(), p.Charge("alice")); return err },
		"peek":         func() error { _, err := b.Peek(t.Context(), p.Charge("alice")); return err },
		"refund":       func() error { _, err := b.Refund(t.Context(), d); return err },
		"release":      func() error { _, err := b.backend.Release(t.Context(), release); return err },
		"read release": func() error { _, err := b.backend.Release(t.Context(), readOnly); return err },
	} {
		if err := call(); !errors.Is(err, throttler.ErrUnavailable) || !errors.Is(err, breaker.ErrOpen) {
			t.Errorf("%s: %v; want ErrUnavailable and breaker.ErrOpen", name, err)
		}
	}
	server.Resume()
	eventually(t, "the breaker to close", func() bool { return !b.backend.Open() })
	if d, err := b.Peek(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != 1 {
		t.Errorf("used %d, %v; want 1: nothing was sent meanwhile", d.Limit(0).Used, err)
	}
	if d, err := b.Refund(t.Context(), d); err != nil || d.Limit(0).Used != 0 {
		t.Errorf("the refund again: used %d, %v; want 0, for the first was not sent", d.Limit(0).Used, err)
	}
}

// Decisions that wait when the breaker opens fail at once; decisions that were sent get their
// replies.
func TestQueueFailsWhenTheBreakerOpens(t *testing.T) {
	p := policy("core", perHour(100))
	server, b, sent := newFull(t, t.Context(), p)
	const waiting = 100
	waited := make(chan error, waiting)
	for range waiting {
		go func() {
			_, err := b.Take(t.Context(), p.Charge("waits"))
			waited <- err
		}()
	}
	eventually(t, "a queue", func() bool { _, n := b.backend.Batches(); return n == waiting })
	b.backend.Trip(errors.New("down"))
	for range waiting {
		if err := <-waited; !errors.Is(err, breaker.ErrOpen) {
			t.Errorf("one that waited: %v, want breaker.ErrOpen", err)
		}
	}
	server.Resume()
	for range redisbackend.MaxInFlight {
		if err := <-sent; err != nil {
			t.Errorf("one that was sent: %v", err)
		}
	}
	eventually(t, "the breaker to close", func() bool { return !b.backend.Open() })
	if d, err := b.Peek(t.Context(), p.Charge("waits")); err != nil || d.Limit(0).Used != 0 {
		t.Errorf("those that waited: used %d, %v; want 0", d.Limit(0).Used, err)
	}
}

// Callers that leave at the same time get their errors at once, and do not leave one by one
// through a lock: 1,000 of them were up to 27 ms late that way.
func TestCallersLeaveTogether(t *testing.T) {
	p := policy("core", perHour(100))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server, b, sent := newFull(t, ctx, p)
	defer server.Resume()
	const waiting = 100
	waited := make(chan error, waiting)
	for range waiting {
		go func() {
			_, err := b.Take(ctx, p.Charge("waits"))
			waited <- err
		}()
	}
	eventually(t, "a queue", func() bool { _, n := b.backend.Batches(); return n == waiting })
	release := b.backend.HoldBatcher()
	defer release()
	cancel()
	for name, errs := range map[string]<-chan error{"sent": sent, "waited": waited} {
		for range cap(errs) {
			select {
			case err := <-errs:
				if err == nil {
					t.Errorf("one whose decision %s: a server that hangs has answered", name)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("a caller whose decision %s needs the batcher's lock to leave", name)
			}
		}
	}
}

// The first refused connection shows that a server is dead, and a probe that it is back. The
// next decision is made then, although a pool of one connection dials only once a second after
// a failed dial.
func TestRestarts(t *testing.T) {
	server := testserver.Redis(t)
	// Clients of redisbackend.NewClient have no such delay.
	c := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, PoolSize: 1})
	t.Cleanup(func() { _ = c.Close() })
	b, e := newObserved(t, c, redisbackend.Options{})
	p := policy("core", perHour(100))
	take := func() error {
		_, err := b.Take(t.Context(), p.Charge("alice"))
		return err
	}
	for outage := range 4 {
		if err := take(); err != nil {
			t.Fatalf("before outage %d: %v", outage, err)
		}
		server.Kill()
		for failed := 0; !b.backend.Open(); failed++ {
			if err := take(); !errors.Is(err, throttler.ErrUnavailable) || failed > 2 {
				t.Fatalf("decision %d of a dead server: %v; want ErrUnavailable, and the breaker to be open", failed, err)
			}
		}
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the breaker to close", func() bool { return !b.backend.Open() })
		if err := take(); err != nil {
			t.Errorf("after outage %d, with the breaker closed: %v", outage, err)
		}
		if got, want := e.opened(), outage+1; got != want {
			t.Errorf("after outage %d the breaker has opened %d times, want %d", outage, got, want)
		}
	}
}

// A failed try counts from its own start: the breaker may have closed since the first try, and
// failures of calls that began before that do not count.
func TestFailedTriesCountFromTheirOwnBegin(t *testing.T) {
	server := testserver.Redis(t)
	var b bench
	var tried atomic.Bool
	o := patient(server.Addr)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if tried.CompareAndSwap(false, true) { // the decision's dial
			b.backend.Trip(errors.New("down"))
			for b.backend.Open() && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			server.Kill()
			return nil, &net.OpError{Op: "dial", Err: errors.New("down")}
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	b, _ = newObserved(t, connect(t, o), redisbackend.Options{Deadline: time.Minute})
	b.backend.WithoutChecks()
	if _, err := b.Take(t.Context(), policy("core", perHour(100)).Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	eventually(t, "the breaker to open, for it had closed before that try", b.backend.Open)
}

// A breaker opens for its shard alone.
func TestOtherShardsNoticeNothing(t *testing.T) {
	addr, _ := silent(t)
	b := newBackend(t, []redisbackend.Shard{
		{Name: "a", Primary: quick(t, addr)},
		{Name: "b", Primary: newClient(t, testserver.Redis(t).Addr)},
	}, nil)
	th := throttler.New(b, nil)
	p := policy("core", perHour(1<<30))
	keyOn := make(map[string]string)
	for i := 0; len(keyOn) < 2; i++ {
		key := fmt.Sprint("key", i)
		keyOn[b.Locate(p.Charge(key)).Shard] = key
	}
	for opened := 0; opened < 100; {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := th.Take(ctx, p.Charge(keyOn["a"]))
		cancel()
		if errors.Is(err, breaker.ErrOpen) {
			opened++
		}
		if _, err := th.Take(t.Context(), p.Charge(keyOn["b"])); err != nil {
			t.Fatalf("the other shard: %v", err)
		}
	}
}

// Deadlines shorter than a round trip fail only their own decisions. They neither open the
// breaker for others, nor cost a connection each.
func TestTinyDeadlines(t *testing.T) {
	server := testserver.Redis(t)
	distant := testserver.Relay(t, server.Addr, func([]byte) bool { time.Sleep(5 * time.Millisecond); return false })
	b, e := newObserved(t, newClient(t, distant), redisbackend.Options{})
	b.backend.SetMinWait(20 * time.Second) // patient, like other tests
	p := policy("core", perHour(1<<30))
	if _, err := b.Take(t.Context(), p.Charge("alice")); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var tiny sync.WaitGroup
	var failed atomic.Int64
	for g := range 8 {
		tiny.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				if _, err := b.Take(ctx, p.Charge(fmt.Sprint("tiny", g))); err != nil {
					failed.Add(1)
				}
				cancel()
			}
		})
	}
	y := newTally()
	y.load(t, b.Throttler, p, 4, 50, unbounded)
	eventually(t, "deadlines to pass", func() bool { return failed.Load() > 100 })
	close(stop)
	tiny.Wait()
	y.check(t, b.Throttler, p)
	if answered, unknown := y.sum(); answered != 4*50 || unknown > 0 {
		t.Errorf("%d decisions of patient callers were answered, %d are unknown, want all %d", answered, unknown, 4*50)
	}
	if e.opened() > 0 {
		t.Errorf("callers in a hurry opened the breaker for all: %+v", e.checked)
	}
	info := newClient(t, server.Addr).Info(t.Context(), "stats").Val()
	var connections int64
	_, _ = fmt.Sscanf(info[strings.Index(info, "total_connections_received:"):], "total_connections_received:%d", &connections)
	if connections > 40 {
		t.Errorf("%d connections for %d decisions that failed", connections, failed.Load())
	}
}

// If the context has no deadline, the backend's applies, whatever the client's timeouts.
func TestDeadlineOfTheBackend(t *testing.T) {
	server := testserver.Redis(t)
	plain := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: time.Minute, DialTimeout: time.Minute})
	t.Cleanup(func() { _ = plain.Close() })
	p := policy("core", perHour(100))
	for name, c := range map[string]*redis.Client{"plain": plain, "recommended": newClient(t, server.Addr)} {
		t.Run(name, func(t *testing.T) {
			b, _ := newObserved(t, c, redisbackend.Options{Deadline: 100 * time.Millisecond})
			var d throttler.Decision
			eventually(t, "a take", func() (taken bool) { // a busy machine may need longer for one
				var err error
				d, err = b.Take(t.Context(), p.Charge("alice"))
				return err == nil
			})
			server.Pause()
			defer server.Resume()
			began := time.Now()
			cancelable, cancel := context.WithCancel(t.Context())
			defer cancel()
			var all sync.WaitGroup
			for _, ctx := range []context.Context{context.Background(), cancelable} {
				for name, call := range map[string]func() error{
					"take": func() error { _, err := b.Take(ctx, p.Charge("alice")); return err },
					"peek": func() error { _, err := b.Peek(ctx, p.Charge("alice")); return err },
					"settle": func() error {
						_, err := b.backend.Settle(ctx, driver.Settlement{Now: t0.UnixMilli(), Charged: *d.Driver(), Costs: []int64{0}})
						return err
					},
					"load": func() error { return b.backend.Load(ctx) },
				} {
					for range 8 {
						all.Go(func() {
							err := call()
							if !errors.Is(err, throttler.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, breaker.ErrOpen) {
								t.Errorf("%s: %v; want ErrUnavailable, and context.DeadlineExceeded or breaker.ErrOpen", name, err)
							}
						})
					}
				}
			}
			all.Wait()
			if waited := time.Since(began); waited > 5*time.Second {
				t.Errorf("decisions took %v, the backend's deadline is 100 ms", waited)
			}
		})
	}
}

// A reply that comes after its batch has ended is never read as another decision's: the
// answers add up, whichever replies were late.
func TestLateReplies(t *testing.T) {
	server := testserver.Redis(t)
	var n atomic.Int64
	slow := testserver.Relay(t, server.Addr, func([]byte) bool {
		if n.Add(1)%5 == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		return false
	})
	b, direct := newBench(t, newClient(t, slow)), newBench(t, newClient(t, server.Addr))
	p := policy("core", perHour(1<<30))
	y := newTally()
	y.load(t, b.Throttler, p, 16, 5, unbounded) // connects
	y.load(t, b.Throttler, p, 16, 40, within(45*time.Millisecond))
	eventually(t, "all batches to end", b.idle)
	y.check(t, direct.Throttler, p)
	if answered, unknown := y.sum(); answered == 0 || unknown == 0 {
		t.Errorf("%d takes were answered, %d are unknown; want some of each", answered, unknown)
	}
}

// The replies of a server that can't serve open its breaker. A successful probe with the same
// script closes it. Nothing is charged twice.
func TestServersThatCannotServe(t *testing.T) {
	for name, test := range map[string]struct {
		begin, end []any // commands
	}{
		"OOM":        {[]any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}},
		"READONLY":   {[]any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}},
		"NOREPLICAS": {[]any{"config", "set", "min-replicas-to-write", "1"}, []any{"config", "set", "min-replicas-to-write", "0"}},
		"NOPERM":     {[]any{"acl", "setuser", "weir", "-@all"}, []any{"acl", "setuser", "weir", "+@all"}},
		"NOAUTH":     {[]any{"acl", "setuser", "weir", "off"}, []any{"acl", "setuser", "weir", "on"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := testserver.Redis(t)
			admin := newClient(t, server.Addr)
			do := func(args []any) {
				t.Helper()
				if err := admin.Do(t.Context(), args...).Err(); err != nil {
					t.Fatalf("%v: %v", args, err)
				}
			}
			do([]any{"acl", "setuser", "weir", "on", ">secret", "~*", "+@all"})
			o := patient(server.Addr)
			o.Username, o.Password = "weir", "secret"
			b, _ := newObserved(t, connect(t, o), redisbackend.Options{})
			p := policy("core", perHour(1<<30))
			y := newTally()
			y.load(t, b.Throttler, p, 16, 10, unbounded)
			do(test.begin)
			if name == "NOAUTH" { // open connections keep their user
				do([]any{"client", "kill", "user", "weir"})
			}
			stop := make(chan struct{})
			var all sync.WaitGroup
			for g := range 16 {
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						key := fmt.Sprint("key", g)
						d, err := b.Take(context.Background(), p.Charge(key))
						y.add(t, key, d, err)
						if err != nil {
							time.Sleep(time.Millisecond)
						}
					}
				})
			}
			eventually(t, "the breaker to open", b.backend.Open)
			do(test.end)
			eventually(t, "the breaker to close", func() bool { return !b.backend.Open() })
			close(stop)
			all.Wait()
			y.load(t, b.Throttler, p, 16, 10, unbounded)
			y.check(t, b.Throttler, p)
		})
	}
}

// A connection that the server closes fails only its own calls.
func TestClientKill(t *testing.T) {
	server := testserver.Redis(t)
	admin := newClient(t, server.Addr)
	b, _ := newObserved(t, newClient(t, server.Addr), redisbackend.Options{})
	p := policy("core", perHour(1<<30))
	y := newTally()
	var all sync.WaitGroup
	all.Go(func() {
		for range 30 {
			admin.ClientKillByFilter(context.Background(), "type", "normal", "skipme", "yes")
			time.Sleep(2 * time.Millisecond)
		}
	})
	y.load(t, b.Throttler, p, 64, 60, unbounded)
	all.Wait()
	eventually(t, "the breaker to be closed", func() bool { return !b.backend.Open() })
	y.load(t, b.Throttler, p, 64, 5, unbounded) // on a busy machine, all before may have failed
	y.check(t, b.Throttler, p)
	if answered, _ := y.sum(); answered == 0 {
		t.Error("nothing was answered")
	}
}

// A command that the user may not run in a script fails the decisions that need it, not other
// decisions of the same batch.
func TestDecisionsThatAreNotPermitted(t *testing.T) {
	server := testserver.Redis(t)
	admin := newClient(t, server.Addr)
	if err := admin.Do(t.Context(), "acl", "setuser", "weir", "on", ">secret", "~*", "+@all", "-getrange").Err(); err != nil {
		t.Fatal(err)
	}
	o := patient(server.Addr)
	o.Username, o.Password = "weir", "secret"
	b, e := newObserved(t, connect(t, o), redisbackend.Options{})
	logs := policy("log", throttler.Limit{Quota: 100, Window: time.Hour, Algorithm: throttler.SlidingLog})
	p := policy("core", perHour(1<<30))
	var denied sync.WaitGroup
	for range 16 {
		denied.Go(func() {
			for range 40 {
				if _, err := b.Take(t.Context(), logs.Charge("denied")); !errors.Is(err, throttler.ErrUnavailable) {
					t.Errorf("a log without GETRANGE: %v, want ErrUnavailable", err)
				}
			}
		})
	}
	y := newTally()
	y.load(t, b.Throttler, p, 48, 40, unbounded)
	denied.Wait()
	y.check(t, b.Throttler, p)
	if answered, unknown := y.sum(); answered != 48*40 || unknown > 0 {
		t.Errorf("%d of the others were answered, %d are unknown, want all %d", answered, unknown, 48*40)
	}
	if e.opened() > 0 {
		t.Error("the breaker opened")
	}
}

// A replica that does not answer is left out after its first failure, and is asked again after
// a successful probe.
func TestReplicaBreaker(t *testing.T) {
	primary := testserver.Redis(t)
	replica := testserver.RedisReplica(t, primary)
	e := new(events)
	b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: newClient(t, primary.Addr), Replicas: []redis.UniversalClient{newClient(t, replica.Addr)}}},
		&redisbackend.Options{Observer: e})
	th := throttler.New(b, nil)
	p := policy("core", perHour(100))
	peek := func() (onReplica bool) {
		t.Helper()
		before := e.answered()
		if _, err := th.Peek(t.Context(), p.Charge("alice")); err != nil {
			t.Fatal(err)
		}
		var last observe.Sent
		eventually(t, "the event", func() bool {
			answered := e.answered()
			if len(answered) > len(before) {
				last = answered[len(answered)-1]
			}
			return len(answered) > len(before)
		})
		return last.Replica
	}
	checked := func() bool {
		b.Check()
		return peek()
	}
	eventually(t, "a peek on the replica", checked)
	replica.Kill()
	if peek() {
		t.Error("a dead replica has answered")
	}
	eventually(t, "its breaker to open", func() bool { return e.opened() > 0 })
	if err := replica.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica to be asked again", checked)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.checked {
		if c.Server == "primary" && c.Err == nil {
			continue
		}
		if c.Backend != "redisbackend" || c.Shard != "a" || c.Server != "replica 0" || c.Open != (c.Err != nil) {
			t.Errorf("%+v; want an event of replica 0 of shard a, with an error if it opened", c)
		}
	}
}

// Each round trip is an event, with the decisions that shared it.
func TestSentEvents(t *testing.T) {
	server := testserver.Redis(t)
	b, e := newObserved(t, newClient(t, server.Addr), redisbackend.Options{})
	if err := b.backend.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	y := newTally()
	y.load(t, b.Throttler, policy("core", perHour(1<<30)), 16, 20, unbounded)
	decisions := func() int {
		e.mu.Lock()
		defer e.mu.Unlock()
		n := 0
		for _, s := range e.sent {
			n += s.Decisions
			if s.Backend != "redisbackend" || s.Shard != "a" || s.Replica || s.Err != nil || s.Duration <= 0 || s.Start.IsZero() {
				t.Errorf("%+v; want a round trip of shard a", s)
			}
		}
		return n
	}
	eventually(t, "the events", func() bool { return decisions() == 16*20 })
}

// Decisions are made after Close too. A server that dies then fails them without a probe.
func TestClose(t *testing.T) {
	server := testserver.Redis(t)
	b, e := newObserved(t, newClient(t, server.Addr), redisbackend.Options{})
	p := policy("core", perHour(100))
	b.backend.Trip(errors.New("down"))
	b.backend.Close()
	b.backend.Close()
	if d, err := b.Take(t.Context(), p.Charge("alice")); err != nil || d.Limit(0).Used != 1 {
		t.Errorf("after Close: used %d, %v; want 1", d.Limit(0).Used, err)
	}
	server.Kill()
	for range 30 {
		if _, err := b.Take(t.Context(), p.Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) || errors.Is(err, breaker.ErrOpen) {
			t.Errorf("after Close, of a dead server: %v; want ErrUnavailable, and no breaker", err)
		}
	}
	if e.opened() != 1 {
		t.Errorf("the breaker opened %d times, want once, before Close", e.opened())
	}
}

func TestFaults(t *testing.T) {
	reply := func(text string) error {
		return fmt.Errorf("wrapped: %w", replyError(text))
	}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{redis.Nil, false},
		{context.Canceled, false},
		{redis.ErrClosed, false},
		{context.DeadlineExceeded, true},
		{io.EOF, true},
		{redis.ErrPoolTimeout, true},
		{reply("LOADING Redis is loading the dataset in memory"), true},
		{reply("BUSY Redis is busy running a script."), true},
		{reply("READONLY You can't write against a read only replica."), true},
		{reply("OOM command not allowed when used memory > 'maxmemory'."), true},
		{reply("ERR Error running script (call to f_abc): @user_script:1: @user_script: 1: -OOM command not allowed"), true},
		{reply("MISCONF Errors writing to the AOF file"), true},
		{reply("NOREPLICAS Not enough good replicas to write."), true},
		{reply("MASTERDOWN Link with MASTER is down"), true},
		{reply("CLUSTERDOWN The cluster is down"), true},
		{reply("NOAUTH Authentication required."), true},
		{reply("NOPERM this user has no permissions to run the 'evalsha' command"), true},
		{reply("ERR max number of clients reached"), true},
		{reply("ERR The user executing the script can't run this command or subcommand"), false}, // of this decision
		{reply("WRONGTYPE Operation against a key holding the wrong kind of value"), false},
		{reply("NOSCRIPT No matching script."), false},
		{reply("MOVED 1 127.0.0.1:1"), false},
		{reply("CROSSSLOT Keys in request don't hash to the same slot"), false},
	} {
		if got := redisbackend.IsFault(test.err); got != test.want {
			t.Errorf("%v: fault %v, want %v", test.err, got, test.want)
		}
	}
}

type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}
