package middleware_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

// noticed records what an observer receives.
type noticed struct {
	observe.Nothing
	mu   sync.Mutex
	text []string
}

func (n *noticed) Warned(e observe.Warned) { n.add(e.Text + "; " + e.Hint) }

func (n *noticed) Failed(e observe.Failed) { n.add(e.Detail) }

func (n *noticed) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text = append(n.text, text)
}

// An empty key is an error that names the policy, and not a count for everybody.
func TestAnEmptyKey(t *testing.T) {
	empty := middleware.KeyFunc(func(*http.Request) (string, bool) { return "", true })
	p := policy("core", per(5, time.Minute))
	for name, classify := range map[string]middleware.Classifier{
		"Limit":          middleware.Limit(p, empty),
		"FirstOf":        middleware.Limit(p, middleware.FirstOf(empty, middleware.Everyone())),
		"Within":         middleware.Limit(p, middleware.Everyone()).Within(empty),
		"ClassifierFunc": middleware.ClassifierFunc(func(*http.Request) []throttler.Charge { return []throttler.Charge{p.Charge("")} }),
	} {
		th, _ := newThrottler()
		o := new(noticed)
		h := must(newMiddleware(th, classify, &middleware.Options{Observer: o}))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it is served") }))
		expect(t, get(h), 500)
		if len(o.text) != 1 || !strings.Contains(o.text[0], `policy "core"`) || !strings.Contains(o.text[0], "empty key") {
			t.Errorf("%s: the observer receives %q", name, o.text)
		}
		status, err := middleware.Status(th, classify, &middleware.StatusOptions{Observer: o})
		if err != nil {
			t.Fatal(err)
		}
		expect(t, get(status), 500)
	}
}

// Clients of a server on a Unix socket share a count, until the proxy's header is read.
func TestAUnixSocket(t *testing.T) {
	th, _ := newThrottler()
	o := new(noticed)
	limit := must(newMiddleware(th, middleware.Limit(policy("core", per(1, time.Minute)), middleware.ClientIP(nil)), &middleware.Options{Observer: o}))
	for name, h := range map[string]struct {
		handler http.Handler
		second  int
	}{
		"alone":        {limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), 429},
		"behind chi's": {chimiddleware.ClientIPFromHeader("X-Real-IP")(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))), 200},
	} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: h.handler}
		go func() { _ = s.Serve(l) }()
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
		for i, address := range []string{"192.0.2.1", "192.0.2.2"} {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server/", nil)
			r.Header.Set("X-Real-IP", address)
			response, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if want := []int{200, h.second}[i]; response.StatusCode != want {
				t.Errorf("%s: %s is answered %d, want %d", name, address, response.StatusCode, want)
			}
		}
		client.CloseIdleConnections()
		_ = s.Close()
	}
	if len(o.text) != 1 || !strings.Contains(o.text[0], "Unix socket") || !strings.Contains(o.text[0], "ClientIPFromHeader") {
		t.Errorf("warnings %q; want one that says what reads the header", o.text)
	}
}

// A RoutePattern around the mux that finds the pattern is warned of, once.
func TestARoutePatternAroundTheMux(t *testing.T) {
	for around, want := range map[bool]int{true: 1, false: 0} {
		th, _ := newThrottler()
		o := new(noticed)
		limit := must(newMiddleware(th, middleware.Limit(policy("core", per(5, time.Minute)), middleware.Join(middleware.Everyone(), middleware.RoutePattern())), &middleware.Options{Observer: o}))
		mux := http.NewServeMux()
		h, route := http.Handler(mux), http.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		if around {
			h = limit(mux)
		} else {
			route = limit(route)
		}
		mux.Handle("GET /", route)
		expect(t, get(h), 200)
		expect(t, get(h), 200)
		if len(o.text) != want || want > 0 && !strings.Contains(o.text[0], "not around the mux") {
			t.Errorf("around the mux %t: warnings %q; want %d", around, o.text, want)
		}
	}
}

// Two policies of one name and different limits are an error where New knows them, and a
// warning, once, where a request is charged under both.
func TestTwoPoliciesOfOneName(t *testing.T) {
	th, _ := newThrottler()
	six, four := policy("core", per(6, time.Hour)), policy("core", per(4, time.Hour))
	outer := must(newMiddleware(th, everyone(six), nil))
	if _, err := newMiddleware(th, everyone(four), &middleware.Options{DryRun: func(*http.Request, throttler.Decision) {}}); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), `named "core"`) {
		t.Errorf("a dry run of the name: %v", err)
	}
	if _, err := newMiddleware(th, everyone(policy("core", per(6, time.Hour))), nil); err != nil {
		t.Errorf("an equal policy: %v", err)
	}
	o := new(noticed)
	inner := must(newMiddleware(th, middleware.ClassifierFunc(func(*http.Request) []throttler.Charge { return []throttler.Charge{four.Charge("everyone:")} }), &middleware.Options{Observer: o}))
	h := outer(inner(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	get(h)
	get(h)
	if len(o.text) != 1 || !strings.Contains(o.text[0], `named "core"`) {
		t.Errorf("warnings %q; want one", o.text)
	}
}

// A refusal tells the burst that the headers tell.
func TestARefusalTellsTheBurst(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", throttler.Limit{Quota: 1, Window: time.Second, Burst: 2, Algorithm: throttler.TokenBucket})
	h := must(newMiddleware(th, everyone(p), nil))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	get(h)
	get(h)
	w := get(h)
	expect(t, w, 429, "X-RateLimit-Limit", "2")
	if !strings.Contains(w.Body.String(), "core allows 1 per 1s, and 2 at once. ") {
		t.Errorf("the body is %s", w.Body)
	}
}
