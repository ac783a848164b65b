package throttler_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// streams allows three at once, which lapse after 30 s if their process doesn't renew them.
var streams = &throttler.Policy{Name: "streams", Limits: []throttler.Limit{
	{Quota: 3, Window: lease, Algorithm: throttler.InFlight},
}}

const lease = 30 * time.Second

func takeStream(name string) order {
	return order{Do: "take", Name: name, Policy: streams, Key: "k"}
}

// The units that a process has in flight stay while it lives, and lapse a lease after it was
// killed. A stopped process loses them if others have taken their room.
func TestInFlightOfRealProcesses(t *testing.T) {
	f := startProcesses(t, 4)
	a, b, c, d := f.all[0], f.all[1], f.all[2], f.all[3]
	take := func(p *process, name string, want bool) {
		t.Helper()
		got := p.do(takeStream(name))
		if got.Err != "" || got.Allowed != want {
			t.Fatalf("%s: %+v; want allowed %t", name, got, want)
		}
		if !want && (got.RetryIn != time.Second || got.Used[0] != 3) {
			t.Errorf("%s: refused with %+v; want 3 in flight, and to ask again in a second", name, got)
		}
	}
	pass := func(d time.Duration) {
		t.Helper()
		for range d / (5 * time.Second) {
			if lost := f.pass(5 * time.Second); len(lost) > 0 {
				t.Fatalf("at %v, lost %v", f.now.Sub(t0), lost)
			}
		}
	}
	goOn := func(p *process, want ...string) {
		t.Helper()
		if got := p.goOn(f.now); got.Err != "" || !slices.Equal(got.Lost, want) {
			t.Errorf("a process that goes on: %+v; want lost %v", got, want)
		}
	}
	take(a, "a", true)
	take(b, "b", true)
	take(c, "c", true)
	take(d, "d", false)
	pass(5 * lease) // while they live
	take(d, "d", false)

	b.stop() // for less than a lease
	pass(15 * time.Second)
	goOn(b)
	pass(lease)
	take(d, "d", false)

	b.stop() // for longer, with room to return to
	pass(2 * lease)
	goOn(b)
	take(d, "d", false)

	b.stop() // and without room
	pass(2 * lease)
	take(d, "d", true)
	goOn(b, "b")
	if got := b.do(order{Do: "settle", Name: "b"}); got.Err != "" {
		t.Errorf("b settles what it has lost: %v", got.Err)
	}
	take(b, "b2", false) // settling a lost unit makes no room

	a.kill()
	take(b, "b3", false)
	pass(lease)
	take(b, "b4", true)
	take(b, "b5", false)
}

// place models a unit that a process has in flight.
type place struct {
	process int
	renewal time.Time // next renewal
	until   time.Time // when it lapses
	armed   int       // sequence number of its renewal's timer
}

// flights is a model of the units in flight.
type flights struct {
	*processes
	places map[string]*place
	armed  int
}

// live returns the number of places that count.
func (f *flights) live() (n int) {
	for _, p := range f.places {
		if p.until.After(f.now) {
			n++
		}
	}
	return n
}

func (f *flights) renewed(p *place) {
	f.armed++
	p.renewal, p.until, p.armed = f.now.Add(lease/3), f.now.Add(lease), f.armed
}

// reach renews the places of process i that are due now, and returns those that it loses.
func (f *flights) reach(i int) (lost []string) {
	names := slices.SortedFunc(maps.Keys(f.places), func(x, y string) int { return f.places[x].armed - f.places[y].armed })
	for _, name := range names {
		switch p := f.places[name]; {
		case p.process != i || p.renewal.After(f.now):
		case p.until.After(f.now) || f.live() < 3:
			f.renewed(p)
		default:
			delete(f.places, name)
			lost = append(lost, name)
		}
	}
	return lost
}

// forget marks the places of process i, which was killed, and removes marked, lapsed places.
func (f *flights) forget(i int) {
	for _, p := range f.places {
		if p.process == i {
			p.process = -1
		}
	}
	maps.DeleteFunc(f.places, func(_ string, p *place) bool { return p.process < 0 && !p.until.After(f.now) })
}

// of returns the names of the places of process i, sorted.
func (f *flights) of(i int) (names []string) {
	for name, p := range f.places {
		if p.process == i {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Processes take and settle at random, and are killed, stopped and continued. They decide as a
// model does. At most three units are in flight, and running processes hold at most three.
func TestSequentialInFlightAtRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(testseed.Of(t), 0))
	f := &flights{processes: startProcesses(t, 4), places: make(map[string]*place)}
	now := clock.NewManual(f.now)
	observer, end := newProcess(f.client.Options().Addr, now)
	defer end()
	done := make(map[string]int)
	for step := range 600 {
		i := rng.IntN(len(f.all))
		p := f.all[i]
		var got outcome
		var want []string // lost places
		name := fmt.Sprint("take ", step)
		switch own := f.of(i); rng.IntN(20) {
		case 0, 1, 2, 3, 4, 5, 6:
			if p.stopped {
				continue
			}
			allowed := f.live() < 3
			if got = p.do(takeStream(name)); got.Allowed != allowed {
				t.Fatalf("step %d: %+v; want allowed %t", step, got, allowed)
			}
			if allowed {
				f.places[name] = &place{process: i}
				f.renewed(f.places[name])
			}
			done[fmt.Sprint("allowed ", allowed)]++
		case 7, 8:
			if p.stopped || len(own) == 0 {
				continue
			}
			name = own[rng.IntN(len(own))]
			delete(f.places, name)
			got = p.do(order{Do: "settle", Name: name})
			done["settled"]++
		case 9:
			p.kill()
			f.forget(i)
			f.all[i] = f.start()
			done["killed"]++
		case 10, 11:
			if !p.stopped {
				p.stop()
				done["stopped"]++
			}
		case 12, 13:
			if p.stopped {
				want, got = f.reach(i), p.goOn(f.now)
				done["continued"]++
			}
		default:
			d := time.Duration(rng.IntN(15)) * time.Second // or, once in a while, longer than a lease
			if rng.IntN(8) == 0 {
				d += lease
			}
			f.now = f.now.Add(d)
			for k := range f.all {
				if !f.all[k].stopped {
					want = append(want, f.reach(k)...)
				}
			}
			f.now = f.now.Add(-d)
			got.Lost = f.pass(d)
			f.forget(-1)
		}
		done["lost"] += len(want)
		if got.Err != "" || !slices.Equal(got.Lost, want) {
			t.Fatalf("step %d: %+v; want lost %v", step, got, want)
		}
		now.Set(f.now)
		d, err := observer.Peek(t.Context(), streams.Charge("k"))
		if live := f.live(); err != nil || d.Limit(0).Used != int64(live) || live > 3 {
			t.Fatalf("step %d: %d in flight, %v; want %d, and at most 3", step, d.Limit(0).Used, err, live)
		}
		believed := 0
		for k := range f.all {
			if !f.all[k].stopped {
				believed += len(f.of(k))
			}
		}
		if believed > 3 {
			t.Fatalf("step %d: %d are believed to be in flight", step, believed)
		}
	}
	t.Log(done)
	for _, what := range []string{"allowed true", "allowed false", "settled", "killed", "stopped", "continued", "lost"} {
		if done[what] == 0 {
			t.Errorf("nothing was %s: %v", what, done)
		}
	}
}

// The lost function may be nil, even if a renewal fails.
func TestHoldWithoutLost(t *testing.T) {
	c := new(steps)
	c.Set(t0)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c})
	d, err := th.Take(t.Context(), streams.Charge("k"))
	if err != nil {
		t.Fatal(err)
	}
	c.Set(t0.Add(31 * time.Second)) // it has lapsed, and others take its room
	for range streams.Limits[0].Quota {
		if d, err := th.Take(t.Context(), streams.Charge("k")); err != nil || !d.Allowed {
			t.Fatal(d.Allowed, err)
		}
	}
	defer th.Hold(t.Context(), d, nil)()
	c.reach(t0.Add(31 * time.Second))
}

// A process that was stopped between its take and Hold renews at once.
func TestHoldCountsFromTheTake(t *testing.T) {
	c := new(steps)
	c.Set(t0)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c})
	d, err := th.Take(t.Context(), streams.Charge("k"))
	if err != nil {
		t.Fatal(err)
	}
	c.Set(t0.Add(25 * time.Second))
	defer th.Hold(t.Context(), d, func(err error) { t.Error(err) })()
	c.reach(t0.Add(25 * time.Second))
	c.Set(t0.Add(35 * time.Second))
	if d, err := th.Peek(t.Context(), streams.Charge("k")); err != nil || d.Limit(0).Used != 1 {
		t.Errorf("%d in flight, %v; want 1", d.Limit(0).Used, err)
	}
}

// A charge in mode Check holds nothing, so its lease does not say when to renew.
func TestHoldOfChecks(t *testing.T) {
	c := new(steps)
	c.Set(t0)
	b := &renewals{Backend: memorybackend.NewDefault()}
	th := throttler.New(b, &throttler.Options{Clock: c})
	short := &throttler.Policy{Name: "short", Limits: []throttler.Limit{{Quota: 3, Window: 3 * time.Second, Algorithm: throttler.InFlight}}}
	check := short.Charge("k")
	check.Mode = quota.Check
	for _, charges := range [][]throttler.Charge{{check}, {check, streams.Charge("k")}} {
		d, err := th.Take(t.Context(), charges...)
		if err != nil {
			t.Fatal(err)
		}
		defer th.Hold(t.Context(), d, func(err error) { t.Error(err) })()
	}
	c.reach(t0.Add(lease/3 - time.Second))
	if b.n != 0 {
		t.Errorf("%d renewals in less than a third of the lease; want none", b.n)
	}
	c.reach(t0.Add(lease / 3))
	if b.n == 0 {
		t.Error("no renewal after a third of the lease")
	}
}

// renewals is a backend that counts the renewals that it makes.
type renewals struct {
	driver.Backend
	n int
}

func (b *renewals) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if s.Renews {
		b.n++
	}
	return b.Backend.Settle(ctx, s)
}

// heldRenewals is a backend whose renewals wait until it is opened.
type heldRenewals struct {
	driver.Backend
	begun, open chan struct{}
}

func (b *heldRenewals) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if s.Renews {
		close(b.begun)
		<-b.open
	}
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	return b.Backend.Settle(ctx, s)
}

// A refund whose context ends while a renewal is under way is made.
func TestRefundAfterARenewal(t *testing.T) {
	b := &heldRenewals{memorybackend.NewDefault(), make(chan struct{}), make(chan struct{})}
	th := throttler.New(b, nil)
	p := policy("p", throttler.Limit{Quota: 1, Window: time.Minute, Algorithm: throttler.InFlight})
	d := take(t, th, p.Charge("key"))
	go func() { _, _ = th.Renew(context.Background(), d) }()
	<-b.begun
	ctx, cancel := context.WithCancel(t.Context())
	refunded := make(chan error)
	go func() {
		_, err := th.Refund(ctx, d)
		refunded <- err
	}()
	time.Sleep(20 * time.Millisecond) // it waits for the renewal, most likely
	cancel()
	close(b.open)
	if err := <-refunded; err != nil {
		t.Errorf("the refund: %v", err)
	}
}

// silentRenewals is a backend that does not answer renewals.
type silentRenewals struct {
	driver.Backend
	begun chan struct{}
}

func (b silentRenewals) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	if s.Renews {
		close(b.begun)
		<-ctx.Done()
		return driver.Decision{}, ctx.Err()
	}
	return b.Backend.Settle(ctx, s)
}

// A settlement waits for a renewal of Hold that is on its way for a second, not until the next
// renewal is due, which is in 20 minutes here.
func TestSettleDuringARenewal(t *testing.T) {
	c := clock.NewManual(t0)
	b := silentRenewals{memorybackend.NewDefault(), make(chan struct{})}
	th := throttler.New(b, &throttler.Options{Clock: c})
	p := policy("p", throttler.Limit{Quota: 1, Window: time.Hour, Algorithm: throttler.InFlight})
	d := take(t, th, p.Charge("key"))
	stop := th.Hold(t.Context(), d, func(err error) { t.Errorf("lost is called after the end: %v", err) })
	c.Advance(20 * time.Minute)
	<-b.begun
	stop()
	settled := make(chan error, 1)
	go func() {
		_, err := th.Settle(context.Background(), d)
		settled <- err
	}()
	select {
	case err := <-settled:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the settlement waits for the renewal")
	}
	if d, err := th.Peek(t.Context(), p.Charge("key")); err != nil || d.Limit(0).Used != 0 {
		t.Errorf("%d in flight, %v; want 0", d.Limit(0).Used, err)
	}
}
