package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// points is like GitHub's secondary limits: requests at once, and points per minute.
var points = policy("points",
	throttler.Limit{Quota: 2, Window: 30 * time.Second, Algorithm: quota.InFlight},
	per(100, time.Minute))

// expectHeld checks the units of points that "everyone" has in flight, and its used points.
func expectHeld(t *testing.T, th *throttler.Throttler, when string, inFlight, rate int64) {
	t.Helper()
	d, err := th.Peek(context.Background(), points.Charge("everyone"))
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Limit(0).Used; got != inFlight {
		t.Errorf("%s: %d are in flight; want %d", when, got, inFlight)
	}
	if got := d.Limit(1).Used; got != rate {
		t.Errorf("%s: %d points are used; want %d", when, got, rate)
	}
}

// A request is in flight until its handler ends, in whatever way. Its points stay charged
// unless the response is free.
func TestInFlightUntilTheHandlerEnds(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		during  int64 // points used when the handler ends
		after   int64
	}{
		{"200", status(200), 1, 1},
		{"nothing written", func(http.ResponseWriter, *http.Request) {}, 1, 1},
		{"304", status(304), 1, 0},
		{"a cost, and then a body", func(w http.ResponseWriter, r *http.Request) {
			_ = middleware.SetCostOf(r, "points", 7)
			w.WriteHeader(200)
		}, 1, 7},
		{"a cost after the body", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			_ = middleware.SetCostOf(r, "points", 7)
		}, 1, 7},
		{"a cost, and then 304", func(w http.ResponseWriter, r *http.Request) {
			_ = middleware.SetCostOf(r, "points", 7)
			w.WriteHeader(304)
		}, 1, 0},
		{"304, and then a cost", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(304)
			if err := middleware.SetCostOf(r, "points", 7); !errors.Is(err, throttler.ErrInvalid) {
				t.Errorf("SetCostOf after a 304 returned %v; want an error", err)
			}
		}, 1, 0},
		{"a cost, the body, and then a cost", func(w http.ResponseWriter, r *http.Request) {
			_ = middleware.SetCostOf(r, "points", 7)
			w.WriteHeader(200)
			_ = middleware.SetCostOf(r, "points", 9)
		}, 1, 7},
		{"panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 1, 1},
		{"panic after 304", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304); panic(http.ErrAbortHandler) }, 1, 0},
		{"the client has left", func(_ http.ResponseWriter, r *http.Request) {
			r.Context().Value(leaveKey{}).(context.CancelFunc)()
		}, 1, 1},
		{"more is taken inside", func(w http.ResponseWriter, r *http.Request) {
			middleware.Take(w, r, points.Charge("another"))
			w.WriteHeader(200)
		}, 1, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			th, _ := newThrottler()
			h := limit(th, points, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer expectHeld(t, th, "at the end of the handler", 1, test.during)
				test.handler(w, r)
			}))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r := httptest.NewRequestWithContext(context.WithValue(ctx, leaveKey{}, leave), http.MethodGet, "/", nil)
			func() {
				defer func() { _ = recover() }()
				h.ServeHTTP(httptest.NewRecorder(), r)
			}()
			expectHeld(t, th, "after it", 0, test.after)
			if d, err := th.Peek(t.Context(), points.Charge("another")); err != nil || d.Limit(0).Used != 0 {
				t.Errorf("what the handler took is in flight: %v, %v", &d, err)
			}
		})
	}
}

// A request that only checks a limit in flight holds nothing: its other charges are settled when
// the response begins.
func TestNothingIsHeldByACheck(t *testing.T) {
	th, _ := newThrottler()
	core := policy("core", per(100, time.Minute))
	check := points.Charge("everyone")
	check.Mode = quota.Check
	h := must(newMiddleware(th, charging(check, core.Charge("everyone")), nil))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(304)
		expectUsed(t, th, core, 0)
	}))
	get(h)
}

type leaveKey struct{}

// A panic of a function of the program, at the end of a request, keeps no unit in flight.
func TestInFlightEndsAfterAPanic(t *testing.T) {
	panics := &middleware.Options{RefundIf: func(*http.Request, int, http.Header) bool { panic("RefundIf") }}
	for name, h := range map[string]func(th *throttler.Throttler) http.Handler{
		"one": func(th *throttler.Throttler) http.Handler { return limit(th, points, panics)(status(200)) },
		"the inner of two, with a recovery between": func(th *throttler.Throttler) http.Handler {
			inner := limit(th, points, panics)(status(200))
			return limit(th, policy("outer", per(100, time.Minute)), nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() { _ = recover() }()
				inner.ServeHTTP(w, r)
			}))
		},
		"two": func(th *throttler.Throttler) http.Handler {
			return limit(th, points, panics)(limit(th, points, panics)(status(200)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			th, _ := newThrottler()
			func() {
				defer func() { _ = recover() }()
				get(h(th))
			}()
			d, err := th.Peek(t.Context(), points.Charge("everyone"))
			if err != nil || d.Limit(0).Used != 0 {
				t.Errorf("after it, %v, %v; want nothing in flight", &d, err)
			}
		})
	}
}

// The end of a request ends its units in flight and nothing else: a receipt is settled by another
// process, while the handler runs or afterwards.
func TestInFlightEndsAndAReceiptDoesNot(t *testing.T) {
	for name, within := range map[string]bool{"after the handler": false, "while it runs": true} {
		t.Run(name, func(t *testing.T) {
			store, options := memorybackend.NewDefault(), &throttler.Options{ReceiptKey: []byte("a secret of the test")}
			th, worker := throttler.New(store, options), throttler.New(store, options)
			settle := func(receipt string) {
				opened, err := worker.Open(receipt)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := worker.Settle(t.Context(), opened, 42); err != nil {
					t.Errorf("settled by another process: %v", err)
				}
				if _, err := worker.Settle(t.Context(), must(worker.Open(receipt)), 42); !errors.Is(err, throttler.ErrSettled) {
					t.Errorf("delivered again: %v, want ErrSettled", err)
				}
			}
			var receipt string
			failed := &middleware.Options{Observer: onFailed{call: func(e observe.Failed) { t.Errorf("observed %+v", e) }}}
			tokens := policy("tokens", throttler.Limit{Quota: 2, Window: time.Minute, Algorithm: throttler.InFlight}, per(1000, 1000*time.Hour))
			h := limit(th, tokens, failed)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var err error
				d, _ := middleware.FromContext(r.Context())
				if receipt, err = th.Receipt(d); err != nil {
					t.Error(err)
				}
				if within {
					settle(receipt)
				}
				w.WriteHeader(200)
			}))
			get(h)
			if !within {
				settle(receipt)
			}
			if d, err := th.Peek(t.Context(), tokens.Charge("everyone")); err != nil || d.Limit(0).Used != 0 || d.Limit(1).Used != 42 {
				t.Errorf("%d in flight, %d used, %v; want 0 and 42", d.Limit(0).Used, d.Limit(1).Used, err)
			}
		})
	}
}

// As many requests as the limit allows are served at once, and the next when one has ended.
// Requests are renewed as long as they last.
func TestInFlightIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memorybackend.NewDefault(), nil)
		end := make(chan struct{})
		h := limit(th, points, nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
		serve := func() *httptest.ResponseRecorder { return get(h) }
		for range 2 {
			go serve()
		}
		for range 10 { // leases
			time.Sleep(30 * time.Second)
			if w := serve(); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
				t.Fatalf("a third is answered %d, %v", w.Code, w.Header())
			}
		}
		close(end)
		synctest.Wait()
		if w := serve(); w.Code != http.StatusOK {
			t.Errorf("after both have ended, %d", w.Code)
		}
		time.Sleep(time.Hour) // nothing is renewed now
	})
}

// If a process was stopped for longer than its lease, and another has taken its units, the
// observer receives that, and the other's units are not released.
func TestInFlightThatLapsed(t *testing.T) {
	store := memorybackend.NewDefault()
	stopped, running := clock.NewManual(t0), clock.NewManual(t0)
	a := throttler.New(store, &throttler.Options{Clock: stopped})
	b := throttler.New(store, &throttler.Options{Clock: running})
	failed := make(chan observe.Failed, 1)
	h := limit(a, points, &middleware.Options{Observer: onFailed{call: func(e observe.Failed) { failed <- e }}})
	get(h(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		running.Advance(31 * time.Second)
		for range 2 {
			if d, err := b.Take(t.Context(), points.Charge("everyone")); err != nil || !d.Allowed {
				t.Fatalf("another process, after the lease: %v, %v", &d, err)
			}
		}
		stopped.Advance(31 * time.Second)
		if e := soon(t, failed, "that the place is lost"); e.Policy != "points" || e.Result != observe.ResultNotSettled {
			t.Errorf("observed %+v", e)
		}
		expectHeld(t, b, "after the lease", 2, 3)
	})))
	expectHeld(t, b, "at the end", 2, 3)
}

// Responses report an in-flight limit as requests at once. They don't contain its lease: a
// client that waited for its end would come back much too late.
func TestDialectsOfWhatIsInFlight(t *testing.T) {
	two := policy("streams", throttler.Limit{Quota: 2, Window: 30 * time.Second, Algorithm: quota.InFlight})
	soon := strconv.FormatInt(t0.Unix()+2, 10) // in a second, rounded up
	for _, test := range []struct {
		dialect          middleware.Dialect
		first            []string // of the only stream
		refused, ofPoint []string // with two in flight; of a policy that also has a rate
	}{
		{middleware.GitHub{},
			[]string{"X-RateLimit-Limit", "2", "X-RateLimit-Remaining", "1", "X-RateLimit-Used", "1", "X-RateLimit-Resource", "streams"},
			[]string{"X-RateLimit-Limit", "2", "X-RateLimit-Remaining", "0", "X-RateLimit-Used", "2", "X-RateLimit-Reset", soon},
			[]string{"X-RateLimit-Limit", "2", "X-RateLimit-Remaining", "0", "X-RateLimit-Used", "2", "X-RateLimit-Reset", soon}},
		{middleware.IETF{},
			[]string{"RateLimit-Policy", `"streams";q=2;qu="concurrent-requests"`, "RateLimit", `"streams";r=1`},
			[]string{"RateLimit-Policy", `"streams";q=2;qu="concurrent-requests"`, "RateLimit", `"streams";r=0;t=1`},
			[]string{"RateLimit-Policy", `"points-30s";q=2;qu="concurrent-requests", "points-1m";q=100;w=60`, "RateLimit", `"points-30s";r=0;t=1, "points-1m";r=98;t=60`}},
		{middleware.Draft3{},
			[]string{"RateLimit-Limit", "2", "RateLimit-Remaining", "1"},
			[]string{"RateLimit-Limit", "2", "RateLimit-Remaining", "0", "RateLimit-Reset", "1"},
			[]string{"RateLimit-Limit", "2", "RateLimit-Remaining", "0", "RateLimit-Reset", "1"}},
		{middleware.OpenAI{},
			[]string{"x-ratelimit-limit-requests", "2", "x-ratelimit-remaining-requests", "1", "x-ratelimit-limit-tokens", ""},
			[]string{"x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "1s"},
			[]string{"x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "1s"}},
		{middleware.Anthropic{},
			[]string{"anthropic-ratelimit-requests-limit", "2", "anthropic-ratelimit-requests-remaining", "1", "anthropic-ratelimit-tokens-limit", ""},
			[]string{"anthropic-ratelimit-requests-remaining", "0", "anthropic-ratelimit-requests-reset", rfc3339(1)},
			[]string{"anthropic-ratelimit-requests-remaining", "0", "anthropic-ratelimit-requests-reset", rfc3339(1)}},
	} {
		t.Run(fmt.Sprintf("%T", test.dialect), func(t *testing.T) {
			th, _ := newThrottler()
			for _, of := range []struct {
				policy  *throttler.Policy
				refused []string
			}{{two, test.refused}, {points, test.ofPoint}} {
				var nest func(left int) http.Handler
				nest = func(left int) http.Handler { // the handler sends the next request
					return must(newMiddleware(th, everyone(of.policy), &middleware.Options{Dialect: test.dialect}))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						if left > 0 {
							h := get(nest(left - 1))
							if left > 1 {
								w.WriteHeader(http.StatusOK)
								return
							}
							expect(t, h, 429, append(of.refused, "Retry-After", "1")...)
							if body := h.Body.String(); !strings.Contains(body, of.policy.Name+" allows 2 at once. Try again in 1 s.") {
								t.Errorf("the body is %s", body)
							}
						}
						w.WriteHeader(http.StatusOK)
					}))
				}
				first := get(nest(2))
				if of.policy == two {
					expect(t, first, 200, test.first...)
				}
			}
		})
	}
}
