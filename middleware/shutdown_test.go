package middleware_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// slow is a backend whose settlements take a while, or fail.
type slow struct {
	driver.Backend
	takes time.Duration
	err   error
	tried atomic.Int64
}

func (b *slow) Settle(ctx context.Context, s driver.Settlement) (driver.Decision, error) {
	b.tried.Add(1)
	time.Sleep(b.takes)
	if b.err != nil {
		return driver.Decision{}, b.err
	}
	return b.Backend.Settle(ctx, s)
}

// shutDown lets n requests wait in a queue behind b, and shuts their server down. It returns
// the time that this took, and the used units of the queue. It must run in a synctest bubble.
func shutDown(t *testing.T, b *slow, n int) (took time.Duration, used int64) {
	t.Helper()
	b.Backend = memorybackend.NewDefault()
	c := clock.NewManual(t0)
	th := throttler.New(b, &throttler.Options{Clock: c})
	p := policy("queue", throttler.Limit{Quota: 1, Window: 10 * time.Second, Algorithm: throttler.LeakyBucket, Burst: int64(n) + 1})
	log, _ := newLog()
	h := must(newMiddleware(th, middleware.Limit(p, middleware.Everyone()), &middleware.Options{Observer: log}))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
	server := new(http.Server)
	if _, err := th.Take(t.Context(), p.Charge("everyone:")); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			r := httptest.NewRequest("GET", "/", nil)
			r = r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, server))
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != 503 {
				t.Errorf("status %d", w.Code)
			}
		})
	}
	synctest.Wait() // all of them wait
	began := time.Now()
	if err := server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	d, err := th.Peek(t.Context(), p.Charge("everyone:"))
	if err != nil {
		t.Fatal(err)
	}
	return time.Since(began), d.Limit(0).Used
}

func TestAShutdownGivesALongQueueBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if _, used := shutDown(t, &slow{takes: time.Millisecond}, 3000); used != 1 { // the request that has started
			t.Errorf("%d of 3001 places are taken, want 1", used)
		}
	})
}

// A backend that does not answer does not keep a server from shutting down.
func TestAShutdownWhileTheBackendDoesNotAnswer(t *testing.T) {
	for name, b := range map[string]*slow{
		"fails":   {takes: 50 * time.Millisecond, err: &driver.UnavailableError{Backend: "test", Shard: "a", Err: errors.New("no")}},
		"is slow": {takes: 3 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			if took, _ := shutDown(t, b, 1000); took > b.takes || b.tried.Load() != 1000 {
				t.Errorf("a backend that %s: %v, and %d refunds tried; want %v, and 1000", name, took, b.tried.Load(), b.takes)
			}
		})
	}
}
