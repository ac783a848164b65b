package middleware_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// t0 is not a whole second, so that rounding shows.
var t0 = time.Date(2030, 1, 2, 3, 4, 5, 250e6, time.UTC)

func policy(name string, limits ...throttler.Limit) *throttler.Policy {
	return &throttler.Policy{Name: name, Limits: limits}
}

func per(quota int64, window time.Duration) throttler.Limit {
	return throttler.Limit{Quota: quota, Window: window}
}

func newThrottler() (*throttler.Throttler, *clock.Manual) {
	c := clock.NewManual(t0)
	return throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c}), c
}

// must returns v, or panics if err is not nil.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// everyone charges all requests to the key "everyone".
func everyone(p *throttler.Policy) middleware.Classifier {
	return middleware.Limit(p, middleware.KeyFunc(func(*http.Request) (string, bool) { return "everyone", true }))
}

// charging returns a Classifier with the same charges for every request.
func charging(charges ...throttler.Charge) middleware.Classifier {
	return middleware.ClassifierFunc(func(*http.Request) []throttler.Charge { return charges })
}

// anyToken accepts every token as its bearer's name.
func anyToken(_ *http.Request, token string) (string, bool) { return token, true }

func get(h http.Handler, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", "/", nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// expect checks the status and headers of a response. A value of "" means no header.
func expect(t *testing.T, w *httptest.ResponseRecorder, code int, header ...string) {
	t.Helper()
	if w.Code != code {
		t.Errorf("status %d, want %d; body %s", w.Code, code, w.Body)
	}
	for i := 0; i < len(header); i += 2 {
		if got := w.Header().Get(header[i]); got != header[i+1] {
			t.Errorf("%s is %q, want %q", header[i], got, header[i+1])
		}
	}
}

func TestHeadersOnEveryResponse(t *testing.T) {
	th, c := newThrottler()
	h := must(newMiddleware(th, everyone(policy("core", per(2, time.Minute))), nil))(status(204))
	// The window resets at 03:05:05.250. The next whole second is the first after
	// its end.
	reset := strconv.FormatInt(t0.Unix()+61, 10)
	expect(t, get(h), 204, "X-RateLimit-Limit", "2", "X-RateLimit-Remaining", "1", "X-RateLimit-Used", "1",
		"X-RateLimit-Reset", reset, "X-RateLimit-Resource", "core", "Retry-After", "")
	c.Advance(20 * time.Second)
	expect(t, get(h), 204, "X-RateLimit-Remaining", "0", "X-RateLimit-Used", "2", "X-RateLimit-Reset", reset)
	w := get(h)
	expect(t, w, 429, "X-RateLimit-Remaining", "0", "X-RateLimit-Used", "2", "X-RateLimit-Reset", reset, "X-RateLimit-Resource", "core",
		"Retry-After", "40", "Cache-Control", "no-store", "Content-Type", "application/json; charset=utf-8")
	c.Set(time.Unix(t0.Unix()+61, 0))
	expect(t, get(h), 204, "X-RateLimit-Used", "1")
}

func TestRetryAfterRoundsUpAndIsAtLeastOne(t *testing.T) {
	th, c := newThrottler()
	h := must(newMiddleware(th, everyone(policy("core", per(1, 1500*time.Millisecond))), nil))(status(200))
	get(h)
	expect(t, get(h), 429, "Retry-After", "2")
	c.Advance(1499 * time.Millisecond)
	expect(t, get(h), 429, "Retry-After", "1")
}

func TestTheLimitThatRefusedIsTold(t *testing.T) {
	th, _ := newThrottler()
	h := must(newMiddleware(th, everyone(policy("auth.createToken", per(20, time.Minute), per(5, 3*time.Second))), nil))(status(200))
	for range 5 {
		get(h)
	}
	w := get(h)
	expect(t, w, 429, "X-RateLimit-Limit", "5", "X-RateLimit-Used", "5", "Retry-After", "3")
	if body := w.Body.String(); !strings.Contains(body, "API rate limit exceeded: auth.createToken allows 5 per 3s. Try again in 3 s.") {
		t.Errorf("body %s", body)
	}
}

func TestRefusalBodies(t *testing.T) {
	th, _ := newThrottler()
	h := must(newMiddleware(th, everyone(policy("core", per(1, time.Minute))), &middleware.Options{Refuse: func(w http.ResponseWriter, r *http.Request, x middleware.Refusal) {
		x.DocumentationURL = "https://api.example.org/limits"
		x.Write(w, r)
	}}))(status(200))
	get(h)
	for _, test := range []struct {
		accept  string
		problem bool
	}{
		{"", false}, {"*/*", false}, {"application/json", false}, {"application/vnd.github+json", false},
		{"application/problem+json", true}, {"application/json;q=0.5, application/problem+json", true},
		{"application/json, application/problem+json;q=0.1", false}, {"application/problem+json;q=0", false},
	} {
		w := get(h, "Accept", test.accept)
		var body map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		if test.problem {
			if w.Header().Get("Content-Type") != "application/problem+json" || body["type"] != "https://iana.org/assignments/http-problem-types#quota-exceeded" ||
				body["status"] != 429.0 || body["violated-policies"].([]any)[0] != "core" {
				t.Errorf("Accept %q: %s %v", test.accept, w.Header().Get("Content-Type"), body)
			}
		} else if body["documentation_url"] != "https://api.example.org/limits" || !strings.HasPrefix(body["message"].(string), "API rate limit exceeded") {
			t.Errorf("Accept %q: %v", test.accept, body)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("HEAD", "/", nil))
	if w.Code != 429 || w.Body.Len() != 0 {
		t.Errorf("HEAD: status %d, %d bytes of body", w.Code, w.Body.Len())
	}
}

func TestRefusalOptions(t *testing.T) {
	th, _ := newThrottler()
	h := must(newMiddleware(th, everyone(policy("core", per(1, time.Minute))), &middleware.Options{
		ExposeHeaders: true,
		Refuse: func(w http.ResponseWriter, _ *http.Request, x middleware.Refusal) {
			w.WriteHeader(403)
			_, _ = io.WriteString(w, x.Decision.Binding().Policy.Name)
		},
	}))(status(200))
	get(h)
	w := get(h)
	expect(t, w, 403, "Retry-After", "60")
	if w.Body.String() != "core" || !strings.Contains(w.Header().Get("Access-Control-Expose-Headers"), "X-RateLimit-Remaining") {
		t.Errorf("body %q, header %v", w.Body, w.Header())
	}
}

func TestACostThatNeverFitsHasNoRetryAfter(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(5, time.Minute))
	h := must(newMiddleware(th, charging(throttler.Charge{Policy: p, Key: "k", Cost: 6}), nil))(status(200))
	expect(t, get(h), 429, "Retry-After", "", "X-RateLimit-Remaining", "5")
}

func TestNoChargesIsNotLimited(t *testing.T) {
	th, _ := newThrottler()
	h := must(newMiddleware(th, charging(), nil))(status(200))
	expect(t, get(h), 200, "X-RateLimit-Limit", "")
}

func Test304IsFree(t *testing.T) {
	th, _ := newThrottler()
	code := 200
	h := must(newMiddleware(th, everyone(policy("core", per(5, time.Minute))), nil))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) }))
	expect(t, get(h), 200, "X-RateLimit-Used", "1", "X-RateLimit-Remaining", "4")
	code = 304
	for range 100 {
		expect(t, get(h), 304, "X-RateLimit-Used", "1", "X-RateLimit-Remaining", "4", "X-RateLimit-Resource", "core")
	}
	code = 200
	expect(t, get(h), 200, "X-RateLimit-Used", "2")
}

func TestRefundIf(t *testing.T) {
	th, _ := newThrottler()
	code := 500
	h := must(newMiddleware(th, everyone(policy("core", per(5, time.Minute))), &middleware.Options{
		RefundIf: func(_ *http.Request, status int, header http.Header) bool {
			return status >= 500 || header.Get("X-Free") != ""
		},
	}))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code == 0 {
			w.Header().Set("X-Free", "yes") // and writes nothing: an outer handler may still send an error
			return
		}
		w.WriteHeader(code)
	}))
	expect(t, get(h), 500, "X-RateLimit-Used", "0")
	code = 0
	expect(t, get(h), 200, "X-RateLimit-Used", "1")
	code = 304
	expect(t, get(h), 304, "X-RateLimit-Used", "1") // free without RefundIf
}

func TestClientThatHasLeftIsRefunded(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(5, time.Minute))
	called := false
	h := must(newMiddleware(th, everyone(p), nil))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	if d, _ := th.Peek(t.Context(), p.Charge("everyone")); called || d.Limit(0).Used != 0 {
		t.Errorf("handler called: %v, used %d; want no and 0", called, d.Limit(0).Used)
	}
}

func TestRequestsInFlightCount(t *testing.T) {
	th, _ := newThrottler()
	release := make(chan struct{})
	h := must(newMiddleware(th, everyone(policy("core", per(5, time.Minute))), nil))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	var served, refused atomic.Int64
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if get(h).Code == 200 {
				served.Add(1)
			} else if refused.Add(1) == 5 {
				close(release)
			}
		})
	}
	all.Wait()
	if served.Load() != 5 {
		t.Errorf("%d of ten simultaneous requests were served, want 5", served.Load())
	}
}

// broken is a backend that does not answer in the server's time.
type broken struct{ driver.Backend }

func (broken) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	time.Sleep(r.ServerTime)
	return driver.Decision{}, errors.Join(throttler.ErrUnavailable, errors.New("dial 10.0.0.7"))
}

func (b broken) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	return b.Take(ctx, r)
}

func TestBackendThatDoesNotAnswer(t *testing.T) {
	th := throttler.New(broken{}, nil)
	classify := everyone(policy("core", per(5, time.Minute)))
	for _, test := range []struct {
		closed     bool
		code       int
		retryAfter string
	}{{false, 200, ""}, {true, 503, "1"}} {
		synctest.Test(t, func(t *testing.T) {
			var failed observe.Failed
			began := time.Now()
			h := must(middleware.New(th, classify, &middleware.Options{FailClosed: test.closed, Observer: onFailed{call: func(e observe.Failed) { failed = e }}}))(status(200))
			w := get(h)
			expect(t, w, test.code, "Retry-After", test.retryAfter, "X-RateLimit-Limit", "", "X-RateLimit-Remaining", "")
			if strings.Contains(w.Body.String(), "10.0.0.7") {
				t.Errorf("the client was told %s", w.Body)
			}
			if failed.Policy != "core" {
				t.Errorf("observed %+v", failed)
			}
			if took := time.Since(began); took != middleware.DefaultDeadline {
				t.Errorf("decided after %v, want the deadline of %v", took, middleware.DefaultDeadline)
			}
		})
	}
	expect(t, get(must(middleware.Status(th, classify, &middleware.StatusOptions{Observer: observe.Nothing{}}))), 503, "Retry-After", "1")
}

func TestHoldsUntilTheQueueHasMovedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := throttler.New(memorybackend.NewDefault(), nil) // the bubble's own time
		p := policy("queue", throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket, MaxWait: 5 * time.Second})
		var mu sync.Mutex
		var starts []time.Duration
		began := time.Now()
		h := must(newMiddleware(th, everyone(p), nil))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			starts = append(starts, time.Since(began))
		}))
		leaving, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { get(h) })
		}
		synctest.Wait()
		all.Go(func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(leaving))
		})
		synctest.Wait()
		leave() // it held the 51st place, which is free again
		synctest.Wait()
		all.Go(func() { get(h) })
		all.Wait()
		if len(starts) != 51 {
			t.Fatalf("%d requests were served, want 51", len(starts))
		}
		for i, start := range starts {
			if want := time.Duration(i) * 100 * time.Millisecond; start < want || start > want+time.Millisecond {
				t.Errorf("request %d started after %v, want %v", i, start, want)
			}
		}
	})
}

func TestSettle(t *testing.T) {
	th, _ := newThrottler()
	p := policy("rows", per(100, time.Minute))
	classify := charging(throttler.Charge{Policy: p, Key: "k", Cost: 10}).CostReported()
	var errs []string
	options := &middleware.Options{CostHeader: "X-Cost", Observer: onFailed{call: func(e observe.Failed) { errs = append(errs, e.Detail) }}}
	now := func() int64 {
		t.Helper()
		d, err := th.Peek(t.Context(), p.Charge("k"))
		if err != nil {
			t.Fatal(err)
		}
		return d.Limit(0).Used
	}
	serve := func(handler http.HandlerFunc) *httptest.ResponseRecorder {
		return get(must(newMiddleware(th, classify, options))(handler))
	}
	w := serve(func(w http.ResponseWriter, r *http.Request) { _ = middleware.SetCost(r, 3); w.WriteHeader(200) })
	expect(t, w, 200, "X-RateLimit-Used", "3")
	w = serve(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(200); _ = middleware.SetCost(r, 4) })
	expect(t, w, 200, "X-RateLimit-Used", "13") // already sent
	if now() != 7 {
		t.Errorf("used %d, want 3 + 4", now())
	}
	w = serve(func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Cost", "1") })
	expect(t, w, 200, "X-RateLimit-Used", "8", "X-Cost", "")
	serve(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "rows")
		w.Header().Set(http.TrailerPrefix+"X-Cost", "2")
	})
	if now() != 10 {
		t.Errorf("used %d after a trailer, want 10", now())
	}
	serve(func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Cost", "-5") })
	if now() != 20 || len(errs) != 1 || !strings.Contains(errs[0], `X-Cost is "-5"`) {
		t.Errorf("a cost of -5: used %d, told %q; want the estimate to stand", now(), errs)
	}
	w = serve(func(w http.ResponseWriter, r *http.Request) { _ = middleware.SetCost(r, 50); w.WriteHeader(304) })
	expect(t, w, 304, "X-RateLimit-Used", "20") // a refund takes precedence
	serve(func(w http.ResponseWriter, r *http.Request) { _ = middleware.SetCostOf(r, "rows", 200) })
	if now() != 220 {
		t.Errorf("used %d, want a debt of 120", now())
	}
	expect(t, serve(status(200)), 429, "X-RateLimit-Remaining", "0", "X-RateLimit-Used", "220")
}

func TestStatus(t *testing.T) {
	th, c := newThrottler()
	core, search := policy("core", per(60, time.Hour)), policy("search", per(30, time.Minute), per(5, time.Second))
	key := middleware.BearerToken(anyToken)
	get(must(newMiddleware(th, middleware.Limit(core, key), nil))(status(200)), "Authorization", "Bearer abc")
	c.Advance(time.Second)
	h := must(newStatus(th, middleware.All(middleware.Limit(core, key), middleware.Limit(search, key)), nil))
	for range 2 { // it charges nothing
		w := get(h, "Authorization", "Bearer abc")
		expect(t, w, 200, "Cache-Control", "no-store", "Content-Type", "application/json; charset=utf-8")
		now := strconv.FormatInt(t0.Unix()+2, 10)
		ofCore, ofSearch := `"limit":60,"used":1,"remaining":59,"reset":`+strconv.FormatInt(t0.Unix()+3601, 10), `"limit":5,"used":0,"remaining":5,"reset":`+now
		want := `{"resources":{"core":{` + ofCore + `,"limits":[{` + ofCore + `,"window":"1h","algorithm":"fixed-window"}]},` +
			`"search":{` + ofSearch + `,"limits":[{"limit":30,"used":0,"remaining":30,"reset":` + now + `,"window":"1m","algorithm":"fixed-window"},` +
			`{` + ofSearch + `,"window":"1s","algorithm":"fixed-window"}]}}}`
		if got := strings.TrimSpace(w.Body.String()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestWhatIsWrongIsAnErrorOfNew(t *testing.T) {
	th, _ := newThrottler()
	core := policy("core", per(5, time.Minute))
	classify := everyone(core)
	prefix := func(s string) middleware.Classifier {
		return middleware.Limit(core, middleware.FirstOf(middleware.ClientIP(&middleware.IPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix(s)}})))
	}
	user := middleware.Subject(func(*http.Request) (string, bool) { return "", false })
	for _, test := range []struct {
		classify middleware.Classifier
		options  middleware.Options
		want     string
	}{
		{middleware.Classifier{}, middleware.Options{}, "the classifier has no rules"},
		{middleware.All(), middleware.Options{}, "the classifier has no rules"},
		{middleware.All(classify, middleware.Classifier{}), middleware.Options{}, "the classifier has no rules"},
		{everyone(nil), middleware.Options{}, "policy is nil"},
		{everyone(policy("my api", per(5, time.Minute))), middleware.Options{}, `policy name is "my api"`},
		{everyone(policy("core", per(0, time.Minute))), middleware.Options{}, `policy "core": limit 0: quota is 0`},
		{middleware.ClassifierFunc(classify.Charges, policy("core")), middleware.Options{}, `policy "core" has 0 limits`},
		{middleware.All(classify, everyone(policy("core", per(6, time.Minute)))), middleware.Options{}, `two policies are named "core"`},
		{middleware.Limit(core, middleware.Key{}), middleware.Options{}, "a Key is the zero value"},
		{middleware.Limit(core, middleware.Join(middleware.Method(), middleware.Key{})), middleware.Options{}, "a Key is the zero value"},
		{middleware.Limit(core, middleware.ClientIP(&middleware.IPOptions{IPv6Prefix: 129})), middleware.Options{}, "IPv6Prefix is 129"},
		{prefix("0.0.0.0/0"), middleware.Options{}, "TrustedProxies[0] is 0.0.0.0/0, which trusts so much of the internet that clients could choose their address"},
		{prefix("128.0.0.0/1"), middleware.Options{}, "TrustedProxies[0] is 128.0.0.0/1"},
		{prefix("::/0"), middleware.Options{}, "TrustedProxies[0] is ::/0"},
		{prefix("::ffff:0:0/96"), middleware.Options{}, "TrustedProxies[0] is 0.0.0.0/0"},
		{middleware.IPv6Chain(core, core, core, &middleware.IPOptions{TrustedProxies: make([]netip.Prefix, 1)}), middleware.Options{}, "TrustedProxies[0] is not a valid prefix"},
		{classify, middleware.Options{Deadline: -1}, "Deadline is -1ns"},
		{classify.CostReported(), middleware.Options{CostHeader: "X Cost"}, `CostHeader is "X Cost"`},
		{middleware.All(slices.Repeat([]middleware.Classifier{classify}, 17)...), middleware.Options{}, "at least 17 charges"},
		{middleware.All(append(slices.Repeat([]middleware.Classifier{classify}, 17), charging())...), middleware.Options{}, "at least 17 charges"},
		{classify, middleware.Options{Deadline: time.Nanosecond}, "Deadline is 1ns"},
		{classify.CostReported(), middleware.Options{CostHeader: "x-ratelimit-used"}, "has another meaning"},
		{classify.NoRefund(), middleware.Options{RefundIf: func(*http.Request, int, http.Header) bool { return true }}, "every charge is marked NoRefund"},
		{middleware.Limit(core, middleware.FirstOf(middleware.ClientIP(nil), user)), middleware.Options{}, "FirstOf: key 0 is the address or Everyone, which each request has, so that key 1 would not be asked; put it last"},
		{middleware.Limit(core, middleware.FirstOf(user, middleware.Everyone(), middleware.ClientIP(nil))), middleware.Options{}, "FirstOf: key 1 is the address or Everyone"},
		{middleware.Limit(core, middleware.APIKey("X API Key", func(*http.Request, string) (string, bool) { return "", false })), middleware.Options{}, `APIKey: header is "X API Key"; it must be a header's name`},
		{middleware.Limit(policy("f", throttler.Limit{Quota: 3, Window: time.Minute, Algorithm: throttler.InFlight}), user).CostReported(), middleware.Options{}, `policy "f" is marked CostReported, and limits requests in flight alone`},
		{classify, middleware.Options{Dialect: middleware.Dialects{}}, "an empty list of Dialects"},
		{middleware.Limit(core, middleware.FirstOf()), middleware.Options{}, "FirstOf and Join need keys"},
		{classify, middleware.Options{CostHeader: "X-Cost"}, "no charge is marked CostReported"},
	} {
		_, err := middleware.New(th, test.classify, &test.options)
		if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got error %v; want one that wraps ErrInvalid and says %s", err, test.want)
		}
	}
	if _, err := middleware.Status(th, everyone(policy("my api")), nil); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("Status: error %v", err)
	}
	if _, err := middleware.Status(th, classify, &middleware.StatusOptions{Deadline: 1}); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("Status: error %v", err)
	}
}

func TestANilDependencyPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"New":            func() { must(newMiddleware(nil, everyone(policy("core", per(5, time.Minute))), nil)) },
		"Status":         func() { must(newStatus(nil, everyone(policy("core", per(5, time.Minute))), nil)) },
		"BearerToken":    func() { middleware.BearerToken(nil) },
		"APIKey":         func() { middleware.APIKey("X-Key", nil) },
		"Subject":        func() { middleware.Subject(nil) },
		"KeyFunc":        func() { middleware.KeyFunc(nil) },
		"ClassifierFunc": func() { middleware.ClassifierFunc(nil) },
		"the handler": func() {
			limit(throttler.New(memorybackend.NewDefault(), nil), policy("core", per(5, time.Minute)), nil)(nil)
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// If RefundIf panics, the response is left to the handler that recovers.
func TestARefundIfThatPanicsIsNoResponse(t *testing.T) {
	th, _ := newThrottler()
	p := policy("core", per(5, time.Minute))
	h := limit(th, p, &middleware.Options{RefundIf: func(_ *http.Request, status int, _ http.Header) bool {
		if status == 200 {
			panic("x")
		}
		return false
	}})(recoverer(status(200)))
	expect(t, get(h), 500, "X-RateLimit-Used", "1")
}
