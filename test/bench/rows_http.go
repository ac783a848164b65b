package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/internal/report"
	"github.com/weir-go/weir/test/bench/peers"
)

// bareHandler is the handler without middleware, which middleware is compared with.
const bareHandler = report.BareHandler

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = plain
	_, _ = w.Write(helloBody)
})

var (
	plain     = []string{"text/plain"}
	helloBody = []byte("hello\n")
)

// middlewareRows measure handlers that one goroutine calls directly: the cost that each
// middleware adds to the bare handler.
func (l *lab) middlewareRows() []row {
	allowed, _, refused := l.patterns()
	return []row{
		l.handlerRow("middleware/memory/allowed", peers.Memory(), allowed, l.callHandler),
		l.handlerRow("middleware/memory/refused", peers.Memory(), refused, l.callHandler),
		l.handlerRow("middleware/redis/allowed", peers.Redis(), allowed, l.callHandler),
	}
}

// httpRows measure servers under a load of HTTP requests over loopback.
func (l *lab) httpRows() []row {
	allowed, _, _ := l.patterns()
	return []row{
		l.handlerRow("http/memory", peers.Memory(), allowed, l.loadServer),
		l.handlerRow("http/redis", peers.Redis(), allowed, l.loadServer),
	}
}

// handlerRow returns a row of the bare handler, alone and behind each limiter.
func (l *lab) handlerRow(name string, all []peers.Peer, p pattern, measure func(context.Context, http.Handler, pattern) (sample, error)) row {
	free := p
	free.quota = unlimited // the bare handler refuses nothing
	r := row{name: name, cells: []cell{{bareHandler, peers.Ceiling, func(ctx context.Context) (sample, error) {
		return measure(ctx, hello, free)
	}}}}
	for _, peer := range withoutVariants(all) {
		if peer.Role == peers.Ceiling {
			continue
		}
		r.cells = append(r.cells, cell{peer.Name, peer.Role, func(ctx context.Context) (sample, error) {
			config := peers.Config{Quota: p.quota, Window: window, Keys: len(p.keys)}
			if strings.Contains(name, "redis") {
				server, err := l.redis("http")
				if err != nil {
					return sample{}, err
				}
				config.Redis = server.Addr
			}
			limiter, err := peer.Open(config)
			if err != nil {
				return sample{}, err
			}
			defer limiter.Close()
			return measure(ctx, wrap(limiter)(hello), p)
		}})
	}
	return r
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

// addresses is how many clients send requests to a handler.
const addresses = 4096

// address returns the i-th client's key: an address, because some middleware requires one.
func address(i int) string { return fmt.Sprintf("10.0.%d.%d", i>>8, i&255) }

// callHandler calls h with requests of many clients, but of no more than p has keys.
func (l *lab) callHandler(ctx context.Context, h http.Handler, p pattern) (sample, error) {
	n := min(addresses, len(p.keys))
	requests, err := clientRequests(n)
	if err != nil {
		return sample{}, err
	}
	first, err := clientRequests(n) // with separate strings, because limiters may keep them: see walk
	if err != nil {
		return sample{}, err
	}
	var last response
	for range 2 { // the second request of a client is refused under a quota of 1
		last = response{header: make(http.Header)}
		h.ServeHTTP(&last, first[0])
	}
	if err := last.check(p); err != nil {
		return sample{}, err
	}
	serve := func(requests []*http.Request) func(_, i int) {
		return func(_, i int) {
			// A new header for each request, as in net/http.
			h.ServeHTTP(&response{header: make(http.Header)}, requests[i%n])
		}
	}
	measure.Tight(ctx, 1, l.warmup(), serve(first))
	cost := measure.Tight(ctx, 1, l.sample, serve(requests))
	fields := make([]string, 0, len(last.header))
	for name := range last.header {
		if !slices.Contains([]string{"Content-Type", "Content-Length", "X-Content-Type-Options"}, name) {
			fields = append(fields, name)
		}
	}
	slices.Sort(fields)
	s := costs(cost)
	s.text = strings.Join(fields, ", ")
	return s, nil
}

// clientRequests returns a request of each of n clients.
func clientRequests(n int) ([]*http.Request, error) {
	requests := make([]*http.Request, n)
	for i := range requests {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://bench/", nil)
		if err != nil {
			return nil, err
		}
		r.RemoteAddr = "192.0.2.1:1234"
		r.Header.Set(peers.KeyHeader, address(i))
		requests[i] = r
	}
	return requests, nil
}

// A response is an http.ResponseWriter that drops the body.
type response struct {
	header http.Header
	status int
}

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(status int) { r.status = status }

func (r *response) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return len(b), nil
}

// check returns an error if r is not the response that p expects.
func (r *response) check(p pattern) error {
	want := http.StatusOK
	if p.quota == 1 {
		want = http.StatusTooManyRequests
	}
	if r.status != want {
		return fmt.Errorf("status %d under a quota of %d, want %d", r.status, p.quota, want)
	}
	return nil
}

// loadServer serves h and puts a load of HTTP requests on it.
func (l *lab) loadServer(ctx context.Context, h http.Handler, p pattern) (sample, error) {
	addr, stop, err := measure.Serve(h)
	if err != nil {
		return sample{}, err
	}
	defer stop()
	requests := make([][]byte, addresses)
	for i := range requests {
		requests[i] = measure.Request(peers.KeyHeader, address(i))
	}
	r, err := measure.HTTPLoad{
		Connections: l.connections, Warmup: l.warmup(), Duration: 2 * l.sample, Requests: requests,
	}.Run(ctx, addr)
	if err != nil {
		return sample{}, err
	}
	if r.Refused > r.Responses/100 {
		return sample{}, fmt.Errorf("%d of %d requests were refused", r.Refused, r.Responses)
	}
	return sample{values: map[string]float64{
		"per_s":  float64(r.Responses) / r.Elapsed.Seconds(),
		"p99_us": float64(r.P99) / float64(time.Microsecond),
	}}, nil
}
