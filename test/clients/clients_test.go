// Package clients_test tests weir with unmodified clients of GitHub's API: they behave as with
// GitHub. It is a separate module, to keep them out of the product's.
package clients_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-github/v90/github"
	"github.com/gorilla/websocket"
	"github.com/hashicorp/go-retryablehttp"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// api is a server with a policy "core" of one limit, for all callers.
type api struct {
	*httptest.Server
	served atomic.Int64
}

func newAPI(t *testing.T, now clock.Clock, l throttler.Limit, options *middleware.Options, handler http.HandlerFunc) *api {
	a := new(api)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: now})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{l}}
	classify := middleware.Limit(core, middleware.Everyone())
	status, err := middleware.Status(th, classify, nil)
	if err != nil {
		t.Fatal(err)
	}
	limit, err := middleware.New(th, classify, options)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/rate_limit", status)
	mux.Handle("/", limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.served.Add(1)
		handler(w, r)
	})))
	a.Server = httptest.NewServer(mux)
	t.Cleanup(a.Close)
	return a
}

func repository(w http.ResponseWriter, _ *http.Request) {
	_, _ = fmt.Fprint(w, `{"name":"rockets","owner":{"login":"acme"}}`)
}

func TestGoGitHub(t *testing.T) {
	for _, status := range []int{429, 403} {
		now := clock.NewManual(time.Now()) // go-github compares resets with its own clock
		a := newAPI(t, now, throttler.Limit{Quota: 3, Window: time.Minute}, &middleware.Options{Refuse: func(w http.ResponseWriter, r *http.Request, x middleware.Refusal) {
			x.Status = status
			x.Write(w, r)
		}}, repository)
		newClient := func() *github.Client {
			c, err := github.NewClient(github.WithURLs(github.Ptr(a.URL+"/"), nil))
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := newClient()
		reset := (now.Now().UnixMilli() + 60_000 + 999) / 1000
		for used := 1; used <= 3; used++ {
			repo, res, err := c.Repositories.Get(t.Context(), "acme", "rockets")
			if err != nil || repo.GetName() != "rockets" {
				t.Fatalf("request %d: %v, error %v", used, repo, err)
			}
			if r := res.Rate; r.Limit != 3 || r.Used != used || r.Remaining != 3-used || r.Reset.Unix() != reset || r.Resource != "core" {
				t.Errorf("request %d: rate %+v, want reset at %d", used, r, reset)
			}
		}

		// The client has read Remaining 0 and stops by itself.
		var limited *github.RateLimitError
		if _, _, err := c.Repositories.Get(t.Context(), "acme", "rockets"); !errors.As(err, &limited) || a.served.Load() != 3 {
			t.Errorf("the fourth: error %v, %d requests served", err, a.served.Load())
		}

		// Another client does not know the count; the server refuses it.
		_, res, err := newClient().Repositories.Get(t.Context(), "acme", "rockets")
		if !errors.As(err, &limited) || res.StatusCode != status || limited.Rate.Reset.Unix() != reset || !strings.Contains(limited.Message, "core allows 3 per 1m") {
			t.Errorf("refused with %d: error %v", status, err)
		}

		limits, _, err := newClient().RateLimit.Get(t.Context())
		if err != nil || limits.Core.Used != 3 || limits.Core.Remaining != 0 || limits.Core.Reset.Unix() != reset {
			t.Errorf("GET /rate_limit: %+v, error %v", limits, err)
		}
	}
}

// At Remaining 0 of a limit that slides, go-github waits for the next unit, not for the whole
// quota.
func TestGoGitHubWaitsForTheNextUnit(t *testing.T) {
	now := clock.NewManual(time.Now().Add(-100 * time.Second)) // go-github's clock is the system's
	a := newAPI(t, now, throttler.Limit{Quota: 3, Window: 90 * time.Second, Algorithm: throttler.SlidingLog}, nil, repository)
	c, err := github.NewClient(github.WithURLs(github.Ptr(a.URL+"/"), nil))
	if err != nil {
		t.Fatal(err)
	}
	for range 4 { // after the third, the next unit was free 10 s ago, and the quota is free in 50 s
		if _, res, err := c.Repositories.Get(t.Context(), "acme", "rockets"); err != nil {
			t.Errorf("after %d requests: %v, %v", a.served.Load(), res, err)
		}
		now.Advance(30 * time.Second)
	}
}

func TestGoRetryableHTTP(t *testing.T) {
	now := clock.NewManual(time.Now())
	a := newAPI(t, now, throttler.Limit{Quota: 3, Window: time.Minute}, nil, repository)
	c := retryablehttp.NewClient()
	c.Logger = nil
	var waits []time.Duration
	c.Backoff = func(least, most time.Duration, attempt int, res *http.Response) time.Duration {
		wait := retryablehttp.DefaultBackoff(least, most, attempt, res)
		waits = append(waits, wait)
		now.Advance(wait) // instead of sleeping
		return 0
	}
	for i := range 4 {
		res, err := c.Get(a.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("request %d: status %d", i, res.StatusCode)
		}
	}
	if len(waits) != 1 || waits[0] != time.Minute {
		t.Errorf("waited %v; want a minute, once, and to be served then", waits)
	}
}

func TestWebSocket(t *testing.T) {
	a := newAPI(t, clock.System{}, throttler.Limit{Quota: 3, Window: time.Minute}, nil, func(w http.ResponseWriter, r *http.Request) {
		var upgrader websocket.Upgrader
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		kind, message, err := conn.ReadMessage()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.WriteMessage(kind, message)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	url := "ws" + strings.TrimPrefix(a.URL, "http")
	for i := range 4 {
		conn, res, err := websocket.DefaultDialer.DialContext(ctx, url, nil)
		if i == 3 {
			if err == nil || res.StatusCode != 429 {
				t.Errorf("the fourth upgrade: %v, want a refusal", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.WriteMessage(websocket.TextMessage, []byte("hello"))
		if _, message, err := conn.ReadMessage(); err != nil || string(message) != "hello" {
			t.Errorf("echo %q, error %v", message, err)
		}
		_ = conn.Close()
	}
}
