package abuse_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/local/synced"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// hourly is a limit of 20 an hour. Its window is aligned, as synced needs it.
var hourly = &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Hour, Aligned: true}}}

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// target is a table that is flooded with keys, not with requests, which the tests over HTTP
// send.
type target struct {
	*testing.T
	throttler *throttler.Throttler
	keys      func() int // in the table
	maxKeys   int
	perKey    int64  // bytes
	begin     func() // after the victims
}

// take takes n times, and returns the number of allowed takes.
func (g *target) take(n int, key string) (allowed int) {
	for range n {
		d, err := g.throttler.Take(context.Background(), hourly.Charge(key))
		if err != nil {
			g.Fatal(err)
		}
		if d.Allowed {
			allowed++
		}
	}
	return allowed
}

// flood has victims use their quotas, takes each times with each of many keys, and checks that
// victims get no second quota, newcomers at most one, and memory is bounded. If the flood uses
// up its quotas, a victim that has not may lose its count, as in memory; a refused victim
// stays refused.
func (g *target) flood(keys, each int) {
	g.Helper()
	const victims = 100
	had := make([]int, victims)
	for v := range victims {
		had[v] = g.take([]int{quota - 4, quota + 5}[v%2], fmt.Sprint("victim ", v))
	}
	if g.begin != nil {
		g.begin()
	}
	before, began := heap(), time.Now()
	for i := range keys {
		g.take(each, fmt.Sprint("attacker ", i))
	}
	took, grown := time.Since(began), heap()-before
	for v := range victims {
		n, most := g.take(2*quota, fmt.Sprint("victim ", v)), quota-had[v]
		if each > 1 && most > 0 {
			most = 2 * quota // one from a pooled count, and its own
		}
		if n > most {
			g.Errorf("victim %d was allowed %d, and then %d; the quota is %d", v, had[v], n, quota)
		}
	}
	newcomers := 0
	for i := range 20 {
		n := g.take(3*quota, fmt.Sprint("newcomer ", i))
		if n > quota {
			g.Errorf("a newcomer was allowed %d; the quota is %d", n, quota)
		}
		newcomers += n
	}
	g.Logf("%d keys in %v; %d kB more on the heap, %d keys are kept; 20 newcomers were allowed %d, of at most %d",
		keys, took.Round(time.Millisecond), grown>>10, g.keys(), newcomers, 20*quota)
	if n := g.keys(); n > g.maxKeys {
		g.Errorf("%d keys are kept, at most %d may be", n, g.maxKeys)
	}
	if most := int64(g.maxKeys)*g.perKey + 4<<20; grown > most {
		g.Errorf("the heap grew by %d bytes; it may grow by %d", grown, most)
	}
	runtime.KeepAlive(g)
}

// dead is a backend that can be made to fail.
type dead struct {
	driver.Backend
	is atomic.Bool
}

func (d *dead) Down(string) (since time.Time, down bool) { return since, d.is.Load() }

func (d *dead) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if d.is.Load() {
		return driver.Decision{}, &driver.UnavailableError{Backend: "dead", Shard: "a", Err: driver.ErrNotSent}
	}
	return d.Backend.Take(ctx, r)
}

// The local table of a fallback during an outage.
func TestSequentialTableOfFallback(t *testing.T) {
	for _, each := range []int{1, quota + 1} {
		t.Run(fmt.Sprint(each, " takes a key"), func(t *testing.T) {
			const maxKeys, pooled = 1024, 64 * 2
			d := &dead{Backend: memorybackend.NewDefault()}
			b, err := fallback.New(d, &fallback.Options{OnFailure: fallback.Local, Processes: 1, MaxKeys: maxKeys, Observer: observe.Nothing{}})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			g := &target{
				T: t, throttler: throttler.New(b, &throttler.Options{Clock: clock.NewManual(start)}),
				keys: func() int { return b.Stats().Keys }, maxKeys: maxKeys + pooled, perKey: 1000,
				begin: func() { d.is.Store(true) },
			}
			g.flood(*requests/min(4*each, 20), each)
		})
	}
}

// The demand of keys, and their leases.
func TestSequentialTableOfLeased(t *testing.T) {
	for _, each := range []int{1, quota + 1} {
		t.Run(fmt.Sprint(each, " takes a key"), func(t *testing.T) {
			const maxKeys = 1024
			c := clock.NewManual(start)
			m, err := memorybackend.New(&memorybackend.Options{MaxKeys: 8 * maxKeys, Observer: observe.Nothing{}})
			if err != nil {
				t.Fatal(err)
			}
			b, err := leased.New(m, &leased.Options{MaxKeys: maxKeys, Clock: c})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := b.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			g := &target{
				T: t, throttler: throttler.New(b, &throttler.Options{Clock: c}),
				keys: func() int { return m.Stats().Keys }, maxKeys: 8 * maxKeys, perKey: 400,
			}
			g.flood(*requests/min(4*each, 20), each)
		})
	}
}

// The counts of synced, also while no root answers, so that none can be sent.
func TestSequentialTableOfSynced(t *testing.T) {
	for _, run := range []struct {
		roots string
		each  int
	}{{"up", 1}, {"dead", 1}, {"up", quota + 1}, {"dead", quota + 1}} {
		t.Run(fmt.Sprintf("roots %s, %d takes a key", run.roots, run.each), func(t *testing.T) {
			const maxKeys, pooled = 1024, 64
			server := testserver.Redis(t)
			client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
			defer client.Close()
			c := clock.NewManual(start)
			b, err := synced.New([]synced.Root{{Name: "a", Client: client}}, &synced.Options{MaxKeys: maxKeys, Clock: c})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			g := &target{
				T: t, throttler: throttler.New(b, &throttler.Options{Clock: c}),
				keys: func() int { return b.Stats().Keys }, maxKeys: maxKeys + pooled, perKey: 3000, // removed ones wait for their sync
				begin: func() {
					if run.roots == "dead" {
						server.Kill()
					}
				},
			}
			g.flood(*requests/min(4*run.each, 20), run.each)
		})
	}
}
