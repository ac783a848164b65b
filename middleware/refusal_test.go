package middleware_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

// Bodies are built by hand. They must equal the output of encoding/json.
func TestTheTextOfRefusals(t *testing.T) {
	const url = `https://api.example.org/limits?a="b"&c=\d`
	const message = `API rate limit exceeded: a:b/c-d_1.2 allows 2 per 1m30s. Try again in 90 s.`
	const never = `API rate limit exceeded: this request costs 6, and few allows no more than 5 at once.`
	const head = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"`
	some, few := policy("a:b/c-d_1.2", per(2, 90*time.Second), per(100, time.Hour)), policy("few", per(5, time.Minute))
	both := []throttler.Charge{{Policy: some, Key: "k", Cost: 3}, {Policy: few, Key: "k", Cost: 6}}
	for _, test := range []struct {
		charges          []throttler.Charge
		url              string
		accept           string
		served           int
		contentType      string
		retryAfter, want string
	}{
		{[]throttler.Charge{some.Charge("k")}, "", "", 2, "application/json; charset=utf-8", "90", `{"message":"` + message + `"}`},
		{[]throttler.Charge{some.Charge("k")}, url, "*/*", 2, "application/json; charset=utf-8", "90",
			`{"message":"` + message + `","documentation_url":"https://api.example.org/limits?a=\"b\"\u0026c=\\d"}`},
		{[]throttler.Charge{some.Charge("k")}, url, "application/problem+json", 2, "application/problem+json", "90", head + message + `","violated-policies":["a:b/c-d_1.2"]}`},
		{both[1:], "", "", 0, "application/json; charset=utf-8", "", `{"message":"` + never + `"}`},
		{both, "", "Application/Problem+JSON", 0, "application/problem+json", "",
			head + `API rate limit exceeded: this request costs 3, and a:b/c-d_1.2 allows no more than 2 at once.","violated-policies":["a:b/c-d_1.2","few"]}`},
	} {
		th, _ := newThrottler()
		h := must(newMiddleware(th, charging(test.charges...), &middleware.Options{Refuse: func(w http.ResponseWriter, r *http.Request, x middleware.Refusal) {
			x.DocumentationURL = test.url
			x.Write(w, r)
		}}))(status(200))
		for range test.served {
			expect(t, get(h), 200)
		}
		w := get(h, "Accept", test.accept)
		expect(t, w, 429, "Content-Type", test.contentType, "Retry-After", test.retryAfter, "Cache-Control", "no-store")
		if got := w.Body.String(); got != test.want+"\n" {
			t.Errorf("the body is %s, want %s", got, test.want)
		}
	}
}

// If a bucket's debt lasts beyond the last valid time, there is no retry time. The text
// must not claim that the cost is too high.
func TestADebtBeyondTheLastInstant(t *testing.T) {
	p := policy("yearly", throttler.Limit{Algorithm: throttler.TokenBucket, Quota: 1, Window: 366 * 24 * time.Hour})
	th, _ := newThrottler()
	d, err := th.Take(t.Context(), p.Charge("k"))
	if err != nil {
		t.Fatal(err)
	}
	if d, err = th.Settle(t.Context(), d, 1_000_000); err != nil || !d.RetryAt().IsZero() {
		t.Fatalf("settled: %v, %v", d, err)
	}
	w := get(must(newMiddleware(th, charging(p.Charge("k")), nil))(status(200)))
	expect(t, w, 429, "Retry-After", "")
	if got, want := w.Body.String(), `{"message":"API rate limit exceeded: yearly allows 1 per 366d. It is in debt beyond the year 9999."}`+"\n"; got != want {
		t.Errorf("the body is %s, want %s", got, want)
	}
}

// On the wire, a refusal has its own length, even if an outer handler has set
// another, and the same length for HEAD.
func TestRefusalsHaveTheirLength(t *testing.T) {
	bothProtocols(t, func(t *testing.T, http2 bool) {
		th, _ := newThrottler()
		inner := limit(th, policy("inner", per(1, time.Minute)), nil)(status(200))
		outer := limit(th, policy("outer", per(100, time.Minute)), nil)(inner)
		s := start(t, http2, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "9999")
			if r.URL.Path == "/stacked" {
				outer.ServeHTTP(w, r)
				return
			}
			inner.ServeHTTP(w, r)
		}), nil)
		get(inner)
		for _, path := range []string{"/", "/stacked"} {
			res, body := s.get(t, path)
			if res.StatusCode != 429 || res.ContentLength != int64(len(body)) || len(body) == 0 {
				t.Errorf("GET %s: status %d, Content-Length %d, want the body's, %d", path, res.StatusCode, res.ContentLength, len(body))
			}
			head, _ := s.do(t, must(http.NewRequestWithContext(t.Context(), "HEAD", s.URL+path, http.NoBody)))
			if head.StatusCode != 429 || head.ContentLength != res.ContentLength {
				t.Errorf("HEAD %s: status %d, Content-Length %d, want GET's, %d", path, head.StatusCode, head.ContentLength, res.ContentLength)
			}
		}
	})
}

// Responses don't share header values: a change to one doesn't affect another.
func TestResponsesShareNoValues(t *testing.T) {
	th, _ := newThrottler()
	h := limit(th, policy("core", per(1, time.Minute)), nil)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	for range 3 {
		w := get(h)
		for name, values := range w.Header() {
			if values[0] == "spoiled" {
				t.Errorf("%s has the value that another response was given", name)
			}
			values[0] = "spoiled"
			_ = append(values, "spoiled")
		}
		for name, values := range w.Header() {
			if len(values) != 1 || values[0] != "spoiled" {
				t.Errorf("%s is %q", name, values)
			}
		}
	}
}

// A blocked key gets the status of a refusal, the end of the block if it has one, and no rate
// headers, since no count was read.
func TestBlockedKeys(t *testing.T) {
	p := policy("core", per(5, time.Minute))
	for _, test := range []struct {
		until            time.Duration
		retryAfter, text string
	}{
		{90 * time.Second, "90", "core is blocked for this client. Try again in 90 s."},
		{0, "", "core is blocked for this client."},
	} {
		var table policies.Table
		c := clock.NewManual(t0)
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c, Policies: &table})
		h := must(newMiddleware(th, charging(p.Charge("k")), &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}}))(status(200))
		expect(t, get(h), 200, "X-Ratelimit-Remaining", "4")
		o := policies.Override{Policy: "core", Key: "k", Blocked: true}
		if test.until > 0 {
			o.Until = c.Now().Add(test.until)
		}
		if err := table.Source("code").Edit(func(e *policies.Edit) { e.Override(o) }); err != nil {
			t.Fatal(err)
		}
		w := get(h)
		expect(t, w, 429, "Retry-After", test.retryAfter, "X-Ratelimit-Limit", "", "X-Ratelimit-Remaining", "", "Ratelimit", "")
		if got, want := w.Body.String(), `{"message":"API rate limit exceeded: `+test.text+`"}`+"\n"; got != want {
			t.Errorf("the body is %s, want %s", got, want)
		}
	}
}

// If the table makes a policy a queue, its requests wait.
func TestAPolicyThatBecomesAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table policies.Table
		c := clock.NewManual(t0)
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c, Policies: &table})
		if err := table.Source("code").Edit(func(e *policies.Edit) {
			e.Set(policy("core", throttler.Limit{Quota: 1, Window: time.Minute, Algorithm: throttler.LeakyBucket, Burst: 3}))
		}); err != nil {
			t.Fatal(err)
		}
		served := 0
		h := limit(th, policy("core", per(5, time.Minute)), nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
		get(h)
		go get(h)
		synctest.Wait()
		if served != 1 {
			t.Errorf("%d requests were served; the second has to wait for a minute", served)
		}
		c.Advance(time.Minute)
		synctest.Wait()
		if served != 2 {
			t.Errorf("%d requests were served after a minute; want both", served)
		}
	})
}

// A program may write any text, and may call Write on a Refusal that it made.
func TestRefusalsOfAProgram(t *testing.T) {
	w := httptest.NewRecorder()
	middleware.Refusal{Status: 403, Message: "<a> \"b\"\n"}.Write(w, httptest.NewRequest("GET", "/", nil))
	expect(t, w, 403, "Content-Type", "application/json; charset=utf-8")
	if got, want := w.Body.String(), `{"message":"\u003ca\u003e \"b\"\n"}`+"\n"; got != want {
		t.Errorf("the body is %s, want %s", got, want)
	}
}
