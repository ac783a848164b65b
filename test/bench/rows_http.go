package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/internal/report"
	"github.com/weir-go/weir/test/bench/peers"
)

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = plain
	_, _ = w.Write(helloBody)
})

var (
	plain     = []string{"text/plain"}
	helloBody = []byte("hello\n")
)

// handlerRows measure the cost that each middleware adds to a bare handler that one goroutine
// calls directly, and servers under a load of HTTP requests over loopback.
func (l *lab) handlerRows() []row {
	allowed, _, refused := l.patterns()
	return []row{
		l.handlerRow("middleware/memory/allowed", peers.Memory(), allowed, l.callHandler),
		l.handlerRow("middleware/memory/refused", peers.Memory(), refused, l.callHandler),
		l.handlerRow("middleware/redis/allowed", peers.Redis(), allowed, l.callHandler),
		l.handlerRow("http/memory", peers.Memory(), allowed, l.loadServer),
		l.handlerRow("http/redis", peers.Redis(), allowed, l.loadServer),
		l.handlerRow("http/redis/bucket", peers.Buckets(), allowed, l.loadServer),
	}
}

// handlerRow returns a row of the bare handler, alone and behind each limiter.
func (l *lab) handlerRow(name string, contenders []peers.Peer, p pattern, measure func(context.Context, http.Handler, pattern) sample) row {
	free := p
	free.quota = unlimited // the bare handler refuses nothing
	bare := cell{report.BareHandler, peers.Ceiling, func(ctx context.Context) sample { return measure(ctx, hello, free) }}
	cells := cellsOf(exclude(contenders, peers.Variant, peers.Ceiling), func(ctx context.Context, peer peers.Peer) sample {
		config := peers.Config{Quota: p.quota, Window: window, Keys: len(p.keys)}
		if strings.Contains(name, "redis") {
			config.Redis = l.redis("http").Addr
		}
		return useLimiter(peer.Open, config, func(limiter *peers.Limiter) sample { return measure(ctx, wrap(limiter)(hello), p) })
	})
	return row{name: name, cells: append([]cell{bare}, cells...)}
}

// wrap returns the peer's own middleware, or a minimal one around it, without headers.
func wrap(l *peers.Limiter) func(http.Handler) http.Handler {
	if l.Wrap != nil {
		return l.Wrap
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			allowed, err := l.Take(r.Context(), r.Header.Get(peers.KeyHeader))
			switch {
			case err != nil:
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			case !allowed:
				http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
			default:
				next.ServeHTTP(w, r)
			}
		})
	}
}

// addresses returns the keys of n clients: addresses, because some middleware requires them.
func addresses(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("10.0.%d.%d", i>>8, i&255)
	}
	return keys
}

// httpClients is how many clients send requests to a handler.
const httpClients = 4096

// callHandler calls h with requests of many clients, but of no more than p has keys.
func (l *lab) callHandler(ctx context.Context, h http.Handler, p pattern) sample {
	n := min(httpClients, len(p.keys))
	requests, first := clientRequests(n), clientRequests(n) // separate strings, because limiters may keep them: see walk
	var last response
	for range 2 { // the second request of a client is refused under a quota of 1
		last = response{header: make(http.Header)}
		h.ServeHTTP(&last, first[0])
	}
	if want := map[bool]int{true: http.StatusTooManyRequests, false: http.StatusOK}[p.quota == 1]; last.status != want {
		check(fmt.Errorf("status %d under a quota of %d, want %d", last.status, p.quota, want))
	}
	serve := func(requests []*http.Request) func(_, i int) {
		return func(_, i int) {
			// A new header for each request, as in net/http.
			h.ServeHTTP(&response{header: make(http.Header)}, requests[i%n])
		}
	}
	measure.Tight(ctx, 1, l.warmup(), serve(first))
	s := costs(measure.Tight(ctx, 1, l.sample, serve(requests)))
	var fields []string
	for name := range last.header {
		if !slices.Contains([]string{"Content-Type", "Content-Length", "X-Content-Type-Options"}, name) {
			fields = append(fields, name)
		}
	}
	slices.Sort(fields)
	s.text = strings.Join(fields, ", ")
	return s
}

// clientRequests returns a request of each of n clients.
func clientRequests(n int) []*http.Request {
	requests := make([]*http.Request, n)
	for i, key := range addresses(n) {
		requests[i] = httptest.NewRequest(http.MethodGet, "http://bench/", nil)
		requests[i].Header.Set(peers.KeyHeader, key)
	}
	return requests
}

// A response is an http.ResponseWriter that drops the body.
type response struct {
	header http.Header
	status int
}

func (r *response) Header() http.Header    { return r.header }
func (r *response) WriteHeader(status int) { r.status = status }

func (r *response) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return len(b), nil
}

// loadServer serves h and puts a load of HTTP requests on it. fasthttp's client is cheap: it
// takes little of the cores from the server.
func (l *lab) loadServer(ctx context.Context, h http.Handler, p pattern) sample {
	server := httptest.NewServer(h)
	defer server.Close()
	client := &fasthttp.HostClient{Addr: server.Listener.Addr().String(), MaxConns: l.connections}
	defer client.CloseIdleConnections()
	r := must(measure.Load{
		Goroutines: l.connections, Warmup: l.warmup(), Duration: 2 * l.sample, Keys: addresses(httpClients),
		Take: func(_ context.Context, key string) (bool, error) {
			request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
			defer fasthttp.ReleaseRequest(request)
			defer fasthttp.ReleaseResponse(response)
			request.SetRequestURI(server.URL)
			request.Header.Set(peers.KeyHeader, key)
			err := client.Do(request, response)
			return response.StatusCode() < http.StatusBadRequest, err
		},
	}.Run(ctx))
	check(plausible(r, p))
	check(r.Err)
	return sample{values: map[string]float64{"per_s": float64(r.Decisions) / r.Elapsed.Seconds(), "p99_us": micros(r.P99)}}
}
