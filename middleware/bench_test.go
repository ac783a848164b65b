package middleware_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// hello is the bare handler that middlewares are compared with.
var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = plain
	_, _ = w.Write(greeting)
})

var (
	plain    = []string{"text/plain"}
	greeting = []byte("hello\n")
)

// cost is a request through a middleware that counts in memory.
type cost struct {
	name    string
	handler http.Handler
	body    string

	allocations float64 // over the bare handler's
}

func costsInMemory() []cost {
	th := throttler.New(memorybackend.NewDefault(), nil)
	core := policy("core", per(1<<50, time.Hour))
	all := func(next http.Handler, limits ...func(http.Handler) http.Handler) http.Handler {
		for _, l := range limits {
			next = l(next)
		}
		return next
	}
	secondary := policy("secondary", per(1<<50, time.Minute), per(1<<50, time.Hour))
	options := &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}}
	byIP := must(newMiddleware(th, middleware.Limit(core, middleware.ClientIP(nil)), nil))
	costly := must(newMiddleware(th, everyone(core).CostReported(), nil))
	two := must(newMiddleware(th, middleware.All(everyone(core), everyone(secondary).NoRefund()), nil))
	free := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
	report := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = middleware.SetCost(r, 1)
		hello(w, r)
	})
	refusing := limit(th, policy("none", per(1, time.Hour)), nil)(hello)
	get(refusing)
	return []cost{
		{name: "allowed", handler: limit(th, core, nil)(hello), allocations: 4},
		{name: "by address", handler: byIP(hello), allocations: 5},
		{name: "with a body", handler: limit(th, core, nil)(hello), body: "hello", allocations: 5},
		{name: "with fields", handler: limit(th, core, options)(hello), allocations: 8},
		{name: "three limits", handler: two(hello), allocations: 8},
		{name: "two middlewares", handler: all(hello, limit(th, core, nil), byIP), allocations: 8},
		{name: "cost reported", handler: costly(report), allocations: 8},
		{name: "refunded", handler: limit(th, core, nil)(free), allocations: 7},
		{name: "refused", handler: refusing, allocations: 7},
	}
}

// request returns a function that serves one request with h. As in net/http, each
// response has a new header.
func request(tb testing.TB, h http.Handler, body string) func() {
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(tb.Context(), "GET", "/", reader)
	if err != nil {
		tb.Fatal(err)
	}
	r.RemoteAddr = "192.0.2.1:1234"
	return func() { h.ServeHTTP(&discard{header: make(http.Header)}, r) }
}

// With the race detector, a sync.Pool of the backend drops some of its items.
func TestSequentialAllocations(t *testing.T) {
	const runs = 1000
	bare := testing.AllocsPerRun(runs, request(t, hello, ""))
	for _, c := range costsInMemory() {
		t.Run(c.name, func(t *testing.T) {
			if n := testing.AllocsPerRun(runs, request(t, c.handler, c.body)) - bare; n > c.allocations {
				t.Errorf("%v allocations over the bare handler's %v, want at most %v", n, bare, c.allocations)
			}
		})
	}
}

func BenchmarkMiddleware(b *testing.B) {
	for _, c := range append([]cost{{name: "bare", handler: hello}}, costsInMemory()...) {
		b.Run(c.name, func(b *testing.B) {
			call := request(b, c.handler, c.body)
			b.ReportAllocs()
			for b.Loop() {
				call()
			}
		})
	}
}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header       { return d.header }
func (*discard) Write(b []byte) (int, error) { return len(b), nil }
func (*discard) WriteHeader(int)             {}
