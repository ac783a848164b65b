package middleware_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// dead is a backend that fails while its field is is true. Its errors name its server.
type dead struct {
	driver.Backend
	is bool
}

func (b *dead) err() error {
	return &driver.UnavailableError{Backend: "dead", Shard: "shard-7", Err: errors.New("dial 10.0.0.7")}
}

func (b *dead) Down(string) (since time.Time, down bool) { return since, b.is }

func (b *dead) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if b.is {
		return driver.Decision{}, b.err()
	}
	return b.Backend.Take(ctx, r)
}

func (b *dead) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if b.is {
		return driver.Decision{}, b.err()
	}
	return b.Backend.Peek(ctx, r)
}

// TestNoHeaderLiesInAnOutage tests a policy of each choice, behind a middleware that
// serves in outages.
func TestNoHeaderLiesInAnOutage(t *testing.T) {
	backend := &dead{Backend: memorybackend.NewDefault()}
	log, _ := newLog()
	b, err := fallback.New(backend, &fallback.Options{
		Policies:  map[string]fallback.Choice{"local": fallback.Local, "closed": fallback.Closed},
		Processes: 3,
		Observer:  observe.Nothing{},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	th := throttler.New(b, nil)
	options := &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}, ExposeHeaders: true, Observer: log}
	open, local, closed := policy("open", per(3, time.Hour)), policy("local", per(3, time.Hour)), policy("closed", per(3, time.Hour))
	// A rate header that a handler sets must not pass for weir's.
	lies := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-RateLimit-Remaining", "99") })
	handler := func(p *throttler.Policy) http.Handler { return must(newMiddleware(th, everyone(p), options))(lies) }
	none := []string{
		"X-RateLimit-Limit", "", "X-RateLimit-Remaining", "", "X-RateLimit-Used", "", "X-RateLimit-Reset", "", "X-RateLimit-Resource", "",
		"RateLimit", "", "RateLimit-Policy", "",
	}
	with := func(more ...string) []string { return append(more, none...) }
	rates := must(newStatus(th, middleware.All(everyone(open), everyone(local)), &middleware.StatusOptions{Observer: log}))

	expect(t, get(handler(local)), 200, "X-RateLimit-Remaining", "2", "X-RateLimit-Used", "1")
	backend.is = true
	for range 10 {
		expect(t, get(handler(open)), 200, with("Retry-After", "")...)
	}
	expect(t, get(handler(local)), 200, with("Retry-After", "")...)
	refused := get(handler(local))
	expect(t, refused, 429, with("Cache-Control", "no-store")...)
	if after := refused.Header().Get("Retry-After"); after == "" || after == "0" {
		t.Errorf("a local refusal has Retry-After %q", after)
	}
	unavailable := get(handler(closed))
	expect(t, unavailable, 503, with("Retry-After", "1", "Cache-Control", "no-store")...)
	problem := get(handler(closed), "Accept", "application/problem+json")
	expect(t, problem, 503, with("Retry-After", "1", "Content-Type", "application/problem+json")...)
	for _, w := range []string{refused.Body.String(), unavailable.Body.String(), problem.Body.String()} {
		for _, internal := range []string{"10.0.0.7", "shard", "dead", "local", "closed:", "fallback"} {
			if strings.Contains(w, internal) && (internal != "local" || strings.Contains(w, "locally")) {
				t.Errorf("a client reads %q in %s", internal, w)
			}
		}
	}
	if w := get(rates); w.Code != 200 || strings.TrimSpace(w.Body.String()) != `{"resources":{},"unavailable":["open","local"]}` {
		t.Errorf("the status is %d %s", w.Code, w.Body)
	}

	// Behind a middleware that knows its counts, neither has a header.
	both := must(newMiddleware(throttler.New(memorybackend.NewDefault(), nil), everyone(policy("known", per(9, time.Hour))), options))(handler(open))
	expect(t, get(both), 200, none...)
}
