package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

// report serves one request through wrap, with a handler that calls f.
func report(t *testing.T, wrap func(http.Handler) http.Handler, f func(r *http.Request) error) (err error) {
	t.Helper()
	get(wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { err = f(r) })))
	return err
}

func TestSetCostMeansTheInnermostThatAsked(t *testing.T) {
	th, _ := newThrottler()
	requests, tokens, batches, next := policy("requests", per(100, time.Minute)), policy("tokens", per(10000, time.Minute)), policy("batches", per(10000, time.Minute)), policy("tokens.next", per(10000, time.Minute))
	stack := func(h http.Handler) http.Handler {
		h = limit(th, requests, nil)(h) // the innermost, but without CostReported
		h = must(newMiddleware(th, everyone(tokens).CostReported(), nil))(h)
		h = must(newMiddleware(th, everyone(next).CostReported(), &middleware.Options{DryRun: func(*http.Request, throttler.Decision) {}}))(h)
		return must(newMiddleware(th, everyone(batches).CostReported(), nil))(h)
	}
	if err := report(t, stack, func(r *http.Request) error { return middleware.SetCost(r, 1500) }); err != nil {
		t.Error(err)
	}
	expectUsed(t, th, requests, 1)
	expectUsed(t, th, tokens, 1500)
	expectUsed(t, th, next, 1500) // a dry run gets the cost, too
	expectUsed(t, th, batches, 1)
	if err := report(t, stack, func(r *http.Request) error { return middleware.SetCostOf(r, "batches", 20) }); err != nil {
		t.Error(err)
	}
	if err := report(t, stack, func(r *http.Request) error { return middleware.SetCostOf(r, "requests", 30) }); err != nil {
		t.Error(err)
	}
	expectUsed(t, th, requests, 32)
	expectUsed(t, th, tokens, 1502)
	expectUsed(t, th, batches, 22)
}

func TestSetCostInOneTake(t *testing.T) {
	th, _ := newThrottler()
	org, user, secondary := policy("org", per(1000, time.Minute)), policy("user", per(1000, time.Minute)), policy("secondary", per(1000, time.Minute))
	wrap := must(newMiddleware(th, middleware.All(middleware.All(everyone(org), everyone(user)).CostReported(), everyone(secondary).NoRefund()), nil))
	if err := report(t, wrap, func(r *http.Request) error { return middleware.SetCost(r, 50) }); err != nil {
		t.Error(err)
	}
	if err := report(t, wrap, func(r *http.Request) error {
		return errors.Join(middleware.SetCost(r, 5), middleware.SetCostOf(r, "user", 7), middleware.SetCost(r, 6))
	}); err != nil {
		t.Error(err)
	}
	expectUsed(t, th, org, 56)
	expectUsed(t, th, user, 57)
	expectUsed(t, th, secondary, 2)
}

func TestSetCostReplacesItsShareOfASum(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(1000, time.Minute))
	wrap := must(newMiddleware(th, middleware.All(everyone(p), everyone(p).CostReported(), everyone(p).CostReported().NoRefund()), nil))
	if err := report(t, wrap, func(r *http.Request) error { return middleware.SetCost(r, 50) }); err != nil {
		t.Error(err)
	}
	expectUsed(t, th, p, 51) // 1 without CostReported, and the cost, once
	get(wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = middleware.SetCost(r, 50)
		w.WriteHeader(304)
	})))
	expectUsed(t, th, p, 101) // 50 are not refunded
}

func TestSetCostSaysWhereItDoesNothing(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(1000, time.Minute))
	asked := must(newMiddleware(th, everyone(p).CostReported(), nil))
	plain := limit(th, policy("plain", per(1000, time.Minute)), nil)
	set := func(cost int64) func(r *http.Request) error {
		return func(r *http.Request) error { return middleware.SetCost(r, cost) }
	}
	for _, test := range []struct {
		wrap func(http.Handler) http.Handler
		f    func(r *http.Request) error
		want string
	}{
		{func(h http.Handler) http.Handler { return h }, set(1), "the request was not charged"},
		{must(newMiddleware(th, charging(), nil)), set(1), "the request was not charged"},
		{plain, set(1), "no charge of the request is marked CostReported"},
		{asked, set(-1), "cost is -1"},
		{asked, set(1<<53 + 1), "cost is 9007199254740993"},
		{asked, func(r *http.Request) error { return middleware.SetCostOf(r, "nope", 1) }, `not charged under a policy "nope"`},
		{asked, func(r *http.Request) error { return middleware.SetCostOf(r, "core", -1) }, "cost is -1"},
	} {
		if err := report(t, test.wrap, test.f); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want an ErrInvalid that says %s", err, test.want)
		}
	}
	var late, over error
	var kept *http.Request
	get(asked(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = middleware.SetCost(r, 5)
		w.WriteHeader(200)
		late = middleware.SetCost(r, 6)
		kept = r
	})))
	over = middleware.SetCost(kept, 7)
	for _, err := range []error{late, over} {
		if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "is settled") {
			t.Errorf("a report that comes too late: %v", err)
		}
	}
}

func TestSetCostIsNoErrorInAnOutage(t *testing.T) {
	log, _ := newLog()
	wrap := must(newMiddleware(throttler.New(down{}, nil), everyone(policy("core", per(5, time.Minute))).CostReported(), &middleware.Options{Observer: log}))
	for _, f := range []func(*http.Request) error{
		func(r *http.Request) error { return middleware.SetCost(r, 5) },
		func(r *http.Request) error { return middleware.SetCostOf(r, "core", 5) },
	} {
		if err := report(t, wrap, f); err != nil {
			t.Errorf("%v; the outage is logged, and the handler did nothing wrong", err)
		}
	}
}

// A decision's memory is reused when its request is over.
func TestALateReportIsNotAboutAnotherRequest(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(100, time.Minute))
	limited := limit(th, p, nil)
	var kept *http.Request
	get(limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		kept = r
	})))
	for range 10 {
		get(limited(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if err := middleware.SetCostOf(kept, "core", 50); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "is settled") {
				t.Errorf("a report that comes too late: %v", err)
			}
		})))
	}
	expectUsed(t, th, p, 11)
}

// A dry run that is not decided has asked for the cost, but made no charge.
func TestSetCostIsNoErrorWhereADryRunIsNotDecided(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(5, time.Minute))
	dry := must(newMiddleware(th, everyone(p).CostReported(), &middleware.Options{DryRun: func(*http.Request, throttler.Decision) {}}))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, set := range []func(*http.Request) error{
		func(r *http.Request) error { return middleware.SetCost(r, 5) },
		func(r *http.Request) error { return middleware.SetCostOf(r, "core", 5) },
	} {
		dry(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if err := set(r); err != nil {
				t.Error(err)
			}
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(over))
	}
}

func TestSetCostBetweenTheHandlerAndTheResponse(t *testing.T) {
	th, _ := newThrottler()
	outer, inner := policy("outer", per(100, time.Minute)), policy("inner", per(100, time.Minute))
	h := limit(th, outer, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var seen *http.Request
		must(newMiddleware(th, everyone(inner).CostReported(), nil))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r })).ServeHTTP(w, r)
		if err := middleware.SetCost(seen, 5); err != nil { // nothing was sent yet
			t.Error(err)
		}
	}))
	expect(t, get(h), 200)
	expectUsed(t, th, inner, 5)
}

func TestABadCostHeaderIsLogged(t *testing.T) {
	th, _ := newThrottler()
	log, lines := newLog()
	h := must(newMiddleware(th, everyone(policy("core", per(100, time.Minute))).CostReported(), &middleware.Options{CostHeader: "X-Cost", Observer: log}))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Cost", "many") }))
	expect(t, get(h), 200, "X-Cost", "", "X-RateLimit-Used", "1")
	if l := lines.lines(); len(l) != 1 || !strings.Contains(l[0], `X-Cost is \"many\"`) || !strings.Contains(l[0], "not_settled=1") {
		t.Errorf("logged %q", l)
	}
}

// A handler that failed to hijack the connection has not responded.
func TestAHijackThatFailedIsNoResponse(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(100, time.Minute))
	wrap := must(newMiddleware(th, everyone(p).CostReported(), &middleware.Options{CostHeader: "X-Cost"}))
	h := wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, _, err := http.NewResponseController(w).Hijack(); err == nil {
			t.Error("hijacked")
		}
		if hijacker, ok := w.(http.Hijacker); ok {
			if _, _, err := hijacker.Hijack(); err == nil {
				t.Error("hijacked")
			}
		}
		w.Header().Set("X-Cost", "9")
		w.WriteHeader(304)
	}))
	w := failing{httptest.NewRecorder()}
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	expect(t, w.ResponseRecorder, 304, "X-RateLimit-Used", "0", "X-Cost", "")
	expect(t, get(h), 304, "X-RateLimit-Used", "0", "X-Cost", "") // no Hijacker at all
	expectUsed(t, th, p, 0)
}

func TestTheCostHeaderNeverReachesTheClient(t *testing.T) {
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		cost    int64
	}{
		"early hints": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Cost", "7")
			w.WriteHeader(103)
		}, 7},
		"an announced trailer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, X-Cost")
			w.(http.Flusher).Flush()
			w.Header().Set("X-Cost", "7")
		}, 7},
		"an unannounced trailer": {func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			w.Header().Set(http.TrailerPrefix+"X-Cost", "7")
		}, 7},
		"another spelling":              {func(w http.ResponseWriter, _ *http.Request) { w.Header()["x-cost"] = []string{"7"} }, 7},
		"several values, which none is": {func(w http.ResponseWriter, _ *http.Request) { w.Header()["X-Cost"] = []string{"0", "9"} }, 1},
		"two spellings": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["X-Cost"], w.Header()["x-cost"] = []string{"0"}, []string{"9"}
		}, 1},
		"no charge": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Cost", "7") }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bothProtocols(t, func(t *testing.T, http2 bool) {
				th, _ := newThrottler()
				p := policy("core", per(100, time.Minute))
				log, _ := newLog()
				classify := everyone(p)
				if name == "no charge" {
					classify = charging()
				}
				s := start(t, http2, must(newMiddleware(th, classify.CostReported(), &middleware.Options{CostHeader: "X-Cost", Observer: log}))(test.handler), nil)
				var early textproto.MIMEHeader
				r := must(http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { early = h; return nil },
				}), "GET", s.URL, nil))
				res, _ := s.do(t, r)
				soon(t, s.done, "the handler")
				if got := fmt.Sprint(res.Header, early, res.Trailer); strings.Contains(got, "ost:") {
					t.Errorf("the client got %s", got)
				}
				expectUsed(t, th, p, test.cost)
			})
		})
	}
}

// A policy that an operator has linked to a parent is settled as before, together with its
// parent: to a reported cost, after a 304, and if some charges are not refunded.
func TestParentsCostWhatTheirChildrenDo(t *testing.T) {
	table := new(policies.Table)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: table})
	bucket, secondary, org := policy("bucket", per(1000, time.Hour)), policy("secondary", per(1000, time.Hour)), policy("org", per(1000, time.Hour))
	linked := policy("bucket", per(1000, time.Hour))
	linked.Parent, linked.ParentKey = "org", "everyone"
	if err := table.Source("code").Edit(func(e *policies.Edit) { e.Set(org); e.Set(linked) }); err != nil {
		t.Fatal(err)
	}
	one := must(newMiddleware(th, everyone(bucket).CostReported(), nil))
	two := must(newMiddleware(th, middleware.All(everyone(bucket).CostReported(), everyone(secondary).NoRefund()), nil))
	for _, test := range []struct {
		name                   string
		wrap                   func(http.Handler) http.Handler
		status                 int
		cost                   int64 // reported cost, or 0
		bucket, secondary, org int64 // increases
	}{
		{"a charge", one, 200, 0, 1, 0, 1},
		{"a cost", one, 200, 50, 50, 0, 50},
		{"a 304", one, 304, 0, 0, 0, 0},
		{"a cost of one", two, 200, 70, 70, 1, 70},
		{"a 304 of one", two, 304, 0, 0, 1, 0},
	} {
		all := []*throttler.Policy{bucket, secondary, org}
		var before [3]int64
		for i, p := range all {
			before[i] = used(t, th, p, "everyone")
		}
		get(test.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if test.cost > 0 {
				if err := middleware.SetCost(r, test.cost); err != nil {
					t.Error(err)
				}
			}
			w.WriteHeader(test.status)
		})))
		for i, want := range []int64{test.bucket, test.secondary, test.org} {
			if got := used(t, th, all[i], "everyone") - before[i]; got != want {
				t.Errorf("%s: %s has used %d more; want %d", test.name, all[i].Name, got, want)
			}
		}
	}
}

// A cost in the header is about the middlewares in front, and not about a Take.
func TestTheCostHeaderIsNotAboutATake(t *testing.T) {
	th, _ := newThrottler()
	core, points := policy("core", per(100, time.Minute)), policy("points", per(100, time.Minute))
	h := must(newMiddleware(th, everyone(core).CostReported(), &middleware.Options{CostHeader: "X-Cost"}))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !middleware.Take(w, r, throttler.Charge{Policy: points, Key: "everyone", Cost: 5}) {
				return
			}
			w.Header().Set("X-Cost", "8")
			w.WriteHeader(200)
			if err := middleware.SetCostOf(r, "points", 3); err != nil {
				t.Error(err)
			}
		}))
	expect(t, get(h), 200, "X-Cost", "")
	expectUsed(t, th, core, 8)
	expectUsed(t, th, points, 3)
}
