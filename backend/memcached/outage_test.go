package memcachedbackend_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

const outageDeadline = 50 * time.Millisecond

// recorder records the events of a backend.
type recorder struct {
	observe.Nothing
	mu      sync.Mutex
	sent    []observe.Sent
	checked []observe.Checked
}

func (r *recorder) Sent(e observe.Sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, e)
}

func (r *recorder) Checked(e observe.Checked) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checked = append(r.checked, e)
}

// takeFor takes with the deadline d.
func takeFor(t *testing.T, th *throttler.Throttler, d time.Duration, c throttler.Charge) error {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	_, err := th.Take(ctx, c)
	return err
}

// takeAsked takes with a server's time, like the middleware.
func takeAsked(t *testing.T, th *throttler.Throttler, c throttler.Charge) error {
	_, err := th.WithServerTime(outageDeadline).Take(t.Context(), c)
	return err
}

// openBreaker takes until the breaker is open, and returns the number of takes before that.
func openBreaker(t *testing.T, th *throttler.Throttler, c throttler.Charge) int {
	t.Helper()
	for n := range 20 {
		err := takeAsked(t, th, c)
		if errors.Is(err, breaker.ErrOpen) {
			return n
		}
		if !errors.Is(err, throttler.ErrUnavailable) {
			t.Fatalf("a server that hangs: %v, want an error that wraps ErrUnavailable", err)
		}
	}
	t.Fatal("20 calls of a server that hangs did not open its breaker")
	return 0
}

// await waits until so returns true. After a minute it fails the test with what.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute, not yet: %s", what)
		}
	}
}

func TestServerThatHangs(t *testing.T) {
	servers := []*testserver.MemcachedServer{testserver.Memcached(t), testserver.Memcached(t)}
	var events recorder
	b := newBackend(t, []memcachedbackend.Server{
		{Name: "a", Client: newClient(t, servers[0].Addr)}, {Name: "b", Client: newClient(t, servers[1].Addr)},
	}, &memcachedbackend.Options{Observer: &events})
	th := throttler.New(b, nil)
	policy := perHour(100_000)
	keyOn := make(map[string]string)
	for i := 0; len(keyOn) < 2; i++ {
		key := fmt.Sprint("key", i)
		keyOn[b.Locate(policy.Charge(key)).Server] = key
	}
	onA, onB := policy.Charge(keyOn["a"]), policy.Charge(keyOn["b"])
	first, err := th.Take(t.Context(), onA)
	if err != nil {
		t.Fatal(err)
	}
	servers[0].Pause()
	if calls := openBreaker(t, th, onA); calls < 3 {
		t.Errorf("%d calls opened the breaker", calls)
	}
	failing := func(what string, err error) {
		t.Helper()
		var of *driver.UnavailableError
		if !errors.Is(err, breaker.ErrOpen) || !errors.As(err, &of) || of.Shard != "a" {
			t.Errorf("%s: %v, want an UnavailableError of shard a that wraps breaker.ErrOpen", what, err)
		}
	}
	opened, _ := b.Down(onA.Key)
	for range 1000 {
		_, err := th.Take(t.Context(), onA)
		failing("a take", err)
	}
	_, err = th.Peek(t.Context(), onA)
	failing("a peek", err)
	_, err = th.Refund(t.Context(), first)
	failing("a refund", err)
	_, err = b.Release(t.Context(), handoff.ReleaseRequest{Now: 1, Charges: first.Charges(), To: 1, Version: 1, Keep: time.Minute})
	failing("a release", err)
	if since, down := b.Down(onA.Key); !down || opened.IsZero() || !since.Equal(opened) {
		t.Errorf("a server whose breaker is open: down %t since %v, and %v before", down, since, opened)
	}
	if _, down := b.Down(onB.Key); down {
		t.Error("the other server is down too")
	}
	if _, err := th.Take(t.Context(), onB); err != nil {
		t.Errorf("on the other server: %v", err)
	}
	servers[0].Resume()
	began := time.Now()
	await(t, "decisions are made again", func() bool { return takeFor(t, th, time.Minute, onA) == nil })
	t.Logf("decisions are made again after %v", time.Since(began))
	if _, down := b.Down(onA.Key); down {
		t.Error("the server is down, and answers")
	}
	before, err := th.Peek(t.Context(), onA)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := th.Refund(t.Context(), first); err != nil || d.Limit(0).Used != before.Limit(0).Used-1 {
		t.Errorf("the refund again: used %d, %v; want %d, for the first was not sent", d.Limit(0).Used, err, before.Limit(0).Used-1)
	}
	b.Close()
	for _, e := range events.sent {
		if e.Start.After(opened) && e.Start.Before(began) && e.Shard == "a" {
			t.Errorf("an exchange %v after the breaker opened", e.Start.Sub(opened))
		}
	}
	c := slices.DeleteFunc(events.checked, func(e observe.Checked) bool { return e.Shard != "a" })
	if first := slices.IndexFunc(c, func(e observe.Checked) bool { return e.Open }); first > 0 {
		c = c[first:]
	}
	if len(c) != 2 || !c[0].Open || c[0].Err == nil || c[1].Open || c[1].Shard != "a" || c[1].Err != nil {
		t.Errorf("checks: %+v; want that a is open, and closed", c)
	}
}

// Decisions that wait for the server when its breaker opens fail then, not at their
// deadlines.
func TestWaitingDecisionsFailWhenTheBreakerOpens(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, nil)
	th := throttler.New(b, nil)
	policy := perHour(100)
	if _, err := th.Take(t.Context(), policy.Charge("first")); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	errs := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, err := th.Take(ctx, policy.Charge("alice")); errs <- err }()
	await(t, "an exchange for alice is on its way", func() bool {
		err := takeFor(t, th, time.Nanosecond, policy.Charge("alice"))
		return b.Exchanging(policy.Charge("alice")) && err != nil
	})
	go func() { _, err := th.Take(t.Context(), policy.Charge("alice")); errs <- err }()
	await(t, "another decision waits for it", func() bool { return b.Waiting(policy.Charge("alice")) > 0 })
	if err := takeFor(t, th, time.Millisecond, policy.Charge("alice")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("a deadline that passes before anything was sent: %v, want the error of the context alone", err)
	}
	openBreaker(t, th, policy.Charge("bob"))
	if err := <-errs; !errors.Is(err, breaker.ErrOpen) {
		t.Errorf("the waiting decision: %v, want breaker.ErrOpen", err)
	}
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) || !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("the decision that was sent: %v, want its cancel, and ErrUnavailable", err)
	}
	server.Resume()
}

// A take without a deadline does not wait forever: the backend's Deadline applies.
func TestDeadlineOfItsOwn(t *testing.T) {
	server := testserver.Memcached(t)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, &memcachedbackend.Options{Deadline: 20 * time.Millisecond})
	server.Pause()
	defer server.Resume()
	if _, err := throttler.New(b, nil).Take(context.Background(), perHour(100).Charge("alice")); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("%v, want context.DeadlineExceeded and ErrUnavailable", err)
	}
}

// A paused server executes the commands that it was sent once it resumes. Of the failed
// decisions, it may have charged only those with a write on its way: one exchange for each key
// and pause. A decision is not written after its caller has left.
func TestPausesChargeOnlyWhatWasWritten(t *testing.T) {
	const goroutines, pauses, keys = 600, 3, 2
	server := testserver.Memcached(t)
	var events recorder
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, &memcachedbackend.Options{Observer: &events, Deadline: time.Second})
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	policy := perHour(quota.MaxQuota)
	var charged, failed atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				switch err := takeFor(t, th, outageDeadline, policy.Charge(fmt.Sprint("key", i%keys))); {
				case err == nil:
					charged.Add(1)
				case errors.Is(err, breaker.ErrOpen):
					time.Sleep(10 * time.Millisecond)
				default:
					failed.Add(1)
				}
			}
		})
	}
	// The machine pauses, too, when it is busy.
	var stalls int64
	wg.Go(func() {
		const nap = time.Millisecond
		for {
			began := time.Now()
			select {
			case <-stop:
				return
			case <-time.After(nap):
				stalls += int64((time.Since(began) - nap) / (outageDeadline / 2))
			}
		}
	})
	for range pauses {
		before := charged.Load()
		await(t, "decisions are made", func() bool { return charged.Load() > before+100 })
		server.Pause()
		await(t, "its breaker opens", func() bool { _, down := b.Down("key0"); return down })
		server.Resume()
		await(t, "its breaker closes", func() bool { _, down := b.Down("key0"); return !down })
	}
	close(stop)
	wg.Wait()
	var used, lost int64
	for i := range keys {
		await(t, "the counts can be read", func() bool {
			d, err := th.Peek(t.Context(), policy.Charge(fmt.Sprint("key", i)))
			if err == nil {
				used += d.Limit(0).Used
			}
			return err == nil
		})
	}
	largest := 0
	for _, e := range events.sent {
		largest = max(largest, e.Decisions)
	}
	if largest > 256 {
		t.Errorf("%d decisions shared an exchange", largest)
	}
	lost = used - charged.Load()
	t.Logf("%d decisions charged, %d failed, %d of which were charged; the largest exchange had %d", charged.Load(), failed.Load(), lost, largest)
	if most := (pauses + stalls) * keys * int64(largest); lost < 0 || lost > most {
		t.Errorf("%d decisions were charged and failed; want at most one exchange of each key and pause, %d, with %d stalls of the machine", lost, most, stalls)
	}
}

// A decision is not written if its caller leaves while the item is read. Other decisions of
// the exchange are.
func TestCallerThatLeavesWhileItsItemIsRead(t *testing.T) {
	server := testserver.Memcached(t)
	var hold atomic.Bool
	held, goOn := make(chan struct{}), make(chan struct{})
	addr := testserver.Relay(t, server.Addr, func(answer []byte) bool {
		if strings.HasSuffix(string(answer), "END\r\n") && hold.CompareAndSwap(true, false) {
			close(held)
			<-goOn
		}
		return false
	})
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, addr)}}, nil)
	th := throttler.New(b, nil)
	policy := perHour(100)
	if _, err := th.Take(t.Context(), policy.Charge("alice")); err != nil {
		t.Fatal(err)
	}
	hold.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	left := make(chan error)
	go func() { _, err := th.Take(ctx, policy.Charge("alice")); left <- err }()
	<-held
	cancel()
	if err := <-left; !errors.Is(err, throttler.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want ErrUnavailable and context.Canceled", err)
	}
	close(goOn)
	if d, err := th.Take(t.Context(), policy.Charge("alice")); err != nil || d.Limit(0).Used != 2 {
		t.Errorf("used %d, %v; want 2", d.Limit(0).Used, err)
	}
}

// fakeServer serves connections in place of Memcached, and answers each line with reply. It
// returns its address and the number of connections so far.
func fakeServer(t *testing.T, reply func(line string) string) (addr string, dials *atomic.Int64) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dials = new(atomic.Int64)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			wg.Go(func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if _, err := fmt.Fprint(conn, reply(lines.Text())); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		wg.Wait()
	})
	return listener.Addr().String(), dials
}

// A server that accepts connections and never replies is dialed only for probes once its
// breaker is open.
func TestSilentServerIsNotDialed(t *testing.T) {
	addr, dials := fakeServer(t, func(string) string { return "" })
	client := newClient(t, addr)
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: client}}, nil)
	th := throttler.New(b, nil)
	policy := perHour(100)
	openBreaker(t, th, policy.Charge("alice"))
	began, before := time.Now(), dials.Load()
	for i := 0; i < 10_000 || time.Since(began) < 300*time.Millisecond; i++ {
		if _, err := th.Take(t.Context(), policy.Charge(fmt.Sprint("key", i))); !errors.Is(err, breaker.ErrOpen) {
			t.Fatal(err)
		}
	}
	probes := int64(time.Since(began)/(100*time.Millisecond)) + 2
	if n := dials.Load() - before; n > probes {
		t.Errorf("%d dials in %v, want at most %d", n, time.Since(began), probes)
	}
	b.Close()
	_ = client.Close()
}

// Until its breaker opens, a server that closes every connection costs a decision at most two
// dials: the first connection may have been stale.
func TestServerThatHangsUp(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var dials atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			_ = conn.Close()
		}
	}()
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, listener.Addr().String())}}, nil)
	if _, err := throttler.New(b, nil).Take(t.Context(), perHour(100).Charge("alice")); !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
	if n := dials.Load(); n > 2 {
		t.Errorf("%d dials for one decision", n)
	}
}

// The breaker of a server that answers reads but accepts no writes stays open.
func TestProbesWrite(t *testing.T) {
	var reads, writes atomic.Int64
	var readOnly atomic.Bool
	readOnly.Store(true)
	addr, _ := fakeServer(t, func(line string) string {
		switch {
		case strings.HasPrefix(line, "gets "):
			reads.Add(1)
			return "END\r\n"
		case strings.HasPrefix(line, "add ") && readOnly.Load():
			writes.Add(1)
			return "SERVER_ERROR out of memory storing object\r\n"
		case strings.HasPrefix(line, "add "):
			return "STORED\r\n"
		}
		return "" // the value
	})
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, addr)}}, nil)
	th := throttler.New(b, nil)
	policy := perHour(100)
	await(t, "its breaker opens", func() bool {
		return errors.Is(takeFor(t, th, time.Minute, policy.Charge("alice")), breaker.ErrOpen)
	})
	before := writes.Load()
	await(t, "two probes", func() bool { return writes.Load() >= before+2 })
	if _, down := b.Down("alice"); !down {
		t.Error("a probe that could not write closed the breaker")
	}
	readOnly.Store(false)
	await(t, "decisions are made again", func() bool { return takeFor(t, th, time.Minute, policy.Charge("alice")) == nil })
}

// An item that is too large for the server fails its decision, and opens no breaker.
func TestItemAboveTheServersLimit(t *testing.T) {
	addr, _ := fakeServer(t, func(line string) string {
		switch {
		case strings.HasPrefix(line, "gets "):
			return "END\r\n"
		case strings.HasPrefix(line, "add "):
			return "SERVER_ERROR object too large for cache\r\n"
		}
		return ""
	})
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, addr)}}, nil)
	for range 50 {
		err := takeFor(t, throttler.New(b, nil), time.Minute, perHour(100).Charge("alice"))
		if !errors.Is(err, throttler.ErrUnavailable) || errors.Is(err, breaker.ErrOpen) || !strings.Contains(err.Error(), "larger than memcached's -I") {
			t.Fatal(err)
		}
	}
}

// Replies are bounded before memory is allocated for them.
func TestHostileReplies(t *testing.T) {
	for _, hostile := range []string{
		"VALUE %s 0 9000000000000000000 1\r\n", "VALUE %s 0 1000000000 1\r\n", "VALUE %s 0 -1 1\r\n", "VALUE %s 0 x 1\r\n", "VALUE %s 0 1 -1\r\nx\r\nEND\r\n",
		"VALUE other 0 1 1\r\nx\r\nEND\r\n", "VALUE %[1]s 0 1 1\r\nx\r\nVALUE %[1]s 0 1 1\r\nx\r\nEND\r\n", "VALUE %s 0 1 1\r\nxyz\r\nEND\r\n",
		"VALUE\r\n", "\r\n", "\n", "ERROR\r\n", "CLIENT_ERROR bad\r\n", "SERVER_ERROR busy\r\n", "STORED\r\n", strings.Repeat("x", 5000) + "\r\n",
	} {
		addr, _ := fakeServer(t, func(line string) string {
			if key, ok := strings.CutPrefix(line, "gets "); ok {
				if strings.Contains(hostile, "%") {
					return fmt.Sprintf(hostile, key)
				}
				return hostile
			}
			return "STORED\r\n"
		})
		client := memcachedbackend.NewClient(addr)
		b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: client}}, nil)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := takeFor(t, throttler.New(b, nil), 20*time.Second, perHour(100).Charge("alice"))
		runtime.ReadMemStats(&after)
		if !errors.Is(err, throttler.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%.40q: %v, want ErrUnavailable at once", hostile, err)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
			t.Errorf("%.40q: %d bytes were allocated", hostile, grown)
		}
		b.Close()
		_ = client.Close()
	}
}

// Each decision is in one exchange or, after a conflict or a loss, in several.
func TestExchangesAreObserved(t *testing.T) {
	server := testserver.Memcached(t)
	var events recorder
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, server.Addr)}}, &memcachedbackend.Options{Observer: &events})
	th := throttler.New(b, nil)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := th.Take(t.Context(), perHour(100).Charge("alice")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	decisions := 0
	for _, e := range events.sent {
		decisions += e.Decisions
		if e.Backend != "memcachedbackend" || e.Shard != "a" || e.Replica || e.Err != nil || e.Duration <= 0 || e.Start.IsZero() {
			t.Errorf("%+v", e)
		}
	}
	if decisions != 50 {
		t.Errorf("%d decisions in %d exchanges, want 50", decisions, len(events.sent))
	}
}

// Decisions whose item would be too large are made again by halves. Each failed exchange of
// them is one failure of the server.
func TestFailureOfAHalfCountsOnce(t *testing.T) {
	held, goOn := make(chan struct{}), make(chan struct{})
	var reads, failures atomic.Int64
	addr, _ := fakeServer(t, func(line string) string {
		if strings.Contains(line, "probe") {
			return "END\r\n"
		}
		switch reads.Add(1) {
		case 1:
			close(held)
			<-goOn
		case 2: // of all that waited
			return "END\r\n"
		}
		failures.Add(1)
		return "SERVER_ERROR out of order\r\n"
	})
	var events recorder
	b := newBackend(t, []memcachedbackend.Server{{Name: "a", Client: newClient(t, addr)}}, &memcachedbackend.Options{Observer: &events, Deadline: time.Minute, MaxItemBytes: 1024})
	b.SpillAt(1 << 20) // so that all decisions are made together
	th := throttler.New(b, nil)
	const waiting = 32
	errs := make(chan error)
	take := func(key string) {
		_, err := th.Take(t.Context(), throttler.Charge{Policy: perHour(100), Key: key, Partition: "acme"})
		errs <- err
	}
	go take("first")
	<-held
	for i := range waiting {
		go take(fmt.Sprint("key", i))
	}
	await(t, "the others wait", func() bool { return b.Waiting(throttler.Charge{Key: "acme"}) == waiting })
	close(goOn)
	for range 1 + waiting {
		if err := <-errs; !errors.Is(err, throttler.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
	}
	b.Close()
	failed := int64(0)
	events.mu.Lock()
	defer events.mu.Unlock()
	for _, e := range events.sent {
		if e.Err != nil {
			failed++
		}
	}
	if n := failures.Load(); failed != n || int64(len(events.sent)) != n+1 || n < 2 {
		t.Errorf("%d exchanges, %d of which failed, after %d errors of the server; want one for each, and one more", len(events.sent), failed, n)
	}
}
