// Package faults_test makes servers and connections fail under load. It checks that no
// decision is counted twice, answered with another's numbers, or late, and that no error is
// false.
package faults_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/testkit/pressure"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/test/chaos/internal/meter"
	"github.com/weir-go/weir/test/chaos/internal/wire"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

var lasts = flag.Duration("lasts", 150*time.Millisecond, "how long each fault is")

func TestMain(m *testing.M) {
	logging.Disable() // go-redis would log each connection that fails
	goleak.VerifyTestMain(m)
}

const (
	goroutines = 32
	accounts   = 16
	deadline   = 50 * time.Millisecond
	lateness   = 50 * time.Millisecond  // allowed beyond the deadline
	connecting = 250 * time.Millisecond // more, where a connection to Redis has to be opened: docs/reference/operations.md
	pause      = 24 * time.Millisecond  // at most, between two calls of a goroutine
	million    = 1_000_000
)

// rig is a throttler with connections through a link, and one with direct connections.
type rig struct {
	*throttler.Throttler
	direct *throttler.Throttler
	link   *wire.Link
	redis  *redisbackend.Backend // or nil

	losses atomic.Int32 // number of times that the server lost its counts

	random uint64 // seed
	runs   int    // each uses new keys
}

func newRig(t *testing.T, store, addr string) *rig {
	t.Helper()
	link, err := wire.NewLink(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	r := &rig{link: link, random: testseed.Of(t)}
	r.Throttler = throttler.New(r.open(t, store, link.Addr), nil)
	r.direct = throttler.New(r.open(t, store, addr), nil)
	return r
}

func (r *rig) open(t *testing.T, store, addr string) driver.Backend {
	t.Helper()
	if store == "memcached" {
		c := memcachedbackend.NewClient(addr)
		t.Cleanup(func() { _ = c.Close() })
		b, err := memcachedbackend.New([]memcachedbackend.Server{{Name: "a", Client: c}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b
	}
	c := newClient(t, addr)
	b, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: c}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	r.redis = b
	return b
}

// account is a key with its own range of numbers and its own reset time: answers about other
// keys are outside.
type account struct {
	throttler.Charge
	base  int64     // units that were charged before the load
	reset time.Time // of the first limit
	full  bool      // no take fits

	mu            sync.Mutex
	windows       map[time.Time]map[int64]int // by reset and used units, the number of answered takes
	taken         int64                       // answered takes
	takenUnknown  int64
	refunded      int64
	refundUnknown int64
	failures      []error // the first
}

// accounts returns new accounts, charged with their base.
func (r *rig) accounts(t *testing.T) []*account {
	t.Helper()
	r.runs++
	all := make([]*account, accounts)
	for i := range all {
		n := int64(i + 1)
		a := &account{base: n * million, full: i%8 == 7, windows: make(map[time.Time]map[int64]int)}
		limit := throttler.Limit{Quota: 100 * million, Window: time.Hour + time.Duration(i)*time.Minute}
		if a.full {
			limit.Quota = a.base
		}
		p := &throttler.Policy{Name: fmt.Sprint("p", i), Limits: []throttler.Limit{limit}}
		if i%4 == 3 {
			p.Limits = append(p.Limits, throttler.Limit{Quota: 100 * million, Window: 20 * time.Hour, Algorithm: throttler.TokenBucket})
		}
		a.Charge = p.Charge(fmt.Sprint("account ", i, " of ", r.runs))
		first := a.Charge
		first.Cost = a.base
		d, err := r.direct.Take(t.Context(), first)
		for end := within(10 * time.Second); errors.Is(err, breaker.ErrOpen) && !end(); {
			time.Sleep(5 * time.Millisecond) // until it has noticed the end of the previous fault
			d, err = r.direct.Take(t.Context(), first)
		}
		if err != nil || !d.Allowed {
			t.Fatalf("allowed %v, %v", d.Allowed, err)
		}
		a.reset = d.Limit(0).ResetAt
		all[i] = a
	}
	return all
}

// within returns a function that reports whether more than d has passed, without the time when
// the machine was short of processors.
func within(d time.Duration) (passed func() bool) {
	began, waited := time.Now(), pressure.Waited()
	return func() bool { return time.Since(began)-(pressure.Waited()-waited) > d }
}

// run puts load on accounts, does harm for the length of a fault, undoes it, and waits until
// all accounts are served again. Then it checks their answers.
func (r *rig) run(t *testing.T, harm func() (undo func())) []*account {
	t.Helper()
	all := r.accounts(t)
	m := &calls{Meter: meter.Start()}
	stop := make(chan struct{})
	var load sync.WaitGroup
	for g := range goroutines {
		random := rand.New(rand.NewPCG(r.random, uint64(r.runs<<16+g)))
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(random.Int64N(int64(pause)))):
					r.step(t, all[random.IntN(len(all))], random.IntN(10), m)
				}
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	undo := harm()
	time.Sleep(*lasts)
	undo()
	healed, late := time.Now(), within(10*time.Second)
	for _, a := range all {
		for !r.step(t, a, 0, m) {
			if time.Sleep(time.Millisecond); late() { // do not repeat at once a call that fails at once
				a.mu.Lock()
				t.Fatalf("%s fails 10 s after the fault is over: %v", a.Key, a.failures[len(a.failures)-1])
			}
		}
	}
	recovered := time.Since(healed)
	close(stop)
	load.Wait()
	m.Stop()

	var answered, unknown int64
	for _, a := range all {
		answered, unknown = answered+a.taken, unknown+a.takenUnknown
	}
	t.Logf("%d takes were answered, %d are unknown; all accounts were served %v after the fault; longest call %v, latest %v after its deadline",
		answered, unknown, recovered.Round(time.Millisecond), m.longest.Round(time.Millisecond), m.latest.Round(time.Millisecond))
	allowed := lateness
	if r.redis != nil {
		allowed += connecting
	}
	if m.latest > allowed {
		t.Errorf("a call returned %v after its deadline, without what the machine stalled meanwhile", m.latest)
	}
	return all
}

// step makes one decision about a, a take if n is 0, and records its outcome. It reports
// whether the decision was made.
func (r *rig) step(t *testing.T, a *account, n int, m *calls) bool {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	end := m.start()
	if n == 9 {
		d, err := r.Peek(ctx, a.Charge)
		end()
		if a.failed(t, err) {
			return false
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		r.check(t, a, &d)
		return true
	}
	d, err := r.Take(ctx, a.Charge)
	end()
	if a.failed(t, err) {
		if driver.MayHaveCharged(err) {
			a.mu.Lock()
			a.takenUnknown++
			a.mu.Unlock()
		}
		return false
	}
	a.mu.Lock()
	r.check(t, a, &d)
	if d.Allowed {
		a.taken++
		s := d.Limit(0)
		if a.windows[s.ResetAt] == nil {
			a.windows[s.ResetAt] = make(map[int64]int)
		}
		a.windows[s.ResetAt][s.Used]++
	}
	refund := d.Allowed && n == 8
	a.mu.Unlock()
	if refund {
		r.refund(t, a, d, m)
	}
	return true
}

func (r *rig) refund(t *testing.T, a *account, d throttler.Decision, m *calls) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	end := m.start()
	_, err := r.Refund(ctx, d)
	end()
	failed := a.failed(t, err)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !failed:
		a.refunded++
	case driver.MayHaveCharged(err):
		a.refundUnknown++
	}
}

// failed reports whether err is not nil, and checks that the contract permits it.
func (a *account) failed(t *testing.T, err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, throttler.ErrInvalid) || !errors.Is(err, throttler.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v; an error wraps ErrUnavailable or, if nothing was sent, the context's", a.Key, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.failures) < 100 {
		a.failures = append(a.failures, err)
	}
	return true
}

// check checks that d is about a, whose lock is held.
func (r *rig) check(t *testing.T, a *account, d *throttler.Decision) {
	if d.NumLimits() == 0 {
		t.Errorf("%s: allowed %v, without limits and without an error", a.Key, d.Allowed)
		return
	}
	s := d.Limit(0)
	if r.losses.Load() > 0 && !s.ResetAt.Equal(a.reset) {
		// Either the new window, or no window. No window is near its end.
		if s.Used >= million || s.Used > 0 && s.ResetAt.Before(a.reset) {
			t.Errorf("%s: used %d until %v, after a restart", a.Key, s.Used, s.ResetAt)
		}
		return
	}
	if d.Allowed == a.full {
		t.Errorf("%s: allowed %v with %d used of %d", a.Key, d.Allowed, s.Used, s.Limit.Quota)
	}
	if s.Used < a.base || s.Used >= a.base+million || !s.ResetAt.Equal(a.reset) {
		t.Errorf("%s: used %d until %v; want from %d on, until %v: this is the answer to another", a.Key, s.Used, s.ResetAt, a.base, a.reset)
	}
	if a.full && !s.RetryAt.Equal(a.reset) {
		t.Errorf("%s: to retry at %v, want %v", a.Key, s.RetryAt, a.reset)
	}
}

// count returns the count of a, through the connection without faults. The throttler may first
// have to notice that the server is well.
func (r *rig) count(t *testing.T, a *account) throttler.Decision {
	t.Helper()
	for late := within(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		d, err := r.direct.Peek(t.Context(), a.Charge)
		if err == nil {
			return d
		}
		if late() {
			t.Fatalf("%s cannot be read 10 s after the fault: %v", a.Key, err)
		}
	}
}

// verify checks that every take and refund was counted as often as it was answered.
func (r *rig) verify(t *testing.T, all []*account) {
	t.Helper()
	for _, a := range all {
		d := r.count(t, a)
		r.check(t, a, &d)
		got := d.Limit(0).Used - a.base
		least := a.taken - a.refunded - a.refundUnknown
		most := a.taken + a.takenUnknown - a.refunded
		if got < least || got > most {
			t.Errorf("%s: %d units are counted; want %d to %d: %d takes were answered, %d are unknown; %d refunds, %d unknown",
				a.Key, got, least, most, a.taken, a.takenUnknown, a.refunded, a.refundUnknown)
		}
		if a.refunded+a.refundUnknown > 0 {
			continue
		}
		for used, times := range a.windows[a.reset] {
			if times > 1 {
				t.Errorf("%s: %d takes were answered that %d units are used", a.Key, times, used)
			}
		}
	}
}

// calls measures the calls of a run.
type calls struct {
	*meter.Meter

	mu      sync.Mutex
	longest time.Duration
	latest  time.Duration // beyond the deadline, without the time that the machine stalled
}

func (c *calls) start() (end func()) {
	finish := c.Call(deadline)
	return func() {
		took, stalled := finish()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.longest = max(c.longest, took)
		c.latest = max(c.latest, took-stalled-deadline)
	}
}

func newClient(t *testing.T, addr string) redis.UniversalClient {
	t.Helper()
	c, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
