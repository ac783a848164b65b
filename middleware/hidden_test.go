package middleware_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// hidden returns a policy that answers to clients don't have.
func hidden(name string, limits ...throttler.Limit) *throttler.Policy {
	p := policy(name, limits...)
	p.Hidden = true
	return p
}

// A hidden policy is charged in one decision with the others, and refuses. All headers, of each
// dialect, report the other policy, with what remains of it.
func TestAHiddenPolicyRefusesAndIsNotReported(t *testing.T) {
	secondary := hidden("secondary", per(2, time.Minute))
	for _, test := range []struct {
		name          string
		dialect       middleware.Dialect
		served, after []string // headers of the first response, and of the refusal
	}{
		{"GitHub", nil,
			[]string{"X-RateLimit-Resource", "core", "X-RateLimit-Limit", "60", "X-RateLimit-Remaining", "59", "X-RateLimit-Used", "1"},
			[]string{"X-RateLimit-Resource", "core", "X-RateLimit-Limit", "60", "X-RateLimit-Remaining", "58", "X-RateLimit-Used", "2"}},
		{"IETF", middleware.IETF{}, []string{"RateLimit-Policy", `"core";q=60;w=3600`, "RateLimit", `"core";r=59;t=3600`}, []string{"RateLimit", `"core";r=58;t=3600`}},
		{"draft 3", middleware.Draft3{}, []string{"RateLimit-Remaining", "59"}, []string{"RateLimit-Limit", "60", "RateLimit-Remaining", "58"}},
		{"OpenAI", middleware.OpenAI{}, []string{"X-Ratelimit-Remaining-Requests", "59"}, []string{"X-Ratelimit-Limit-Requests", "60", "X-Ratelimit-Remaining-Requests", "58"}},
		{"Anthropic", middleware.Anthropic{}, []string{"Anthropic-Ratelimit-Requests-Remaining", "59"}, []string{"Anthropic-Ratelimit-Requests-Remaining", "58"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			th, c := newThrottler()
			core := policy("core", per(60, time.Hour))
			h := must(newMiddleware(th, middleware.All(everyone(core), everyone(secondary).NoRefund()), &middleware.Options{Dialect: test.dialect}))(status(200))
			expect(t, get(h), 200, append(test.served, "Retry-After", "")...)
			expect(t, get(h), 200)
			for _, accept := range []string{"", "application/problem+json"} {
				w := get(h, "Accept", accept)
				expect(t, w, 429, append(test.after, "Retry-After", "60")...)
				text := w.Body.String() + strings.Join(append(w.Header()["Ratelimit-Policy"], w.Header()["Ratelimit"]...), " ")
				if strings.Contains(text, "secondary") || strings.Contains(text, "violated") || !strings.Contains(text, "API rate limit exceeded. Try again in 60 s.") || !json.Valid(w.Body.Bytes()) {
					t.Errorf("the refusal is %s", text)
				}
			}
			expectUsed(t, th, core, 2)
			c.Advance(time.Minute)
			expect(t, get(h), 200)
		})
	}
}

// If both refuse, the body is about the policy that clients may see, and Retry-After is when
// both have room.
func TestAHiddenPolicyThatRefusesNextToAnother(t *testing.T) {
	th, _ := newThrottler()
	h := must(newMiddleware(th, middleware.All(everyone(policy("core", per(1, time.Minute))), everyone(hidden("secondary", per(1, time.Hour)))), nil))(status(200))
	expect(t, get(h), 200)
	w := get(h, "Accept", "application/problem+json")
	expect(t, w, 429, "X-RateLimit-Resource", "core", "X-RateLimit-Remaining", "0", "Retry-After", "3600")
	if want := `"detail":"API rate limit exceeded: core allows 1 per 1m. Try again in 3600 s.","violated-policies":["core"]}`; !strings.Contains(w.Body.String(), want) {
		t.Errorf("the body is %s, want %s", w.Body, want)
	}
}

// Without a policy that clients may see there are no headers, not even a handler's.
func TestOnlyHiddenPolicies(t *testing.T) {
	th, _ := newThrottler()
	p := hidden("guard", per(1, time.Minute))
	h := must(newMiddleware(th, everyone(p), &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}}))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d, ok := middleware.FromContext(r.Context()); !ok || d.Binding().Policy != p {
			t.Errorf("the handler's decision is %v, %t; want the hidden policy's", d, ok)
		}
		w.Header().Set("X-RateLimit-Limit", "7")
		w.WriteHeader(200)
	}))
	none := []string{"X-RateLimit-Limit", "", "X-RateLimit-Resource", "", "RateLimit", "", "RateLimit-Policy", ""}
	expect(t, get(h), 200, none...)
	expect(t, get(h), 429, append(none, "Retry-After", "60")...)

	d, err := th.Take(t.Context(), p.Charge("k"))
	if err != nil {
		t.Fatal(err)
	}
	header := make(http.Header)
	if middleware.WriteHeaders(header, nil, d); len(header) > 0 {
		t.Errorf("WriteHeaders wrote %v", header)
	}
}

// A middleware with a hidden policy in front leaves the headers to the one behind.
func TestAHiddenPolicyInFront(t *testing.T) {
	th, _ := newThrottler()
	address, plan := hidden("address", per(1, time.Minute)), policy("plan", per(5, time.Minute))
	h := limit(th, address, nil)(limit(th, plan, nil)(status(200)))
	expect(t, get(h), 200, "X-RateLimit-Resource", "plan", "X-RateLimit-Remaining", "4")
	expect(t, get(h), 429, "X-RateLimit-Resource", "", "Retry-After", "60")
}

// A block, an override and a plan of a hidden policy are hidden, too.
func TestWhatReplacesAHiddenPolicyIsHidden(t *testing.T) {
	var table policies.Table
	if err := table.Source("code").Edit(func(e *policies.Edit) {
		e.Set(policy("strict", per(1, time.Hour)))
		e.Override(policies.Override{Policy: "guard", Key: "raised", Limits: []throttler.Limit{per(3, time.Hour)}})
		e.Override(policies.Override{Policy: "guard", Key: "blocked", Blocked: true})
		e.Override(policies.Override{Policy: "guard", Key: "free", Unlimited: true})
		e.Plan("guard", func(_ context.Context, key string) string {
			return map[string]string{"planned": "strict"}[key]
		})
	}); err != nil {
		t.Fatal(err)
	}
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(t0), Policies: &table})
	guard, core := hidden("guard", per(2, time.Minute)), policy("core", per(60, time.Hour))
	key := middleware.KeyFunc(func(r *http.Request) (string, bool) { return r.Header.Get("Key"), true })
	classify := middleware.All(middleware.Limit(core, key), middleware.Limit(guard, key))
	h := must(newMiddleware(th, classify, nil))(status(200))
	report := must(newStatus(th, classify, nil))
	for _, test := range []struct {
		key        string
		served     int
		retryAfter string
		resource   string // of the refusal
	}{{"raised", 3, "3600", "core"}, {"planned", 1, "3600", "core"}, {"blocked", 0, "", ""}, {"other", 2, "60", "core"}} {
		for range test.served {
			expect(t, get(h, "Key", test.key), 200, "X-RateLimit-Resource", "core")
		}
		w := get(h, "Key", test.key)
		expect(t, w, 429, "X-RateLimit-Resource", test.resource, "Retry-After", test.retryAfter)
		if strings.Contains(w.Body.String(), "guard") {
			t.Errorf("%s: the body is %s", test.key, w.Body)
		}
		if text := get(report, "Key", test.key).Body.String(); strings.Contains(text, "guard") || !strings.Contains(text, `"core"`) {
			t.Errorf("%s: the status is %s", test.key, text)
		}
	}
	expect(t, get(h, "Key", "free"), 200, "X-RateLimit-Resource", "core")
	if text := get(report, "Key", "free").Body.String(); strings.Contains(text, "guard") {
		t.Errorf("free: the status is %s", text)
	}
}

// The unit of a hidden policy is not in an API's own error body.
func TestTheErrorBodyOfAHiddenPolicy(t *testing.T) {
	th, _ := newThrottler()
	p := hidden("tokens", per(1, time.Minute))
	p.Unit = quota.Tokens
	h := must(newMiddleware(th, everyone(p), &middleware.Options{Dialect: middleware.OpenAI{}}))(status(200))
	expect(t, get(h), 200)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if strings.Contains(w.Body.String(), "tokens") || !strings.Contains(w.Body.String(), "requests") {
		t.Errorf("the body is %s", w.Body)
	}
}
