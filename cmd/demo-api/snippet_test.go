package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir"
	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	weirprom "github.com/weir-go/weir/observe/prom"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// In a program with the lines that docs/reference/observability.md shows, a stopped server
// is in the series that the alert WeirServerDown reads, and was there before.
func TestSnippetShowsServersThatAreDown(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, o *throttler.Options) (th *throttler.Throttler, kill func()){
		"weir.Open": func(t *testing.T, o *throttler.Options) (*throttler.Throttler, func()) {
			server := testserver.Redis(t)
			return weir.Must(weir.Open("redis://"+server.Addr, o)), server.Kill
		},
		"redisbackend.New": func(t *testing.T, o *throttler.Options) (*throttler.Throttler, func()) {
			server := testserver.Redis(t)
			client := weir.Must(redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{server.Addr}}))
			backend := weir.Must(redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: client}}, nil))
			t.Cleanup(func() { backend.Close(); _ = client.Close() })
			return throttler.New(unwrapping{backend}, o), server.Kill
		},
		"memcachedbackend.New": func(t *testing.T, o *throttler.Options) (*throttler.Throttler, func()) {
			server := testserver.Memcached(t)
			client := memcachedbackend.NewClient(server.Addr)
			backend := weir.Must(memcachedbackend.New([]memcachedbackend.Server{{Name: "a", Client: client}}, nil))
			t.Cleanup(func() { backend.Close(); _ = client.Close() })
			return throttler.New(backend, o), server.Kill
		},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			metrics := weir.Must(weirprom.New(registry, nil))
			th, kill := open(t, &throttler.Options{Observer: metrics})
			defer th.Close()
			core := weir.MustPolicy("core: 60 per hour")
			await := func(value string) {
				t.Helper()
				for deadline := time.Now().Add(30 * time.Second); ; {
					_, _ = th.Take(t.Context(), core.Charge("alice"))
					page := httptest.NewRecorder()
					promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
					for line := range strings.Lines(page.Body.String()) {
						if strings.HasPrefix(line, "weir_breaker_open{") && strings.HasSuffix(line, " "+value+"\n") && strings.Contains(line, `shard="a"`) {
							return
						}
					}
					if time.Now().After(deadline) {
						t.Fatalf("no weir_breaker_open is %s:\n%s", value, page.Body)
					}
				}
			}
			await("0")
			kill()
			await("1")
		})
	}
}

// unwrapping is a wrapper around a backend.
type unwrapping struct{ driver.Backend }

func (u unwrapping) Unwrap() driver.Backend { return u.Backend }
