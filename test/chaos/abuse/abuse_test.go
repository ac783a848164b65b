// Package abuse_test tests weir with an attacker that has as many keys as it wants.
package abuse_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/open-feature/go-sdk/openfeature/isolated"
	"github.com/open-feature/go-sdk/openfeature/memprovider"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/weir-go/weir/backend/handoff"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

var requests = flag.Int("requests", 20_000, "of the floods; what the tests allow follows from it, up to the defaults")

func TestMain(m *testing.M) {
	logging.Disable() // go-redis would log each connection that fails
	goleak.VerifyTestMain(m)
}

const quota = 20

// api is a handler behind a limit of 20 an hour for each client's address.
type api struct {
	http.Handler
	memory *memorybackend.Backend

	addresses int // of a flood
	keys      int // that memory keeps: a quarter of the addresses, and at most the default
}

// proxy is the address of a trusted proxy.
const proxy = "10.0.0.1:4711"

func newAPI(t *testing.T, addresses int, over func(*memorybackend.Backend) driver.Backend) *api {
	t.Helper()
	a := &api{addresses: addresses, keys: min(addresses/4, memorybackend.DefaultMaxKeys)}
	var err error
	if a.memory, err = memorybackend.New(&memorybackend.Options{MaxKeys: a.keys, Observer: observe.Nothing{}}); err != nil {
		t.Fatal(err)
	}
	var backend driver.Backend = a.memory
	if over != nil {
		backend = over(a.memory)
	}
	th := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota, Window: time.Hour}}}
	byIP := middleware.ClientIP(&middleware.IPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	limit, err := middleware.New(th, middleware.Limit(core, byIP), &middleware.Options{Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	a.Handler = limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }))
	return a
}

// response is the part of a response that a client reads.
type response struct {
	header http.Header
	status int
}

func (r *response) Header() http.Header         { return r.header }
func (r *response) WriteHeader(status int)      { r.status = status }
func (r *response) Write(b []byte) (int, error) { return len(b), nil }

// get sends a request from remote with that X-Forwarded-For.
func (a *api) get(remote, forwardedFor string) (status int, used, reset string) {
	request := &http.Request{Method: http.MethodGet, RemoteAddr: remote, Header: http.Header{}}
	if forwardedFor != "" {
		request.Header["X-Forwarded-For"] = []string{forwardedFor}
	}
	r := &response{header: make(http.Header)}
	a.ServeHTTP(r, request)
	return r.status, r.header.Get("X-RateLimit-Used"), r.header.Get("X-RateLimit-Reset")
}

// served returns the number of served requests among n of one client.
func (a *api) served(n int, remote, forwardedFor string) (served int) {
	for range n {
		if status, _, _ := a.get(remote, forwardedFor); status == 200 {
			served++
		}
	}
	return served
}

// flood sends requests with unused values of X-Forwarded-For, that many with each, and returns
// the number served.
func (a *api) flood(remote string, each int) (served int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	const senders = 4
	for s := range senders {
		all.Go(func() {
			n := 0
			for i := s; i < a.addresses; i += senders {
				address := netip.AddrFrom4([4]byte{byte(20 + i>>24), byte(i >> 16), byte(i >> 8), byte(i)}).String()
				for range each {
					if status, _, _ := a.get(remote, address); status == 200 {
						n++
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			served += n
		})
	}
	all.Wait()
	return served
}

// heap returns the bytes in use on the heap.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// flooded has victims use the API, floods it, and checks that the victims' counts are
// unchanged, that newcomers are limited, and that memory is bounded. If all kept counts belong
// to refused clients, a victim that is not refused may lose its count, but gets no new one.
func flooded(t *testing.T, a *api, most int64, flood func() (served int)) (served int) {
	t.Helper()
	type victim struct {
		address, used, reset string
		status               int
	}
	var victims []*victim
	for i := range 200 {
		// Half of them are already refused, half have used most of their quota.
		v := &victim{address: fmt.Sprint("192.0.2.", i)}
		for range quota - 4 + i%2*5 {
			v.status, v.used, v.reset = a.get(proxy, v.address)
		}
		victims = append(victims, v)
	}
	before, began := heap(), time.Now()
	served = flood()
	took, grown := time.Since(began), heap()-before
	stats := a.memory.Stats()
	t.Logf("%d addresses, %d requests served, in %v; %d MB more on the heap; %+v", a.addresses, served, took.Round(time.Millisecond), grown>>20, stats)
	for _, v := range victims {
		status, used, reset := a.get(proxy, v.address)
		if want, _ := strconv.Atoi(v.used); v.status == 200 {
			if stats.PooledCounts > 0 && status == 429 {
				continue // its count was dropped, and it is counted together with newcomers
			}
			want++
			if strconv.Itoa(want) != used || status != 200 || reset != v.reset {
				t.Errorf("a client that had used %s: after the flood, status %d, used %s", v.used, status, used)
			}
		} else if status != 429 || used != v.used || reset != v.reset {
			t.Errorf("a client that was refused: after the flood, status %d, used %s", status, used)
		}
	}
	newcomers := 0
	for i := range 20 {
		n := a.served(3*quota, proxy, fmt.Sprint("198.51.100.", i))
		if n > quota {
			t.Errorf("a newcomer was served %d times; the quota is %d", n, quota)
		}
		newcomers += n
	}
	t.Logf("20 newcomers were served %d times, of at most %d", newcomers, 20*quota)
	if grown > most {
		t.Errorf("the heap grew by %d bytes; it may grow by %d", grown, most)
	}
	if stats.Keys > a.keys {
		t.Errorf("%d keys are kept, at most %d may be", stats.Keys, a.keys)
	}
	runtime.KeepAlive(a)
	return served
}

// bound is the memory for the counts of a flood's keys, in proportion to the default.
func (a *api) bound() int64 {
	return max(memorybackend.DefaultMaxBytes*int64(a.keys)/memorybackend.DefaultMaxKeys, 8<<20)
}

func TestForwardedForOfATrustedProxy(t *testing.T) {
	a := newAPI(t, *requests, nil)
	if served := flooded(t, a, a.bound(), func() int { return a.flood(proxy, 1) }); served != *requests {
		t.Errorf("%d of %d clients were served their first request", served, *requests)
	}
}

// Every address of the flood uses up its quota, so that no count may be dropped.
func TestForwardedForUntilRefused(t *testing.T) {
	a := newAPI(t, *requests/quota, nil)
	flooded(t, a, a.bound(), func() int { return a.flood(proxy, quota+1) })
	if s := a.memory.Stats(); s.PooledCounts == 0 {
		t.Errorf("%+v; want pooled counts, when all that are kept are refused", s)
	}
}

// A client without a trusted proxy can't choose its address.
func TestForwardedForOfAnyone(t *testing.T) {
	a := newAPI(t, *requests, nil)
	if served := flooded(t, a, 4<<20, func() int { return a.flood("203.0.113.7:1234", 1) }); served != quota {
		t.Errorf("%d requests were served, want %d: they are all of one client", served, quota)
	}
	if s := a.memory.Stats(); s.Keys > 300 {
		t.Errorf("%d keys are kept", s.Keys)
	}
}

// A cache of refusals is bounded, however many keys are refused.
func TestRefusalCache(t *testing.T) {
	a := newAPI(t, *requests/quota, func(m *memorybackend.Backend) driver.Backend {
		b, err := refusals.New(m, nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
	flooded(t, a, a.bound()+70<<20, func() int { return a.flood(proxy, quota+2) })
}

// A rollout's memory of clients is bounded, too.
func TestRoutesOfRollout(t *testing.T) {
	provider := memprovider.NewInMemoryProvider(map[string]memprovider.InMemoryFlag{
		rollout.DefaultFlag: {State: memprovider.Enabled, DefaultVariant: "v", Variants: map[string]any{"v": "old"}},
	})
	flags := isolated.NewAPI()
	if err := flags.SetProviderAndWait(t.Context(), provider); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flags.Shutdown(context.Background()) })
	a := newAPI(t, *requests/4, func(m *memorybackend.Backend) driver.Backend {
		b, err := rollout.New(map[string]handoff.Store{"old": m, "new": memorybackend.NewDefault()}, "old", flags.NewClient(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b
	})
	routes := int64(min(a.addresses, rollout.DefaultMaxKeys)) * 600
	flooded(t, a, a.bound()+routes, func() int { return a.flood(proxy, 1) })
}
