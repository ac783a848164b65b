package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// gone returns a backend that does not answer.
func gone() driver.Backend {
	return &flaky{memorybackend.NewDefault(), func(string) error { return errors.New("gone") }}
}

// units returns a charge of everyone.
func units(p *throttler.Policy, cost int64) throttler.Charge {
	return throttler.Charge{Policy: p, Key: "everyone", Cost: cost}
}

func TestFromContext(t *testing.T) {
	th, _ := newThrottler()
	core, inner := policy("core", per(5, time.Minute)), policy("inner", per(100, time.Minute))
	var seen []string
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		d, ok := middleware.FromContext(r.Context())
		if s := d.Binding(); ok {
			seen = append(seen, s.Policy.Name)
		} else {
			seen = append(seen, "none")
		}
	})
	outer := limit(th, core, nil)
	get(h)
	get(outer(h))
	get(outer(limit(th, inner, nil)(h)))
	get(outer(limit(th, inner, &middleware.Options{DryRun: func(*http.Request, throttler.Decision) {}})(h)))
	get(outer(must(newMiddleware(th, charging(), nil))(h)))
	get(limit(throttler.New(gone(), nil), core, &middleware.Options{Observer: observe.Nothing{}})(h))
	if got, want := strings.Join(seen, " "), "none core inner core core none"; got != want {
		t.Errorf("handlers saw %s, want %s", got, want)
	}
}

// Charges of a handler are in the headers, which report the limit that binds, and the
// newest count of each.
func TestTakeInAHandler(t *testing.T) {
	core, points := policy("core", per(10, time.Hour)), policy("points", per(20, time.Minute))
	all := middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}
	for name, test := range map[string]struct {
		takes        [][]throttler.Charge
		status       int // of the handler
		want         int
		resource     string
		remaining    string
		fields       string
		core, points int64 // used in the end
	}{
		"nothing":                    {nil, 200, 200, "core", "9", `"core";r=9;t=3600`, 1, 0},
		"another policy":             {[][]throttler.Charge{{units(points, 15)}}, 200, 200, "points", "5", `"core";r=9;t=3600, "points";r=5;t=60`, 1, 15},
		"the same count":             {[][]throttler.Charge{{units(core, 5)}, {units(core, 1)}}, 200, 200, "core", "3", `"core";r=3;t=3600`, 7, 0},
		"in a loop":                  {[][]throttler.Charge{{units(points, 3)}, {units(points, 2)}, {units(points, 1)}}, 200, 200, "core", "9", `"core";r=9;t=3600, "points";r=14;t=60`, 1, 6},
		"a refusal keeps the rest":   {[][]throttler.Charge{{units(points, 15)}, {units(points, 6)}}, 200, 429, "points", "5", `"core";r=9;t=3600, "points";r=5;t=60`, 1, 15},
		"all or nothing":             {[][]throttler.Charge{{units(core, 5), units(points, 21)}}, 200, 429, "points", "20", `"core";r=9;t=3600, "points";r=20;t=0`, 1, 0},
		"a 304":                      {[][]throttler.Charge{{units(points, 15)}, {units(core, 2)}}, 304, 304, "points", "20", `"points";r=20;t=0, "core";r=10;t=3600`, 0, 0},
		"a 304 of the same count":    {[][]throttler.Charge{{units(core, 2)}}, 304, 304, "core", "10", `"core";r=10;t=3600`, 0, 0},
		"nothing to charge is a 500": {[][]throttler.Charge{{}}, 200, 500, "core", "9", `"core";r=9;t=3600`, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			th, _ := newThrottler()
			h := limit(th, core, &middleware.Options{Dialect: all, Observer: observe.Nothing{}})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for _, charges := range test.takes {
					if !middleware.Take(w, r, charges...) {
						return
					}
				}
				w.WriteHeader(test.status)
			}))
			w := get(h)
			expect(t, w, test.want, "X-RateLimit-Resource", test.resource, "X-RateLimit-Remaining", test.remaining)
			if got := w.Header().Get("RateLimit"); test.fields != got && test.want != 304 {
				t.Errorf("RateLimit: %s, want %s", got, test.fields)
			}
			if after := w.Header().Get("Retry-After"); (after != "") != (test.want == 429 && name != "all or nothing") {
				t.Errorf("Retry-After: %q", after)
			}
			expectUsed(t, th, core, test.core)
			expectUsed(t, th, points, test.points)
		})
	}
}

func TestTakeWithoutAMiddlewareOrADecision(t *testing.T) {
	th, _ := newThrottler()
	core, points := policy("core", per(10, time.Hour)), policy("points", per(2, time.Minute))
	takes := func(w http.ResponseWriter, r *http.Request) {
		if middleware.Take(w, r, units(points, 2)) {
			w.WriteHeader(204)
		}
	}
	expect(t, get(http.HandlerFunc(takes)), 500, "X-RateLimit-Limit", "")

	// A middleware that charges nothing itself.
	h := must(newMiddleware(th, middleware.InHandler(), nil))(http.HandlerFunc(takes))
	expect(t, get(h), 204, "X-RateLimit-Remaining", "0")
	expect(t, get(h), 429, "X-RateLimit-Remaining", "0", "Retry-After", "60")

	// A backend that answers the middleware, but not the handler.
	var gone error
	b := &flaky{memorybackend.NewDefault(), func(string) error { return gone }}
	for closed, want := range map[bool]int{false: 204, true: 503} {
		gone = nil
		var failed observe.Failed
		h := limit(throttler.New(b, nil), core, &middleware.Options{FailClosed: closed, Observer: onFailed{call: func(e observe.Failed) { failed = e }}})(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				gone = errors.New("gone")
				takes(w, r)
			}))
		expect(t, get(h), want, "X-RateLimit-Limit", "")
		if failed.Policy != "points" || failed.Shard == "" {
			t.Errorf("observed %+v", failed)
		}
	}

	// The client has left.
	h = limit(th, core, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		takes(w, r.WithContext(ctx))
	}))
	expect(t, get(h), 503)
	expectUsed(t, th, points, 2)
}

// A handler's charges are settled to its reported cost, before the response begins or after.
func TestTheCostOfATake(t *testing.T) {
	core, points := policy("core", per(10, time.Hour)), policy("points", per(20, time.Minute))
	for _, after := range []bool{false, true} {
		for _, nested := range []bool{false, true} {
			th, _ := newThrottler()
			h := limit(th, core, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !middleware.Take(w, r, units(points, 5)) {
					return
				}
				if d, ok := middleware.FromContext(r.Context()); !ok || d.Binding().Policy != points {
					t.Errorf("the last decision is %v", d)
				}
				if after {
					w.WriteHeader(200)
				}
				if err := middleware.SetCostOf(r, "points", 18); err != nil {
					t.Error(err)
				}
			}))
			if nested {
				h = limit(th, policy("outer", per(100, time.Hour)), nil)(h)
			}
			w := get(h)
			if expectUsed(t, th, points, 18); !after {
				expect(t, w, 200, "X-RateLimit-Resource", "points", "X-RateLimit-Remaining", "2")
			}
			expectUsed(t, th, core, 1)
		}
	}
}

// A handler's charges are refunded if RefundIf reports that its panic is free.
func TestAPanicAfterTake(t *testing.T) {
	core, points := policy("core", per(10, time.Hour)), policy("points", per(20, time.Minute))
	for _, free := range []bool{false, true} {
		th, _ := newThrottler()
		o := &middleware.Options{}
		if free {
			o.RefundIf = errorsAreFree
		}
		h := limit(th, core, o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			middleware.Take(w, r, units(points, 5))
			panic(http.ErrAbortHandler)
		}))
		func() {
			defer func() { _ = recover() }()
			get(h)
		}()
		want := int64(5)
		if free {
			want = 0
		}
		expectUsed(t, th, points, want)
	}
}

// A Take that waits for its start leaves the body to the handler.
func TestTakeWaitsAndTheBodyStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memorybackend.NewDefault(), nil)
		queue := policy("queue", throttler.Limit{Algorithm: throttler.LeakyBucket, Quota: 1, Window: time.Second, Burst: 5})
		client := startInBubble(t, false, must(newMiddleware(th, middleware.InHandler(), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			first := make([]byte, 2)
			_, _ = io.ReadFull(r.Body, first)
			if middleware.Take(w, r, units(queue, 1)) && middleware.Take(w, r, queue.Charge("everyone")) {
				rest, err := io.ReadAll(r.Body)
				fmt.Fprint(w, string(first), "|", string(rest), err)
			}
		})), func(*http.Server) {})
		began := time.Now()
		res := must(client.Post("http://weir.test/", "text/plain", strings.NewReader("the body")))
		defer res.Body.Close()
		if body := string(must(io.ReadAll(res.Body))); body != "th|e body<nil>" || time.Since(began) != time.Second {
			t.Errorf("%s after %v", body, time.Since(began))
		}
	})
}

// A proxy that only checks charges nothing, and refuses what the service would.
func TestAProxyThatChecks(t *testing.T) {
	th, _ := newThrottler()
	core := policy("core", per(2, time.Minute))
	service := limit(th, core, nil)(status(200))
	proxy := must(newMiddleware(th, everyone(core).Mode(quota.Check), nil))(service)
	expect(t, get(proxy), 200, "X-RateLimit-Remaining", "1")
	expect(t, get(proxy), 200, "X-RateLimit-Remaining", "0")
	expect(t, get(proxy), 429, "X-RateLimit-Remaining", "0", "Retry-After", "60")
	expectUsed(t, th, core, 2)
	if _, err := newMiddleware(th, everyone(core).Mode(9), nil); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("mode 9: %v", err)
	}
}

func TestUnavailable(t *testing.T) {
	var told error
	o := &middleware.Options{FailClosed: true, Observer: observe.Nothing{}, Refuse: func(w http.ResponseWriter, _ *http.Request, x middleware.Refusal) {
		told = x.Err
		w.WriteHeader(x.Status + 18)
	}}
	h := limit(throttler.New(gone(), nil), policy("core", per(2, time.Minute)), o)(status(200))
	expect(t, get(h), 521, "Retry-After", "1", "Cache-Control", "no-store")
	if !errors.Is(told, throttler.ErrUnavailable) {
		t.Errorf("told %v", told)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ended))
	if w.Code != 521 || told == nil || errors.Is(told, throttler.ErrUnavailable) {
		t.Errorf("%d, told %v", w.Code, told)
	}
}

func TestWriteHeaders(t *testing.T) {
	th, c := newThrottler()
	core, points := policy("core", per(10, time.Hour)), policy("points", per(3, time.Minute))
	take := func(charges ...throttler.Charge) throttler.Decision { return must(th.Take(t.Context(), charges...)) }
	first, second, third := take(units(core, 5)), take(units(core, 1)), take(units(points, 2))
	c.Advance(500 * time.Millisecond)
	refused, never := take(units(points, 2)), take(units(points, 4))
	degraded := second
	degraded.Degraded = true
	for name, test := range map[string]struct {
		decisions []throttler.Decision
		want      []string
	}{
		"none":        {nil, []string{"X-RateLimit-Limit", "", "Retry-After", ""}},
		"one":         {[]throttler.Decision{first}, []string{"X-RateLimit-Remaining", "5", "Retry-After", ""}},
		"the last":    {[]throttler.Decision{first, second}, []string{"X-RateLimit-Remaining", "4"}},
		"what binds":  {[]throttler.Decision{third, second}, []string{"X-RateLimit-Resource", "points", "X-RateLimit-Remaining", "1"}},
		"a refusal":   {[]throttler.Decision{refused, second}, []string{"X-RateLimit-Resource", "points", "X-RateLimit-Remaining", "1", "Retry-After", "60"}},
		"never":       {[]throttler.Decision{never}, []string{"X-RateLimit-Resource", "points", "Retry-After", ""}},
		"a lie":       {[]throttler.Decision{third, degraded}, []string{"X-RateLimit-Limit", ""}},
		"no decision": {[]throttler.Decision{third, {}}, []string{"X-RateLimit-Limit", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			h := make(http.Header)
			middleware.WriteHeaders(h, nil, test.decisions...)
			expectHeaders(t, h, test.want...)
		})
	}
	h := make(http.Header)
	middleware.WriteHeaders(h, middleware.Dialects{middleware.IETF{}, middleware.OpenAI{}}, first, third)
	expectHeaders(t, h, "RateLimit", `"core";r=5;t=3600, "points";r=1;t=60`, "x-ratelimit-remaining-requests", "1", "X-RateLimit-Limit", "")
}

func TestErrorBodies(t *testing.T) {
	tokens := &quota.Policy{Name: "tokens", Limits: []quota.Limit{per(1, time.Minute)}, Unit: quota.Tokens}
	for _, test := range []struct {
		dialect middleware.Dialect
		policy  *quota.Policy
		backend driver.Backend
		status  int
		want    string
	}{
		{middleware.OpenAI{}, tokens, nil, 429, `{"error":{"message":"API rate limit exceeded: tokens allows 1 per 1m. Try again in 60 s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}`},
		{middleware.OpenAI{}, policy("core", per(1, time.Minute)), nil, 429, `{"error":{"message":"API rate limit exceeded: core allows 1 per 1m. Try again in 60 s.","type":"requests","param":null,"code":"rate_limit_exceeded"}}`},
		{middleware.Dialects{middleware.GitHub{}, middleware.Anthropic{}}, tokens, nil, 429, `{"type":"error","error":{"type":"rate_limit_error","message":"API rate limit exceeded: tokens allows 1 per 1m. Try again in 60 s."}}`},
		{middleware.Anthropic{}, tokens, nil, 403, `{"type":"error","error":{"type":"permission_error","message":"API rate limit exceeded: tokens allows 1 per 1m. Try again in 60 s."}}`},
		{middleware.OpenAI{}, tokens, gone(), 503, `{"error":{"message":"The rate limit of this request cannot be decided at the moment.","type":"server_error","param":null,"code":null}}`},
		{middleware.Anthropic{}, tokens, gone(), 503, `{"type":"error","error":{"type":"api_error","message":"The rate limit of this request cannot be decided at the moment."}}`},
	} {
		th, _ := newThrottler()
		if test.backend != nil {
			th = throttler.New(test.backend, nil)
		}
		o := &middleware.Options{Dialect: test.dialect, FailClosed: true, Observer: observe.Nothing{}}
		if test.status < 500 {
			o.Refuse = withStatus(test.status)
		}
		h := limit(th, test.policy, o)(status(200))
		get(h)
		w := get(h)
		expect(t, w, test.status, "Content-Type", "application/json")
		if got := strings.TrimSpace(w.Body.String()); got != test.want {
			t.Errorf("the body is %s, want %s", got, test.want)
		}
		expect(t, get(h, "Accept", "application/problem+json"), test.status, "Content-Type", "application/problem+json")
	}
}

// A handler's receipt settles its request in another process. Without a decision it is an error.
func TestReceipt(t *testing.T) {
	points := &throttler.Policy{Name: "points", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}}
	key := []byte("from the secrets of the deployment")
	backend := memorybackend.NewDefault()
	for name, test := range map[string]struct {
		backend driver.Backend
		key     []byte
		want    error
	}{
		"charged":     {backend, key, nil},
		"no key":      {memorybackend.NewDefault(), nil, throttler.ErrReceiptKey},
		"unavailable": {gone(), key, throttler.ErrUnavailable},
	} {
		th := throttler.New(test.backend, &throttler.Options{ReceiptKey: test.key, Observer: weirlog.New(slog.New(slog.DiscardHandler), nil)})
		limit, err := middleware.New(th, middleware.Limit(points, middleware.Everyone()), nil)
		if err != nil {
			t.Fatal(err)
		}
		var text string
		h := limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { text, err = middleware.Receipt(r) }))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		if !errors.Is(err, test.want) || (text == "") != (test.want != nil) {
			t.Errorf("%s: receipt %q, error %v, want %v", name, text, err, test.want)
		}
		if test.want != nil {
			continue
		}
		other := throttler.New(backend, &throttler.Options{ReceiptKey: key})
		d, err := other.Open(text)
		if err != nil {
			t.Fatal(err)
		}
		if d, err = other.SettlePolicies(t.Context(), d, map[string]int64{"points": 40}); err != nil || d.Limit(0).Used != 40 {
			t.Errorf("settled: used %d, error %v, want 40", d.Limit(0).Used, err)
		}
	}
	if _, err := middleware.Receipt(httptest.NewRequest("GET", "/", nil)); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("without a middleware: %v, want ErrInvalid", err)
	}
}
