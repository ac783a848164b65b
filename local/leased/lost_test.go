package leased_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// lossy is a backend that loses the answers to takes, on command. The takes are made before the
// loss, later, or never.
type lossy struct {
	driver.Backend
	how  fate
	late []driver.Request
	lost int64 // units of takes without an answer that were made
}

type fate int

const (
	answered fate = iota
	made
	madeLater
	neverMade
)

func (l *lossy) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	switch l.how {
	case answered:
		return l.Backend.Take(ctx, r)
	case made:
		l.late = append(l.late, r)
		l.deliver()
	case madeLater:
		l.late = append(l.late, r)
	case neverMade:
	}
	return driver.Decision{}, &driver.UnavailableError{Backend: "leased_test", Shard: "a", Err: errors.New("no answer")}
}

// deliver makes the takes that are late.
func (l *lossy) deliver() {
	for _, r := range l.late {
		if d, err := l.Backend.Take(context.Background(), r); err == nil && d.Allowed {
			l.lost += r.Charges()[0].Cost
		}
	}
	l.late = nil
}

// A lease from a take without an answer is spent once a later answer shows it.
func TestLeasesWithoutAnAnswerAreFound(t *testing.T) {
	for i, name := range []string{"made", "made later", "never made"} {
		t.Run(name, func(t *testing.T) {
			how := made + fate(i)
			store := &lossy{Backend: memorybackend.NewDefault()}
			c := clock.NewManual(t0)
			b := open(t, store, &leased.Options{Clock: c})
			th := throttler.New(b, &throttler.Options{Clock: c})
			admitted, failed := int64(0), int64(0)
			take := func() bool {
				c.Advance(2 * time.Millisecond)
				d, err := th.Take(t.Context(), hour.Charge("k"))
				switch {
				case err == nil && d.Allowed:
					admitted++
				case driver.MayHaveCharged(err):
					failed++
				case err != nil:
					t.Fatal(err)
				}
				return d.Allowed
			}
			for hang := int64(1); hang <= 3; hang++ {
				for admitted < 150*hang {
					take()
				}
				store.how = how
				for failed < 5*hang {
					take()
				}
				store.how = answered
				take() // the lost takes are not made yet
				store.deliver()
			}
			for refused := 0; refused < 100; refused++ {
				for take() {
					refused = 0
				}
			}
			s := b.Stats()
			if how == neverMade {
				failed = 0
			}
			if admitted+failed != 1000 {
				t.Errorf("%d of 1000 were admitted, and %d had no answer; %+v", admitted, failed, s)
			}
			if s.Stranded == 0 || how != neverMade && s.Found != s.Stranded || how == neverMade && s.Found != 0 {
				t.Errorf("takes without an answer were %s: %+v", name, s)
			}
		})
	}
}

// loseAnswers takes until all is used. The answers of the takes after the first 100 are lost.
func loseAnswers(store *lossy, take func() (allowed bool)) {
	for range 100 {
		take()
	}
	store.how = made
	for take() {
	}
	store.how = answered
}

// Units leased in a window that has ended are not spent in the next one, although the process
// still counts them as lost.
func TestLeasesWithoutAnAnswerEndWithTheirWindow(t *testing.T) {
	p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Quota: 1000, Window: time.Second}}}
	store := &lossy{Backend: memorybackend.NewDefault()}
	c := clock.NewManual(t0)
	b := open(t, store, &leased.Options{Clock: c, Busy: 1, Ahead: time.Minute})
	th := throttler.New(b, &throttler.Options{Clock: c})
	if _, err := throttler.New(store.Backend, &throttler.Options{Clock: c}).Take(t.Context(), p.Charge("k")); err != nil { // opens the window
		t.Fatal(err)
	}
	c.Advance(500 * time.Millisecond)
	take := func() (allowed bool) {
		d, err := th.Take(t.Context(), p.Charge("k"))
		if err != nil && !driver.MayHaveCharged(err) {
			t.Fatal(err)
		}
		return d.Allowed
	}
	loseAnswers(store, take)
	c.Advance(600 * time.Millisecond)
	admitted := 0
	for take() {
		admitted++
	}
	if s := b.Stats(); admitted != 1000 || s.Found != 0 || s.Stranded == 0 {
		t.Errorf("%d of 1000 were admitted in the next window; %+v", admitted, s)
	}
}

// Units leased before another process's reset are not spent after it, although the window ends
// at the same instant.
func TestLeasesWithoutAnAnswerEndWithAReset(t *testing.T) {
	p := &throttler.Policy{Name: "p", Limits: []throttler.Limit{{Quota: 1000, Window: time.Hour, Aligned: true}}}
	shared := memorybackend.NewDefault()
	store := &lossy{Backend: shared}
	b := open(t, store, &leased.Options{Clock: clock.NewManual(t0), Busy: 1, Ahead: time.Minute})
	take := func() bool {
		d, err := b.Take(t.Context(), request(p, t0))
		if err != nil && !driver.MayHaveCharged(err) {
			t.Fatal(err)
		}
		return d.Allowed
	}
	loseAnswers(store, take)
	if err := shared.Reset(t.Context(), request(p, t0)); err != nil {
		t.Fatal(err)
	}
	for take() {
	}
	if s := b.Stats(); s.Found != 0 || s.Stranded == 0 {
		t.Errorf("%+v after a reset; want none found", s)
	}
}

// Whichever takes have no answer, and whenever they are made, no window admits more than its
// quota, and no answer promises more units than are left.
func TestSequentialLostLeasesNeverExceedTheQuota(t *testing.T) {
	for _, limits := range [][]throttler.Limit{
		{{Quota: 100, Window: time.Second}},
		{{Quota: 100, Window: time.Second, Aligned: true}},
		{{Quota: 100, Window: time.Second}, {Quota: 400, Window: 7 * time.Second, Aligned: true}},
	} {
		for seed := range uint64(10) {
			t.Run(fmt.Sprint(limits, "/seed ", seed), func(t *testing.T) { lostHistory(t, limits, seed) })
		}
	}
}

func lostHistory(t *testing.T, limits []throttler.Limit, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	shared := memorybackend.NewDefault()
	c := clock.NewManual(t0)
	p := &throttler.Policy{Name: "p", Limits: limits}
	var stores [3]*lossy
	var processes [3]*throttler.Throttler
	var backends [3]*leased.Backend
	for i := range stores {
		stores[i] = &lossy{Backend: shared}
		backends[i] = open(t, stores[i], &leased.Options{Clock: c, Busy: 1})
		processes[i] = throttler.New(backends[i], &throttler.Options{Clock: c})
	}
	type window struct {
		limit   int
		resetAt time.Time
	}
	admitted := map[window]int64{}
	for range 6000 {
		i := random.IntN(len(stores))
		switch n := random.IntN(300); {
		case n < 20:
			c.Advance(time.Duration(random.IntN(60)) * time.Millisecond)
		case n < 22: // so that some windows end with units left
			c.Advance(time.Duration(random.IntN(900)) * time.Millisecond)
		case n < 24:
			stores[i].how = fate(random.IntN(4))
		case n < 60:
			stores[i].how = answered
		case n < 64:
			stores[i].deliver()
		case n < 66:
			backends[i].Sweep()
		}
		cost := 1 + int64(random.IntN(20)/19)
		d, err := processes[i].Take(t.Context(), throttler.Charge{Policy: p, Key: "k", Cost: cost})
		if err != nil || !d.Allowed {
			continue
		}
		for i, s := range d.Limits() {
			w := window{i, s.ResetAt}
			if admitted[w] += cost; admitted[w] > s.Limit.Quota || s.Remaining > s.Limit.Quota-admitted[w] {
				t.Fatalf("%d of %v are admitted, and an answer says that %d remain", admitted[w], s.Limit, s.Remaining)
			}
		}
	}
}
