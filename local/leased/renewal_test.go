package leased_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// gated is a backend. After hold, one take waits until the gate opens.
type gated struct {
	driver.Backend
	mu   sync.Mutex
	held chan struct{} // closed when a take waits; nil if no take has to wait
	gate chan struct{}
	late bool // the take waits with its answer
}

func (g *gated) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	g.mu.Lock()
	held, gate := g.held, g.gate
	g.held = nil
	g.mu.Unlock()
	if held != nil && !g.late {
		close(held)
		<-gate
	}
	d, err := g.Backend.Take(ctx, r)
	if held != nil && g.late {
		close(held)
		<-gate
	}
	return d, err
}

// hold makes the next take wait.
func (g *gated) hold() (held chan struct{}) {
	held = make(chan struct{})
	g.mu.Lock()
	g.held, g.gate = held, make(chan struct{})
	g.mu.Unlock()
	return held
}

func request(p *throttler.Policy, at time.Time) driver.Request {
	return driver.NewRequest(at.UnixMilli(), throttler.Charge{Policy: p, Key: "k", Partition: "k", Cost: 1})
}

// renewing returns a backend in front of store that is making a renewal of p at that time, and
// a function that lets it end.
func renewing(t *testing.T, store *gated, p *throttler.Policy, at time.Time) (b *leased.Backend, release func()) {
	t.Helper()
	b = open(t, store, &leased.Options{Busy: 1, Clock: clock.NewManual(at)})
	for range 400 {
		if d, err := b.Take(t.Context(), request(p, at)); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	held := store.hold()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-held:
				return
			default:
			}
			if _, err := b.Take(context.Background(), request(p, at)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	<-held
	return b, func() { close(store.gate); <-done }
}

// waiting starts n takes, calls f once they all wait, and returns how many were allowed, and
// the last decision.
func waiting(t *testing.T, b *leased.Backend, r driver.Request, n int, f func()) (allowed int64, last driver.Decision) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for range n {
		all.Go(func() {
			d, err := b.Take(context.Background(), r)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if last = d; d.Allowed {
				allowed++
			}
		})
	}
	leased.AwaitWaiters(b, n)
	f()
	all.Wait()
	return allowed, last
}

// A take that waits for a renewal is not answered from a window that has ended.
func TestWaitersOfTheNextWindow(t *testing.T) {
	p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Quota: 1000, Window: 10 * time.Second, Aligned: true}}}
	first := t0.Truncate(10 * time.Second).Add(9 * time.Second)
	next := first.Add(1500 * time.Millisecond)
	b, release := renewing(t, &gated{Backend: memorybackend.NewDefault()}, p, first)
	admitted, d := waiting(t, b, request(p, next), 600, release)
	if resets := d.Results()[0].ResetAt; resets <= next.UnixMilli() {
		t.Errorf("a take at %d was answered from the window that ended at %d", next.UnixMilli(), resets)
	}
	for range 2000 {
		if d, err := b.Take(t.Context(), request(p, next)); err != nil {
			t.Fatal(err)
		} else if d.Allowed {
			admitted++
		}
	}
	if admitted > 1000 {
		t.Errorf("%d of 1000 were admitted in one window", admitted)
	}
}

// Nor is it answered under the limits of another take.
func TestWaitersOfAnotherQuota(t *testing.T) {
	limit := throttler.Limit{Quota: 10_000, Window: 10 * time.Second, Aligned: true}
	high := &throttler.Policy{Name: "p", Limits: []throttler.Limit{limit}}
	limit.Quota = 300
	low := &throttler.Policy{Name: "p", Limits: []throttler.Limit{limit}}
	at := t0.Truncate(10 * time.Second).Add(time.Second)
	b, release := renewing(t, &gated{Backend: memorybackend.NewDefault()}, high, at)
	if n, d := waiting(t, b, request(low, at), 20, release); n > 0 {
		t.Errorf("%d were admitted by a quota of 300 when 400 and more are used: %v", n, d.Results())
	}
}

// panics is a backend that panics in its first take.
type panics struct {
	driver.Backend
	done bool
}

func (p *panics) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if !p.done {
		p.done = true
		panic("first")
	}
	return p.Backend.Take(ctx, r)
}

// A panic of the other backend reaches the caller, and the next take of the key is made.
func TestBackendThatPanics(t *testing.T) {
	b := open(t, &panics{Backend: memorybackend.NewDefault()}, &leased.Options{Busy: 1})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was lost")
			}
		}()
		_, _ = b.Take(t.Context(), request(hour, t0))
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if d, err := b.Take(ctx, request(hour, t0)); err != nil || !d.Allowed {
		t.Errorf("after a panic: %v, %v", d, err)
	}
}

// countless is a backend that allows all without counts.
type countless struct{ driver.Backend }

func (countless) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	d := driver.NewDecision(driver.NewRequest(r.Now))
	d.Allowed, d.Degraded = true, true
	return d, nil
}

func TestBackendWithoutCounts(t *testing.T) {
	b := open(t, countless{memorybackend.NewDefault()}, &leased.Options{Busy: 1})
	for range 3 {
		if d, err := b.Take(t.Context(), request(hour, t0)); err != nil || !d.Allowed || !d.Degraded {
			t.Errorf("Take: %v, %v; want it allowed, degraded", d, err)
		}
	}
}

// alone is a backend that has lost the shared counts, and counts by itself.
type alone struct{ driver.Backend }

func (a alone) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	d, err := a.Backend.Take(ctx, r)
	d.Degraded = true
	return d, err
}

// Degraded decisions lease nothing, and charge no more than they report.
func TestBackendThatIsDegraded(t *testing.T) {
	store := memorybackend.NewDefault()
	b := open(t, alone{store}, &leased.Options{Busy: 1, Clock: clock.NewManual(t0)})
	for range 50 {
		d, err := b.Take(t.Context(), request(hour, t0))
		if err != nil || !d.Allowed || !d.Degraded || d.Charges()[0].Cost != 1 {
			t.Fatalf("Take: %v, %v; want it allowed, degraded, for 1 unit", d, err)
		}
	}
	if d, err := store.Peek(t.Context(), request(hour, t0)); err != nil || d.Results()[0].Used != 50 {
		t.Errorf("%v, %v after 50 takes", d.Results(), err)
	}
	if n := b.Stats().Leases; n != 0 {
		t.Errorf("%d leases", n)
	}
}

// slow is a backend that fails when the context ends, or when fails is closed.
type slow struct {
	driver.Backend
	mu    sync.Mutex
	asked chan struct{} // nil if it answers
	fails chan struct{}
}

func (s *slow) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	s.mu.Lock()
	asked := s.asked
	s.asked = nil
	s.mu.Unlock()
	if asked == nil {
		return s.Backend.Take(ctx, r)
	}
	close(asked)
	cause := errors.New("no answer")
	select {
	case <-ctx.Done():
		cause = ctx.Err()
	case <-s.fails:
	}
	return driver.Decision{}, &driver.UnavailableError{Backend: "leased_test", Shard: "a", Err: cause}
}

// Takes that wait for a renewal fail with it. They have sent nothing.
func TestWaitersOfARenewalThatFails(t *testing.T) {
	asked := make(chan struct{})
	store := &slow{Backend: memorybackend.NewDefault(), asked: asked, fails: make(chan struct{})}
	b := open(t, store, &leased.Options{Busy: 1})
	renewal, waiter := make(chan error, 1), make(chan error, 1)
	go func() { _, err := b.Take(context.Background(), request(hour, t0)); renewal <- err }()
	<-asked
	go func() { _, err := b.Take(context.Background(), request(hour, t0)); waiter <- err }()
	leased.AwaitWaiters(b, 1)
	close(store.fails)
	if err := <-renewal; !driver.MayHaveCharged(err) {
		t.Errorf("the renewal: %v; want an error that may have charged", err)
	}
	if err := <-waiter; !errors.Is(err, throttler.ErrUnavailable) || driver.MayHaveCharged(err) {
		t.Errorf("the take that waited: %v; want ErrUnavailable, nothing sent", err)
	}
}

// If its own caller has gone, takes that wait for a renewal ask the store themselves.
func TestWaitersOfARenewalThatIsAbandoned(t *testing.T) {
	asked := make(chan struct{})
	store := &slow{Backend: memorybackend.NewDefault(), asked: asked}
	b := open(t, store, &leased.Options{Busy: 1})
	ctx, abandon := context.WithCancel(t.Context())
	renewal, waiter := make(chan error, 1), make(chan error, 1)
	go func() { _, err := b.Take(ctx, request(hour, t0)); renewal <- err }()
	<-asked
	go func() { _, err := b.Take(context.Background(), request(hour, t0)); waiter <- err }()
	leased.AwaitWaiters(b, 1)
	abandon()
	if err := <-renewal; !errors.Is(err, context.Canceled) {
		t.Errorf("the renewal: %v; want %v", err, context.Canceled)
	}
	if err := <-waiter; err != nil {
		t.Errorf("a take that waited: %v", err)
	}
}

// A key that has used up its quota has nothing to lease: its takes ask the store as they come,
// without waiting for each other. In the next window it is leased again.
func TestRefusedTakesDoNotWaitForEachOther(t *testing.T) {
	few := &throttler.Policy{Name: "few", Limits: []throttler.Limit{{Quota: 20, Window: time.Minute}}}
	store := &gated{Backend: memorybackend.NewDefault()}
	b := open(t, store, &leased.Options{Busy: 1, Clock: clock.NewManual(t0)})
	for i := range 21 {
		if d, err := b.Take(t.Context(), request(few, t0)); err != nil || d.Allowed != (i < 20) {
			t.Fatalf("take %d: %v, %v", i, d, err)
		}
	}
	held, first, second := store.hold(), make(chan bool, 1), make(chan bool, 1)
	take := func(allowed chan<- bool) {
		d, err := b.Take(context.Background(), request(few, t0))
		allowed <- d.Allowed || err != nil
	}
	go take(first)
	<-held
	go take(second)
	select {
	case wrong := <-second:
		if wrong {
			t.Error("the second take is not refused")
		}
	case <-time.After(10 * time.Second):
		t.Error("the second take waits for the first")
	}
	close(store.gate)
	if <-first {
		t.Error("the first take is not refused")
	}
	before := b.Stats()
	for range 10 {
		if d, err := b.Take(t.Context(), request(few, t0.Add(time.Minute))); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if after := b.Stats(); after.Local == before.Local {
		t.Errorf("in the next window, %+v after %+v; want decisions from a lease", after, before)
	}
}

// A request for more units than are left does not keep smaller requests from being leased.
func TestARefusalOfManyUnits(t *testing.T) {
	b := open(t, memorybackend.NewDefault(), &leased.Options{Busy: 1, Clock: clock.NewManual(t0)})
	many := driver.NewRequest(t0.UnixMilli(), throttler.Charge{Policy: hour, Key: "k", Partition: "k", Cost: 1000})
	for range 200 {
		if d, err := b.Take(t.Context(), request(hour, t0)); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		if d, err := b.Take(t.Context(), many); err != nil || d.Allowed {
			t.Fatal(d, err)
		}
	}
	if s := b.Stats(); s.Local < 150 {
		t.Errorf("%+v; want most of 200 takes of a unit from leases", s)
	}
}

// A renewal that was on its way when its lease was reset is counted once.
func TestARenewalDuringAReset(t *testing.T) {
	store := &gated{Backend: memorybackend.NewDefault()}
	c := clock.NewManual(t0)
	b := open(t, store, &leased.Options{Busy: 1, Clock: c})
	take := func() (allowed int) {
		d, err := b.Take(context.Background(), request(hour, c.Now()))
		if err != nil {
			t.Error(err)
		}
		if d.Allowed {
			allowed = 1
		}
		return allowed
	}
	for range 40 {
		take()
	}
	held, renewed := store.hold(), make(chan int)
	go func() {
		last := 0
		for {
			select {
			case <-held:
				renewed <- last
				return
			default:
				last = take()
			}
		}
	}()
	<-held
	if err := b.Reset(t.Context(), request(hour, c.Now())); err != nil {
		t.Fatal(err)
	}
	admitted := take()
	close(store.gate)
	admitted += <-renewed
	for range 2 {
		for take() == 1 {
			admitted++
		}
		c.Advance(time.Second)
		b.Sweep()
	}
	for take() == 1 {
		admitted++
	}
	if admitted != 1000 {
		t.Errorf("%d of 1000 were admitted since the reset; %+v", admitted, b.Stats())
	}
}

// Units that a renewal leased before a reset are not spent by the takes that waited for it.
func TestWaitersOfARenewalBeforeAReset(t *testing.T) {
	b, release := renewing(t, &gated{Backend: memorybackend.NewDefault(), late: true}, hour, t0)
	admitted, _ := waiting(t, b, request(hour, t0), 10, func() {
		if err := b.Reset(t.Context(), request(hour, t0)); err != nil {
			t.Error(err)
		}
		release()
	})
	for range 1000 {
		if d, err := b.Take(t.Context(), request(hour, t0)); err != nil {
			t.Fatal(err)
		} else if d.Allowed {
			admitted++
		}
	}
	if admitted != 1000 {
		t.Errorf("%d of 1000 were admitted since the reset; %+v", admitted, b.Stats())
	}
}

// A take that has waited for a renewal for the server's time does not wait for the next one,
// whose own time may have just begun: it asks the store itself.
func TestNoWaitAfterTheServersTime(t *testing.T) {
	store := &gated{Backend: memorybackend.NewDefault()}
	p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Quota: 8000, Window: time.Hour}}}
	b, release := renewing(t, store, p, t0)
	r := driver.NewRequest(t0.UnixMilli(), throttler.Charge{Policy: p, Key: "k", Partition: "k", Cost: 1000}) // no lease has room for two
	r.ServerTime = time.Nanosecond
	ended := make(chan error, 3)
	for range cap(ended) {
		go func() {
			_, err := b.Take(t.Context(), r)
			ended <- err
		}()
	}
	leased.AwaitWaiters(b, cap(ended))
	first := store.gate
	next := store.hold()
	close(first)
	<-next // one renews the lease
	for range cap(ended) - 1 {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("a take waits")
		}
	}
	release()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
