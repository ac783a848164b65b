package leased_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// unsettled is a backend that, on command, does not send settlements, or hangs in them.
type unsettled struct {
	driver.Backend
	unsent, hangs atomic.Bool
	settlements   atomic.Int64
}

func (u *unsettled) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	u.settlements.Add(1)
	if u.hangs.Load() {
		<-ctx.Done()
		return driver.Decision{}, &driver.UnavailableError{Backend: "leased_test", Shard: "a", Err: ctx.Err()}
	}
	if u.unsent.Load() {
		return driver.Decision{}, &driver.UnavailableError{Backend: "leased_test", Shard: "a", Err: driver.ErrNotSent}
	}
	return u.Backend.Settle(ctx, st)
}

// A lease is returned by a later sweep if its return was not sent.
func TestGiveBacksThatWereNotSent(t *testing.T) {
	for _, how := range []string{"sweep", "close"} {
		t.Run(how, func(t *testing.T) {
			f := &fleet{T: t, clock: clock.NewManual(t0), store: memorybackend.NewDefault()}
			store := &unsettled{Backend: f.store}
			b := open(t, store, &leased.Options{Clock: f.clock, Ahead: time.Minute})
			p := process{b, throttler.New(b, &throttler.Options{Clock: f.clock})}
			p.take(t, 50)
			store.unsent.Store(true)
			f.clock.Advance(15 * time.Second)
			for range 3 {
				b.Sweep()
			}
			if n := f.used(); n <= 50 {
				t.Fatalf("%d are used; want some of a lease", n)
			}
			store.unsent.Store(false)
			if how == "sweep" {
				b.Sweep()
			} else if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if n := f.used(); n != 50 {
				t.Errorf("%d are used after the store is back; want 50", n)
			}
			if n := b.Stats().Stranded; n != 0 {
				t.Errorf("%d leases are stranded", n)
			}
		})
	}
}

// keeping is a backend that keeps the last settlement.
type keeping struct {
	driver.Backend
	last driver.Settlement
}

func (k *keeping) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	k.last = st
	return k.Backend.Settle(ctx, st)
}

// The settlement that gives a lease back shares no results with the lease, which later takes
// change while the settlement is on its way.
func TestAGiveBackHasItsOwnResults(t *testing.T) {
	p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour}, {Quota: 5000, Window: 24 * time.Hour}}}
	c := clock.NewManual(t0)
	store := &keeping{Backend: memorybackend.NewDefault()}
	b := open(t, store, &leased.Options{Clock: c})
	take := func() {
		t.Helper()
		if d, err := b.Take(t.Context(), request(p, c.Now())); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	for range 50 {
		take()
	}
	c.Advance(3 * time.Second)
	b.Sweep()
	sent := slices.Clone(store.last.Charged.Results())
	if len(sent) != 2 {
		t.Fatalf("%d results were sent; want 2", len(sent))
	}
	take()
	if after := store.last.Charged.Results(); !slices.Equal(after, sent) {
		t.Errorf("a take changed the results of a settlement from %+v to %+v", sent, after)
	}
}

// Close ends with its context, also if there are many leases and the store hangs.
func TestCloseEndsWithItsContext(t *testing.T) {
	store := &unsettled{Backend: memorybackend.NewDefault()}
	b := open(t, store, &leased.Options{Clock: clock.NewManual(t0)}) // no key falls silent
	th := throttler.New(b, &throttler.Options{Clock: clock.NewManual(t0)})
	const keys = 200
	for i := range keys {
		for range 50 {
			if _, err := th.Take(t.Context(), hour.Charge(strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	store.hangs.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v, want %v", err, context.DeadlineExceeded)
	}
	if n := store.settlements.Load(); n == 0 || n > keys/2 {
		t.Errorf("Close took %v, and began %d of %d settlements of a store that hangs", time.Since(begun), n, keys)
	}
	store.hangs.Store(false)
	if err := b.Close(t.Context()); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	used := int64(0)
	for i := range keys {
		d, err := store.Peek(t.Context(), driver.NewRequest(t0.UnixMilli(), throttler.Charge{Policy: hour, Key: strconv.Itoa(i), Partition: strconv.Itoa(i), Cost: 1}))
		if err != nil {
			t.Fatal(err)
		}
		used += d.Results()[0].Used
	}
	// Only leases with a settlement that hung are stranded, each as a whole.
	if s, left := b.Stats(), used-50*keys; s.Stranded != left || left == 0 || s.GivenBack+left/(left/(keys-s.GivenBack)) != keys {
		t.Errorf("%+v after a second Close; %d units of %d leases are left", s, left, keys)
	}
}

// Close does not wait longer than its context for a take that hangs, either.
func TestCloseDuringATakeThatHangs(t *testing.T) {
	store := &slow{Backend: memorybackend.NewDefault(), asked: make(chan struct{}), fails: make(chan struct{})}
	asked := store.asked
	b := open(t, store, &leased.Options{Busy: 1})
	renewal := make(chan error, 1)
	go func() { _, err := b.Take(context.Background(), request(hour, t0)); renewal <- err }()
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v, want %v", err, context.DeadlineExceeded)
	}
	close(store.fails)
	if err := <-renewal; !errors.Is(err, throttler.ErrUnavailable) {
		t.Errorf("the take: %v, want ErrUnavailable", err)
	}
}
