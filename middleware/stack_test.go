package middleware_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// Middlewares in a row.

func TestWhatOneRefusesIsRefundedToAll(t *testing.T) {
	th, _ := newThrottler()
	global, middle, own := policy("global", per(100, time.Minute)), policy("middle", per(50, time.Minute)), policy("own", per(2, time.Minute))
	for name, between := range map[string]func(http.Handler) http.Handler{
		"plain":           func(h http.Handler) http.Handler { return h },
		"timeout handler": func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Minute, "") },
		"a writer without Unwrap": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			key := func(p *throttler.Policy) middleware.Classifier {
				return middleware.Limit(p, middleware.KeyFunc(func(*http.Request) (string, bool) { return name, true }))
			}
			fields := &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}}
			h := must(newMiddleware(th, key(global), fields))(must(newMiddleware(th, key(middle).NoRefund(), nil))(between(
				must(newMiddleware(th, key(own), nil))(status(200)))))
			s := start(t, false, h, nil)
			for i := range 4 {
				res, _ := s.get(t, "/")
				want, code := strconv.Itoa(i+1), 200
				if i >= 2 {
					want, code = "2", 429
				}
				if res.StatusCode != code {
					t.Errorf("request %d: status %d, want %d", i, res.StatusCode, code)
				}
				expectHeaders(t, res.Header, "X-RateLimit-Resource", "own", "X-RateLimit-Used", want, "X-RateLimit-Limit", "2",
					"RateLimit-Policy", `"global";q=100;w=60, "middle";q=50;w=60, "own";q=2;w=60`,
					"RateLimit", `"global";r=`+strconv.Itoa(100-min(i+1, 2))+`;t=60, "middle";r=`+strconv.Itoa(50-min(i+1, 2))+`;t=60, "own";r=`+strconv.Itoa(2-min(i+1, 2))+`;t=60`)
			}
			for _, p := range []*throttler.Policy{global, middle, own} {
				if got := used(t, th, p, name); got != 2 {
					t.Errorf("%s: used %d, want 2", p.Name, got)
				}
			}
		})
	}
}

func TestTheHeadersSpeakOfWhatBindsAmongAll(t *testing.T) {
	for _, code := range []int{200, 304} {
		th, _ := newThrottler()
		tight, wide := policy("tight", per(3, time.Minute)), policy("wide", per(100, time.Minute))
		for _, h := range []http.Handler{
			limit(th, tight, nil)(limit(th, wide, nil)(status(code))),
			limit(th, wide, nil)(limit(th, tight, nil)(status(code))),
		} {
			expect(t, get(h), code, "X-RateLimit-Resource", "tight", "X-RateLimit-Limit", "3")
		}
	}
}

func TestADryRunKeepsItsChargeIfAnotherRefuses(t *testing.T) {
	// A wider policy is tried in place of the enforced one. It would have allowed
	// these requests, so they count.
	th, _ := newThrottler()
	wide, tight := policy("core.next", per(10, time.Minute)), policy("core", per(1, time.Minute))
	h := limit(th, wide, &middleware.Options{DryRun: func(*http.Request, throttler.Decision) {}})(limit(th, tight, nil)(status(200)))
	get(h)
	expect(t, get(h), 429, "X-RateLimit-Resource", "core")
	expectUsed(t, th, wide, 2)
	expectUsed(t, th, tight, 1)
}

func TestWhatIsNotServedIsRefundedToAll(t *testing.T) {
	outer := policy("outer", per(10, time.Minute))
	canceling := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithCancel(r.Context())
			cancel()
			h.ServeHTTP(w, r.WithContext(ctx))
		})
	}
	for _, test := range []struct {
		name  string
		code  int
		inner func(*throttler.Throttler) func(http.Handler) http.Handler
	}{
		{"no decision", 503, func(*throttler.Throttler) func(http.Handler) http.Handler {
			log, _ := newLog()
			return limit(throttler.New(down{}, nil), policy("inner", per(1, time.Minute)), &middleware.Options{FailClosed: true, Observer: log})
		}},
		{"an invalid policy", 500, func(th *throttler.Throttler) func(http.Handler) http.Handler {
			log, _ := newLog()
			return must(newMiddleware(th, charging(policy("inner").Charge("k")), &middleware.Options{Observer: log}))
		}},
		{"a context that ended", 503, func(th *throttler.Throttler) func(http.Handler) http.Handler {
			inner := limit(th, policy("inner", per(1, time.Minute)), nil)
			return func(h http.Handler) http.Handler { return canceling(inner(h)) }
		}},
	} {
		th, _ := newThrottler()
		h := limit(th, outer, nil)(test.inner(th)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Errorf("%s: served", test.name) })))
		expect(t, get(h), test.code, "X-RateLimit-Limit", "") // not all enforced limits are known
		expectUsed(t, th, outer, 0)
	}
}

// If refunded, the work of a handler in between would be free for clients that hang up in time.
func TestAClientThatLeavesBetweenTwoMiddlewaresIsChargedInFront(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		th, _ := newThrottler()
		first, outer, inner := policy("first", per(10, time.Minute)), policy("outer", per(10, time.Minute)), policy("inner", per(10, time.Minute))
		works := make(chan struct{})
		each := limit(th, inner, nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
		s := start(t, http2, limit(th, first, nil)(limit(th, outer, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(works)
			<-r.Context().Done()
			each.ServeHTTP(w, r)
		}))), nil)
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			<-works
			leave()
		}()
		if res, err := s.Client().Do(must(http.NewRequestWithContext(ctx, "GET", s.URL, nil))); err == nil {
			res.Body.Close()
			t.Error("the client did not leave")
		}
		soon(t, s.done, "the handler")
		expectUsed(t, th, first, 1)
		expectUsed(t, th, outer, 1)
		expectUsed(t, th, inner, 0)
	})
}

// down is a backend whose shard refuses connections.
type down struct{ driver.Backend }

func (down) Take(context.Context, driver.Request) (driver.Decision, error) {
	return driver.Decision{}, &driver.UnavailableError{Backend: "test", Shard: "a", Err: errors.New("dial 10.0.0.7:6379")}
}

func TestNoRateHeadersIfOneOfAllIsUnknown(t *testing.T) {
	log, _ := newLog()
	th, _ := newThrottler()
	known := limit(th, policy("known", per(10, time.Minute)), &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}})
	unknown := limit(throttler.New(down{}, nil), policy("unknown", per(10, time.Minute)), &middleware.Options{Observer: log})
	liar := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-RateLimit-Limit", "7") })
	for _, h := range []http.Handler{known(unknown(liar)), unknown(known(liar)), unknown(liar)} {
		expect(t, get(h), 200, "X-RateLimit-Limit", "", "X-RateLimit-Used", "", "RateLimit", "", "RateLimit-Policy", "")
	}
}

// Stacked, a limit on all callers is one count, and the limits on each caller are spread over
// the backend.
func TestTogetherAndEach(t *testing.T) {
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(t0)})
	together, each := policy("together", per(3, time.Minute)), policy("each", per(2, time.Minute))
	caller := middleware.Limit(each, middleware.KeyFunc(func(r *http.Request) (string, bool) { return r.Header.Get("Caller"), true }))
	h := must(newMiddleware(th, middleware.Limit(together, middleware.Everyone()), nil))(must(newMiddleware(th, caller, nil))(status(200)))
	for _, test := range []struct {
		caller   string
		code     int
		resource string
	}{{"a", 200, "each"}, {"a", 200, "each"}, {"a", 429, "each"}, {"b", 200, "together"}, {"b", 429, "together"}, {"c", 429, "together"}} {
		expect(t, get(h, "Caller", test.caller), test.code, "X-RateLimit-Resource", test.resource)
	}
	// Status over the policy alone finds the counts.
	w := get(must(newStatus(th, caller, nil)), "Caller", "a")
	if !strings.Contains(w.Body.String(), `"used":2`) {
		t.Errorf("status: %s", w.Body)
	}
}

// outlive sends a request to outer, whose timeout answers 503 while h waits for a channel. It
// closes that, and returns when h has ended.
func outlive(t *testing.T, th *throttler.Throttler, outer *throttler.Policy, waitsFor chan struct{}, h http.Handler) {
	t.Helper()
	finished := make(chan struct{})
	expect(t, get(limit(th, outer, nil)(http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(finished)
		h.ServeHTTP(w, r)
	}), time.Millisecond, "too slow"))), 503, "X-RateLimit-Used", "1")
	close(waitsFor)
	soon(t, finished, "the end of the handler")
}

// A handler that outlives its timeout has the charges that it made with Take settled: a cost
// that it reports is charged, and units in flight are released.
func TestTakesOfARequestThatOutlivesItsTimeoutAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th, _ := newThrottler()
		points := policy("points", per(100, time.Minute))
		streams := policy("streams", throttler.Limit{Quota: 5, Window: time.Minute, Algorithm: throttler.InFlight})
		timedOut := make(chan struct{})
		outlive(t, th, policy("outer", per(100, time.Minute)), timedOut, must(newMiddleware(th, middleware.InHandler(), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !middleware.Take(w, r, points.Charge("everyone"), streams.Charge("everyone")) {
				t.Error("the charges are refused")
			}
			<-timedOut
			if err := middleware.SetCostOf(r, "points", 50); err != nil {
				t.Error(err)
			}
		})))
		expectUsed(t, th, points, 50)
		expectUsed(t, th, streams, 0)
	})
}

// heldTakes is a backend whose takes of one policy wait until it is opened.
type heldTakes struct {
	driver.Backend
	policy string
	open   chan struct{}
}

func (b *heldTakes) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if r.Charges()[0].Policy.Name == b.policy {
		<-b.open
	}
	return b.Backend.Take(ctx, r)
}

// A Take that is allowed after the outermost handler has ended holds nothing in flight.
func TestATakeThatEndsAfterTheRequestHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &heldTakes{memorybackend.NewDefault(), "streams", make(chan struct{})}
		th := throttler.New(b, nil)
		streams := policy("streams", throttler.Limit{Quota: 5, Window: time.Minute, Algorithm: throttler.InFlight})
		outlive(t, th, policy("outer", per(100, time.Minute)), b.open, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			middleware.Take(w, r, streams.Charge("everyone"))
		}))
		expectUsed(t, th, streams, 0)
	})
}

// A refused Take receives no report that is meant for an earlier one.
func TestACostIsReportedToTheLastTakeThatWasAllowed(t *testing.T) {
	th, _ := newThrottler()
	points := policy("points", per(100, time.Minute))
	get(must(newMiddleware(th, middleware.InHandler(), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charge := points.Charge("everyone")
		charge.Cost = 10
		if !middleware.Take(w, r, charge) {
			t.Error("10 of 100 are refused")
		}
		if charge.Cost = 1000; middleware.Take(w, r, charge) {
			t.Error("1000 of 100 are allowed")
		}
		if err := middleware.SetCostOf(r, "points", 3); err != nil {
			t.Error(err)
		}
	})))
	expectUsed(t, th, points, 3)
}

func TestARequestThatOutlivesItsTimeoutIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the timeout passes when the handler waits
		th, _ := newThrottler()
		outer, inner := policy("outer", per(100, time.Minute)), policy("inner", per(100, time.Minute))
		timedOut := make(chan struct{})
		outlive(t, th, outer, timedOut, must(newMiddleware(th, everyone(inner).CostReported(), nil))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-timedOut
			if err := middleware.SetCost(r, 50); err != nil {
				t.Error(err)
			}
		})))
		expectUsed(t, th, inner, 50)
		expectUsed(t, th, outer, 1)
	})
}
