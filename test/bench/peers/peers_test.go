package peers

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// Some peers have windows on multiples of their length: no such window ends during a test.
const longWindow = 90 * 24 * time.Hour

// Each peer allows its quota and refuses further calls, for each key: only real limiters are
// compared.
func TestPeersLimit(t *testing.T) {
	for store, contenders := range map[string][]Peer{"redis": Redis(), "memory": Memory()} {
		for _, p := range contenders {
			t.Run(store+"/"+p.Name, func(t *testing.T) {
				l := open(t, p, Config{Quota: 3, Window: longWindow, Keys: 10}, store)
				for _, key := range []string{"10.0.0.1", "10.0.0.2"} {
					for i := range 5 {
						allowed, err := l.Take(t.Context(), key)
						if err != nil || allowed != (i < 3) {
							t.Errorf("%s, request %d of 3 allowed: allowed is %v, error %v", key, i+1, allowed, err)
						}
					}
				}
			})
		}
	}
}

// A quota above the number of requests refuses none, even from a hundred goroutines.
func TestPeersAllowALot(t *testing.T) {
	for store, contenders := range map[string][]Peer{"redis": Redis(), "memory": Memory()} {
		for _, p := range contenders {
			t.Run(store+"/"+p.Name, func(t *testing.T) {
				l := open(t, p, Config{Quota: 1_000_000_000, Window: time.Hour, Keys: 100}, store)
				var wg sync.WaitGroup
				for g := range 100 {
					wg.Go(func() {
						for range 3 {
							if allowed, err := l.Take(t.Context(), "key"+strconv.Itoa(g)); err != nil || !allowed {
								t.Errorf("allowed is %v, error %v", allowed, err)
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// Each middleware identifies clients by KeyHeader, serves the first and refuses the
// second request under a quota of 1.
func TestMiddlewares(t *testing.T) {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	for store, contenders := range map[string][]Peer{"redis": Redis(), "memory": Memory()} {
		for _, p := range contenders {
			t.Run(store+"/"+p.Name, func(t *testing.T) {
				l := open(t, p, Config{Quota: 1, Window: longWindow, Keys: 10}, store)
				if l.Wrap == nil {
					return
				}
				h := l.Wrap(hello)
				for _, key := range []string{"10.1.0.1", "10.1.0.2"} {
					for _, want := range []int{200, 429} {
						r := httptest.NewRequest(http.MethodGet, "/", nil)
						r.Header.Set(KeyHeader, key)
						w := httptest.NewRecorder()
						h.ServeHTTP(w, r)
						if w.Code != want {
							t.Errorf("%s: status %d, want %d", key, w.Code, want)
						}
					}
				}
			})
		}
	}
}

// open opens p, with a separate server if it is in Redis.
func open(t *testing.T, p Peer, c Config, store string) *Limiter {
	t.Helper()
	if store == "redis" {
		c.Redis = testserver.Redis(t).Addr
	}
	l, err := p.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func TestWeirLogDropsAChargeForEachThatItAdds(t *testing.T) {
	for _, addr := range []string{"", testserver.Redis(t).Addr} {
		l, err := WeirLog(Config{Quota: 20, Redis: addr, Keys: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for i := range 60 {
			if allowed, err := l.Take(t.Context(), "log"); err != nil || !allowed {
				t.Errorf("charge %d: allowed is %v, error %v", i, allowed, err)
			}
		}
	}
}

func TestWeirLimitsHoldsEachLimit(t *testing.T) {
	l, err := WeirLimits(Config{Quota: 2, Window: time.Hour, Keys: 1}, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i := range 4 {
		if allowed, err := l.Take(t.Context(), "a"); err != nil || allowed != (i < 2) {
			t.Errorf("request %d of 2 allowed: allowed is %v, error %v", i+1, allowed, err)
		}
	}
}

func TestWeirShardsNamesThemAll(t *testing.T) {
	shardOf, closeAll, err := WeirShards(4)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	seen := make(map[string]bool)
	for i := range 100 {
		seen[shardOf(strconv.Itoa(i))] = true
	}
	if len(seen) != 4 {
		t.Errorf("100 keys are on %d shards, want 4", len(seen))
	}
}
