package rollout_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

// moves records the moves of a rollout.
type moves struct {
	observe.Nothing
	mu  sync.Mutex
	all []observe.Moved
}

func (m *moves) Moved(e observe.Moved) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, e)
}

// last returns the last event, and how many there are.
func (m *moves) last() (e observe.Moved, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n = len(m.all); n > 0 {
		e = m.all[n-1]
	}
	return e, n
}

// A real server hangs while clients leave it: their decisions fail until it has been
// down for Abandon, and then their counts begin again. The others are moved.
func TestServerHangsWhileCountsLeaveIt(t *testing.T) {
	mc, rd := testserver.Memcached(t), testserver.Redis(t)
	n := 0
	for name, test := range map[string]struct {
		open   func(*testing.T) handoff.Store
		server interface {
			Pause()
			Resume()
		}
	}{
		"memcached": {func(t *testing.T) handoff.Store {
			return memcachedBackend(t, []memcachedbackend.Server{{Name: "a", Client: memcachedClient(t, mc.Addr)}}, n)
		}, mc},
		"redis": {func(t *testing.T) handoff.Store {
			return redisBackend(t, []redisbackend.Shard{{Name: "a", Primary: redisClient(t, rd.Addr)}}, n)
		}, rd},
	} {
		t.Run(name, func(t *testing.T) {
			n++
			var events moves
			f := newFlagged(t, "old", map[string]handoff.Store{"old": test.open(t), "new": memorybackend.NewDefault()},
				rollout.Options{Refresh: time.Minute, Abandon: 300 * time.Millisecond, Observer: &events})
			// Before the server hangs, a busy machine must not look like a hang.
			take := func(key string, wait time.Duration) (throttler.Decision, error) {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				return f.Take(ctx, hourly.Charge(key))
			}
			for _, key := range []string{"kept", "lost"} {
				if _, err := take(key, time.Minute); err != nil {
					t.Fatal(err)
				}
			}
			f.flip("new")
			if d, err := take("kept", time.Minute); err != nil || d.Limit(0).Used != 2 {
				t.Fatalf("a client that moves: used %d, %v; want 2", d.Limit(0).Used, err)
			}
			if e, n := events.last(); n != 1 || e != (observe.Moved{From: "old", To: "new"}) {
				t.Errorf("%d events, the last %+v; want one of a move", n, e)
			}
			test.server.Pause()
			defer test.server.Resume()
			failed := 0
			for deadline := time.Now().Add(time.Minute); ; failed++ {
				d, err := take("lost", 50*time.Millisecond)
				if err == nil {
					if d.Limit(0).Used != 1 {
						t.Errorf("used %d, want 1: its count begins again", d.Limit(0).Used)
					}
					break
				}
				if time.Now().After(deadline) {
					t.Fatal(err)
				}
				if !errors.Is(err, throttler.ErrUnavailable) {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Fatal(err)
					}
					continue // on a busy machine, before anything was sent
				}
				if e, _ := events.last(); e.From != "old" || e.To != "new" || e.Lost || e.Err == nil {
					t.Errorf("the last event is %+v; want a move that failed", e)
				}
			}
			if failed < 3 {
				t.Errorf("%d decisions failed, want those that open the breaker at least", failed)
			}
			if e, _ := events.last(); e != (observe.Moved{From: "old", To: "new", Lost: true}) {
				t.Errorf("the last event is %+v; want a loss", e)
			}
			// On a busy machine the decision that loses it may fail, and the next one does.
			if s := f.rollout.Stats(); s.Moved != 1 || s.Lost < 1 || s.PassedOver != 0 {
				t.Errorf("%+v; want one moved and one lost", s)
			}
			if d, err := take("kept", time.Minute); err != nil || d.Limit(0).Used != 3 {
				t.Errorf("the client that moved: used %d, %v; want 3", d.Limit(0).Used, err)
			}
		})
	}
}

// A rollout is down if the backend that decides is down, and does not depend on the others.
func TestRolloutIsDownWhereItsBackendIs(t *testing.T) {
	p := newPair(t)
	q := p.process("old", rollout.Options{Refresh: time.Minute})
	p.old.broken.Store(true)
	p.old.breaker.Trip(time.Now(), errBroken)
	since, down := q.rollout.Down("alice")
	if want, _ := p.old.breaker.Since(); !down || !since.Equal(want) {
		t.Errorf("on old, which does not answer: down %t since %v, want since %v", down, since, want)
	}
	other := p.process("new", rollout.Options{Refresh: time.Minute})
	if _, down := other.rollout.Down("alice"); down {
		t.Error("on new, which answers: it is down")
	}
}
