package redisbackend_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/driver"
)

// A queued decision is made even after its time has passed, if the server answers.
func TestQueuedBeyondItsDeadline(t *testing.T) {
	p := policy("core", perHour(100))
	server, b, sent := newFull(t, t.Context(), p)
	const serverTime = 20 * time.Millisecond
	waited := make(chan error, 1)
	go func() {
		_, err := b.WithServerTime(serverTime).Take(t.Context(), p.Charge("waits"))
		waited <- err
	}()
	eventually(t, "a queue", func() bool { _, n := b.backend.Batches(); return n == 1 })
	time.Sleep(serverTime)
	select {
	case err := <-waited:
		t.Errorf("it ended with %v before any batch had", err)
	case <-time.After(20 * time.Millisecond): // it would end at once
	}
	server.Resume()
	if err := <-waited; err != nil && !t.Failed() {
		t.Errorf("its time passed in the queue of a server that answers: %v", err)
	}
	for range redisbackend.MaxInFlight {
		if err := <-sent; err != nil {
			t.Errorf("one that was sent: %v", err)
		}
	}
}

// In a flood on a busy process, the server's refusals reach the callers: there is no error
// that an open failure policy would serve.
func TestFlood(t *testing.T) {
	server := testserver.Redis(t)
	b, e := newObserved(t, newClient(t, server.Addr), redisbackend.Options{})
	b.backend.SetMinWait(20 * time.Second) // the machine of the tests may keep the server from answering
	p := policy("core", perHour(5))
	stop := time.Now().Add(2 * time.Second)
	var all sync.WaitGroup
	var served, refused atomic.Int64
	for range 8 {
		all.Go(func() {
			for time.Now().Before(stop) { // keeps a processor busy
			}
		})
	}
	for range 500 {
		all.Go(func() {
			for time.Now().Before(stop) {
				d, err := b.WithServerTime(5*time.Millisecond).Take(context.Background(), p.Charge("attacker"))
				switch {
				case err != nil:
					if !errors.Is(err, driver.ErrOverloaded) {
						t.Errorf("in a flood: %v", err)
						return
					}
				case d.Allowed:
					served.Add(1)
				default:
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	if served.Load() != 5 || refused.Load() == 0 || e.opened() > 0 {
		t.Errorf("%d served and %d refused, and the breaker opened %d times; want 5, some, never", served.Load(), refused.Load(), e.opened())
	}
}
