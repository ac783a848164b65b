package redisbackend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/backendtest"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// versions returns two versions of one policy. No script decides about a count that the other
// version has charged.
func versions(name string, first, second throttler.Limit) [2]*throttler.Policy {
	return [2]*throttler.Policy{policy(name, first), policy(name, second)}
}

var twoVersions = [][2]*throttler.Policy{
	versions("window", perHour(500), throttler.Limit{Quota: 450, Window: time.Minute}),
	versions("bucket", throttler.Limit{Quota: 60, Window: time.Minute, Burst: 500, Algorithm: throttler.TokenBucket},
		throttler.Limit{Quota: 120, Window: time.Minute, Burst: 450, Algorithm: throttler.TokenBucket}),
	versions("log", throttler.Limit{Quota: 500, Window: time.Hour, Algorithm: throttler.SlidingLog},
		throttler.Limit{Quota: 450, Window: time.Minute, Algorithm: throttler.SlidingLog}),
}

// processes returns n throttlers, each over its own backend, which share a clock that does
// not move.
func processes(t testing.TB, addr string, n int, deadline time.Duration) (all []*throttler.Throttler) {
	clk := clock.NewManual(t0)
	for range n {
		b := newBackend(t, []redisbackend.Shard{{Name: "a", Primary: newClient(t, addr)}}, &redisbackend.Options{Deadline: deadline})
		all = append(all, throttler.New(b, &throttler.Options{Clock: clk}))
	}
	return all
}

// Processes with two versions of a policy compete for one key. No decision fails, and together
// they serve as many takes as one after the other.
func TestVersionsCompete(t *testing.T) {
	const goroutines, each = 16, 8
	server := testserver.Redis(t)
	for _, n := range []int{2, 8} {
		for _, policies := range twoVersions {
			t.Run(fmt.Sprint(policies[0].Name, n), func(t *testing.T) {
				key := fmt.Sprint("alice", n)
				take := func(state *algorithm.State, version int) bool {
					c := policies[version].Charge(key)
					c.Partition, c.Cost = key, 1
					return algorithm.Take(driver.NewRequest(t0.UnixMilli(), c), []*algorithm.State{state}).Allowed
				}
				takes := n * goroutines * each
				served := make(map[int]bool) // the numbers served in some orders
				for _, order := range []func(i int) int{
					func(i int) int { return i % 2 },
					func(i int) int { return i * 2 / takes },
					func(i int) int { return 1 - i*2/takes },
				} {
					state, n := new(algorithm.State), 0
					for i := range takes {
						if take(state, order(i)) {
							n++
						}
					}
					served[n] = true
				}
				var allowed atomic.Int64
				var wg sync.WaitGroup
				for i, th := range processes(t, server.Addr, n, 0) {
					for range goroutines {
						wg.Go(func() {
							for range each {
								d, err := th.Take(t.Context(), policies[i%2].Charge(key))
								if err != nil {
									t.Error(err)
								}
								if d.Allowed {
									allowed.Add(1)
								}
							}
						})
					}
				}
				wg.Wait()
				if len(served) != 1 || !served[int(allowed.Load())] {
					t.Errorf("%d of %d were served; one after the other, %v", allowed.Load(), takes, served)
				}
			})
		}
	}
}

// BenchmarkTwoVersions measures the load of 8 processes on one key, with one version of a
// policy and with two.
func BenchmarkTwoVersions(b *testing.B) {
	const n, goroutines = 8, 16
	server := testserver.Redis(b)
	for versions := 1; versions <= 2; versions++ {
		b.Run(fmt.Sprint(versions, "-versions"), func(b *testing.B) {
			policies := [2]*throttler.Policy{
				policy("bench", throttler.Limit{Quota: 1 << 40, Window: time.Hour}),
				policy("bench", throttler.Limit{Quota: 1 << 40, Window: time.Minute}),
			}
			all := processes(b, server.Addr, n, time.Second)
			client := newClient(b, server.Addr)
			key := fmt.Sprint(b.Name(), b.N)
			for i := range 2 {
				if _, err := all[i].Take(b.Context(), policies[i%versions].Charge(key)); err != nil {
					b.Fatal(err)
				}
			}
			client.ConfigResetStat(b.Context())
			b.ResetTimer()
			var next, failed atomic.Int64
			var wg sync.WaitGroup
			for i, th := range all {
				for range goroutines {
					wg.Go(func() {
						for next.Add(1) <= int64(b.N) {
							if _, err := th.Take(b.Context(), policies[i%versions].Charge(key)); err != nil {
								failed.Add(1)
							}
						}
					})
				}
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			b.ReportMetric(float64(commandStats(b, client)["evalsha"].calls)/float64(b.N), "calls/decision")
			b.ReportMetric(float64(failed.Load())/float64(b.N), "failed/decision")
		})
	}
}

// An exchange is a process with a version of a policy that has to exchange states, through a
// relay where a test can hold back answers.
type exchange struct {
	bench
	direct bench
	server *testserver.RedisServer
	charge throttler.Charge

	reads, stores gate // of swap.lua's answers
}

// A gate holds back or loses answers of one kind.
type gate struct {
	held atomic.Bool // answers wait here
	came chan struct{}
	open chan struct{}
	lose atomic.Bool // the next answer is lost
}

func (g *gate) pass() (lost bool) {
	if g.held.Load() {
		g.came <- struct{}{}
		<-g.open
	}
	return g.lose.CompareAndSwap(true, false)
}

// newExchange returns an exchange about a count that the other version has charged 1 unit.
func newExchange(t *testing.T) *exchange {
	e := &exchange{server: testserver.Redis(t)}
	for _, g := range []*gate{&e.reads, &e.stores} {
		g.came, g.open = make(chan struct{}, 9), make(chan struct{})
	}
	relay := testserver.Relay(t, e.server.Addr, func(answer []byte) bool {
		switch {
		case bytes.HasPrefix(answer, []byte("*2\r\n$13\r\n")):
			return e.reads.pass()
		case bytes.Equal(answer, []byte("*0\r\n")):
			return e.stores.pass()
		}
		return false
	})
	e.bench, e.direct = newBench(t, newClient(t, relay)), newBench(t, newClient(t, e.server.Addr))
	e.charge = twoVersions[0][0].Charge("alice")
	if _, err := e.direct.Take(t.Context(), twoVersions[0][1].Charge("alice")); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *exchange) used(t *testing.T) int64 {
	t.Helper()
	d, err := e.direct.Peek(t.Context(), e.charge)
	if err != nil {
		t.Fatal(err)
	}
	return d.Limit(0).Used
}

// awaitSwaps waits until n decisions wait for an exchange.
func (e *exchange) awaitSwaps(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); e.backend.Swaps(e.charge) != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d decisions wait for an exchange, want %d", e.backend.Swaps(e.charge), n)
		}
	}
}

// A caller leaves while another caller's exchange runs: its error is right about the charge,
// and no charge is made twice.
func TestLeaveAnExchange(t *testing.T) {
	e := newExchange(t)
	takeBy := func(ctx context.Context, th *throttler.Throttler) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := th.Take(ctx, e.charge)
			done <- err
		}()
		return done
	}
	take := func(ctx context.Context) chan error { return takeBy(ctx, e.Throttler) }
	e.reads.held.Store(true)
	before := take(t.Context()) // the others wait for the end of its exchange
	<-e.reads.came
	firstContext, leaveFirst := context.WithCancel(t.Context())
	first := take(firstContext)
	e.awaitSwaps(t, 2)
	unsentContext, leaveUnsent := context.WithCancel(t.Context())
	unsent := take(unsentContext)
	e.awaitSwaps(t, 3)
	sentContext, leaveSent := context.WithCancel(t.Context())
	sent := take(sentContext)
	e.awaitSwaps(t, 4)
	last := take(t.Context())
	e.awaitSwaps(t, 5)
	e.reads.open <- struct{}{}
	if err := <-before; err != nil {
		t.Fatal(err)
	}
	e.stores.held.Store(true)
	<-e.reads.came

	leaveUnsent()
	if err := <-unsent; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("left before the states were there: %v; want canceled, and not unavailable", err)
	}
	lateContext, leaveLate := context.WithCancel(t.Context())
	late := takeBy(lateContext, e.WithServerTime(time.Millisecond))
	e.awaitSwaps(t, 4)
	time.Sleep(time.Millisecond)
	leaveLate()
	if err := <-late; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("left after the server's time: %v; want canceled, and not unavailable", err)
	}
	e.reads.open <- struct{}{}
	<-e.stores.came
	e.awaitSwaps(t, 0)
	leaveSent()
	leaveFirst() // and the exchange is its own
	for _, done := range []chan error{first, sent} {
		if err := <-done; !errors.Is(err, context.Canceled) || !driver.MayHaveCharged(err) {
			t.Errorf("left while the states were stored: %v; want canceled, and that units may have been charged", err)
		}
	}
	e.stores.open <- struct{}{}
	if err := <-last; err != nil {
		t.Error(err)
	}
	if used := e.used(t); used != 5 {
		t.Errorf("%d used, want 5: the other version's, the first and the last exchange's, and those of the two callers who left late", used)
	}
}

// A caller that comes while an exchange reads is not refused by its states.
func TestStatesOfBeforeACallRefuseNothing(t *testing.T) {
	e := newExchange(t)
	full := e.fill(t)
	e.reads.held.Store(true)
	first := e.takeHundred(t)
	<-e.reads.came
	if _, err := e.direct.Refund(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	second := e.takeHundred(t)
	e.awaitSwaps(t, 2)
	e.reads.held.Store(false)
	e.reads.open <- struct{}{}
	if err := <-second; err != nil {
		t.Errorf("after the refund: %v", err)
	}
	if err := <-first; err != nil && !errors.Is(err, errRefused) {
		t.Error(err)
	}
}

// If the next exchange can't read, the callers that the states before it refused stay refused.
func TestNewerStatesThatAreLost(t *testing.T) {
	e := newExchange(t)
	e.fill(t)
	e.reads.held.Store(true)
	first := e.takeHundred(t)
	<-e.reads.came
	second := e.takeHundred(t)
	e.awaitSwaps(t, 2)
	e.reads.open <- struct{}{}
	<-e.reads.came
	e.reads.lose.Store(true)
	e.reads.held.Store(false)
	e.reads.open <- struct{}{}
	if err := <-first; !errors.Is(err, errRefused) {
		t.Errorf("refused by the first states: %v", err)
	}
	if err := <-second; !errors.Is(err, driver.ErrUnavailable) || driver.MayHaveCharged(err) {
		t.Errorf("joined late: %v; want unavailable, and nothing charged", err)
	}
}

// fill charges e's count so that 100 units more do not fit.
func (e *exchange) fill(t *testing.T) throttler.Decision {
	t.Helper()
	d, err := e.direct.Take(t.Context(), throttler.Charge{Policy: twoVersions[0][1], Key: e.charge.Key, Cost: 449})
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	return d
}

// takeHundred takes 100 units in the background. The channel receives the error, or errRefused.
func (e *exchange) takeHundred(t *testing.T) chan error {
	done := make(chan error, 1)
	go func() {
		d, err := e.Take(t.Context(), throttler.Charge{Policy: e.charge.Policy, Key: e.charge.Key, Cost: 100})
		if err == nil && !d.Allowed {
			err = errRefused
		}
		done <- err
	}()
	return done
}

var errRefused = errors.New("refused")

// A caller's deadline passes while it waits for its own exchange.
func TestDeadlineOfAnExchange(t *testing.T) {
	for _, stores := range []bool{false, true} {
		e := newExchange(t)
		g := &e.reads
		if stores {
			g = &e.stores
		}
		g.held.Store(true)
		var err error
		eventually(t, "an exchange to come so far before its deadline", func() bool {
			_, err = sent(t, 50*time.Millisecond, func(ctx context.Context) (throttler.Decision, error) { return e.Take(ctx, e.charge) })
			return len(g.came) > 0 || driver.MayHaveCharged(err)
		})
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, driver.ErrUnavailable) || driver.MayHaveCharged(err) != stores {
			t.Errorf("stores %v: %v; want that the deadline has passed, and that units may have been charged: %[1]v", stores, err)
		}
		close(g.open)
		if used := e.used(t); stores && used != 2 || !stores && used != 1 {
			t.Errorf("stores %v: %d used", stores, used)
		}
	}
}

func TestLostAnswersOfAnExchange(t *testing.T) {
	t.Run("to the read", func(t *testing.T) {
		e := newExchange(t)
		e.reads.lose.Store(true)
		_, err := e.Take(t.Context(), e.charge)
		if !errors.Is(err, driver.ErrUnavailable) || driver.MayHaveCharged(err) {
			t.Errorf("%v; want unavailable, and that nothing was charged", err)
		}
		if used := e.used(t); used != 1 {
			t.Errorf("%d used, want 1", used)
		}
	})
	t.Run("to the swap", func(t *testing.T) {
		e := newExchange(t)
		e.stores.lose.Store(true)
		_, err := e.Take(t.Context(), e.charge)
		if !errors.Is(err, driver.ErrUnavailable) || !driver.MayHaveCharged(err) {
			t.Errorf("%v; want unavailable, and that units may have been charged", err)
		}
		if used := e.used(t); used != 2 {
			t.Errorf("%d used, want 2", used)
		}
		if _, err := e.Take(t.Context(), e.charge); err != nil || e.used(t) != 3 {
			t.Errorf("the next: %v, %d used; want 3", err, e.used(t))
		}
	})
	t.Run("of a server that dies in between", func(t *testing.T) {
		e := newExchange(t)
		e.reads.held.Store(true)
		done := make(chan error, 1)
		go func() {
			_, err := e.Take(t.Context(), e.charge)
			done <- err
		}()
		<-e.reads.came
		e.server.Kill()
		e.reads.open <- struct{}{}
		if err := <-done; !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%v; want unavailable", err)
		}
	})
}

// A process that may have no scripts makes all decisions by exchanges.
func TestSequentialContractWithoutScripts(t *testing.T) {
	redisbackend.NoMoreShapes(t, 0)
	backendtest.Run(t, opener(t, 1))
}

// A decision with more limits than a function of Lua has room for is made like any other.
func TestMoreLimitsThanAScriptHas(t *testing.T) {
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	var charges []throttler.Charge
	var states []*algorithm.State
	for i := range 3 {
		p := policy(fmt.Sprint("p", i))
		for k := range 14 {
			p.Limits = append(p.Limits, throttler.Limit{Quota: int64(3 + i + k), Window: time.Duration(k+1) * time.Minute, Algorithm: quota.Algorithms()[k%3*2]})
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		charges = append(charges, throttler.Charge{Policy: p, Key: "alice", Partition: "alice", Cost: 1})
		states = append(states, new(algorithm.State))
	}
	for i := range 5 {
		r := driver.NewRequest(t0.UnixMilli(), charges...)
		want := algorithm.Take(r, states)
		got, err := b.backend.Take(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		compareDecisions(t, i, got, want)
		if i == 1 {
			s := driver.Settlement{Now: t0.UnixMilli(), Charged: got, Costs: []int64{0, 2, 1}}
			got, err = b.backend.Settle(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			compareDecisions(t, i, got, algorithm.Settle(driver.Settlement{Now: s.Now, Charged: want, Costs: s.Costs}, states))
		}
	}
}

// Decisions of more shapes than a process composes scripts for are still made, and the server
// keeps no scripts for the rest.
func TestSequentialMoreShapesThanAProcessHas(t *testing.T) {
	redisbackend.NoMoreShapes(t, redisbackend.MaxShapes)
	b := newBench(t, newClient(t, testserver.Redis(t).Addr))
	all := slices.DeleteFunc(quota.Algorithms(), quota.Algorithm.Holds) // a policy has one that holds
	n := redisbackend.MaxShapes + 3
	for round := int64(1); round <= 2; round++ {
		for i := range n {
			p := policy(fmt.Sprint("p", i))
			for k, digit := 0, i; k < 4; k, digit = k+1, digit/len(all) {
				p.Limits = append(p.Limits, throttler.Limit{Quota: 10, Window: time.Duration(k+1) * time.Hour, Algorithm: all[digit%len(all)]})
			}
			d, err := b.Take(t.Context(), p.Charge("alice"))
			if err != nil || !d.Allowed || d.Limit(0).Used != round {
				t.Fatalf("shape %d: %+v, %v; want %d used", i, d, err, round)
			}
		}
	}
	info := b.client.Info(t.Context(), "memory").Val()
	if want := fmt.Sprintf("number_of_cached_scripts:%d\r\n", redisbackend.MaxShapes+1); !strings.Contains(info, want) {
		t.Errorf("the server has\n%s\nwant %s", info, want)
	}
}

// Scripts may be flushed between any two calls of a pipeline of several shapes.
func TestFlushInAPipeline(t *testing.T) {
	server := testserver.Redis(t)
	b, other := newBench(t, newClient(t, server.Addr)), newClient(t, server.Addr)
	done, flushed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(flushed)
		for {
			select {
			case <-done:
				return
			default:
				other.ScriptFlush(context.Background())
			}
		}
	}()
	const rounds = 100
	var policies []*throttler.Policy
	for _, a := range quota.Algorithms() {
		policies = append(policies, policy(a.String(), throttler.Limit{Quota: 10_000, Window: time.Hour, Algorithm: a}))
	}
	for range rounds {
		var all []driver.Request
		for i := range 3 * len(policies) {
			c := policies[i%len(policies)].Charge("alice")
			c.Partition, c.Cost = c.Key, 1
			all = append(all, driver.NewRequest(t0.UnixMilli(), c))
		}
		decisions, errs := b.backend.TakeTogether(t.Context(), all...)
		for i := range all {
			if errs[i] != nil || !decisions[i].Allowed {
				t.Fatal(decisions[i], errs[i])
			}
		}
	}
	close(done)
	<-flushed
	for _, p := range policies {
		d, err := b.Peek(t.Context(), p.Charge("alice"))
		if err != nil || d.Limit(0).Used != 3*rounds {
			t.Errorf("%s: %d used, %v; want %d", p.Name, d.Limit(0).Used, err, 3*rounds)
		}
	}
}
