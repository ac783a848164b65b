package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

// TestDryRun puts a stricter policy in front of the enforced one.
func TestDryRun(t *testing.T) {
	th, _ := newThrottler()
	strict, lax := policy("core.next", per(2, time.Hour)), policy("core", per(5, time.Hour))
	var told []throttler.Decision
	try := must(newMiddleware(th, everyone(strict).CostReported(), &middleware.Options{
		DryRun:  func(_ *http.Request, d throttler.Decision) { told = append(told, d) },
		Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}, ExposeHeaders: true, FailClosed: true,
	}))
	h := try(must(newMiddleware(th, everyone(lax).CostReported(), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Free") != "" {
			w.WriteHeader(304)
			return
		}
		if r.Header.Get("Dear") != "" {
			_ = middleware.SetCost(r, 2)
		}
		w.WriteHeader(200)
	})))
	want := func(what string, w *httptest.ResponseRecorder, code int, used string, wantAllowed bool, wantUsed int64) {
		t.Helper()
		expect(t, w, code, "X-RateLimit-Used", used, "X-RateLimit-Resource", "core", "RateLimit", "")
		d := told[len(told)-1]
		if d.Allowed != wantAllowed || d.Limit(0).Used != wantUsed || d.Limit(0).Policy != strict {
			t.Errorf("%s: told allowed %v, used %d; want %v, %d", what, d.Allowed, d.Limit(0).Used, wantAllowed, wantUsed)
		}
	}
	want("first", get(h), 200, "1", true, 1)
	want("a 304", get(h, "Free", "1"), 304, "1", true, 2)
	want("the 304 was free of both", get(h), 200, "2", true, 2)
	want("would be refused", get(h), 200, "3", false, 2)
	want("is still served, and dear", get(h, "Dear", "1"), 200, "5", false, 2)
	want("refused by what is enforced", get(h), 429, "5", false, 2)
	if len(told) != 6 {
		t.Errorf("told %d decisions, want 6", len(told))
	}
}

func TestDryRunSettlesCosts(t *testing.T) {
	th, _ := newThrottler()
	tried, enforced := policy("core.next", per(10, time.Hour)), policy("core", per(10, time.Hour))
	try := must(newMiddleware(th, everyone(tried).CostReported(), &middleware.Options{CostHeader: "X-Cost", DryRun: func(*http.Request, throttler.Decision) {}}))
	h := try(must(newMiddleware(th, everyone(enforced).CostReported(), &middleware.Options{CostHeader: "X-Cost"}))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Cost", "4")
		w.WriteHeader(200)
	})))
	expect(t, get(h), 200, "X-RateLimit-Used", "4", "X-Cost", "")
	d, err := th.Peek(t.Context(), tried.Charge("everyone"))
	if err != nil || d.Limit(0).Used != 4 {
		t.Errorf("used %d in the dry run, %v; want 4", d.Binding().Used, err)
	}
}

func TestDryRunWithoutADecision(t *testing.T) {
	var failed observe.Failed
	h := must(middleware.New(throttler.New(broken{}, nil), everyone(policy("core", per(2, time.Hour))), &middleware.Options{
		DryRun:     func(*http.Request, throttler.Decision) { t.Error("told a decision that was not made") },
		FailClosed: true,
		Observer:   onFailed{call: func(e observe.Failed) { failed = e }},
	}))(status(200))
	expect(t, get(h), 200, "X-RateLimit-Used", "")
	if failed.Result != observe.ResultServedInDryRun || failed.Policy != "core" {
		t.Errorf("observed %+v", failed)
	}
}
