package middleware_test

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

func unit(p *throttler.Policy, u quota.Unit) *throttler.Policy {
	p.Unit = u
	return p
}

// dialects are the headers of each dialect after a request with four policies, after a
// refusal, and after a 304. All policies are charged 1.
var dialects = []struct {
	name             string
	dialect          middleware.Dialect
	allowed, refused []string // names and values; after a 304, nothing is used
	free             []string
}{
	{"GitHub", nil,
		[]string{"X-RateLimit-Limit", "1", "X-RateLimit-Remaining", "0", "X-RateLimit-Used", "1", "X-RateLimit-Reset", strconv.FormatInt(t0.Unix()+91, 10), "X-RateLimit-Resource", "out"},
		[]string{"X-RateLimit-Limit", "1", "X-RateLimit-Remaining", "0", "X-RateLimit-Used", "1", "X-RateLimit-Resource", "out"},
		[]string{"X-RateLimit-Remaining", "1", "X-RateLimit-Used", "0"}},
	{"IETF", middleware.IETF{},
		[]string{"X-RateLimit-Limit", "", "RateLimit-Policy", `"core";q=5;w=60, "all";q=9;qu="tokens";w=3600, "in";q=7;qu="input-tokens";w=60, "out";q=1;qu="output-tokens";w=90`, "RateLimit", `"core";r=4;t=60, "all";r=8;t=3600, "in";r=6;t=60, "out";r=0;t=90`},
		[]string{"X-RateLimit-Limit", "", "RateLimit", `"core";r=4;t=60, "all";r=8;t=3600, "in";r=6;t=60, "out";r=0;t=90`},
		[]string{"RateLimit", `"core";r=5;t=60, "all";r=9;t=3600, "in";r=7;t=60, "out";r=1;t=90`}},
	{"draft 3", middleware.Draft3{},
		[]string{"X-RateLimit-Limit", "", "RateLimit-Limit", "1", "RateLimit-Remaining", "0", "RateLimit-Reset", "90"},
		[]string{"RateLimit-Limit", "1", "RateLimit-Remaining", "0", "RateLimit-Reset", "90"},
		[]string{"RateLimit-Limit", "1", "RateLimit-Remaining", "1", "RateLimit-Reset", "90"}},
	{"OpenAI", middleware.OpenAI{},
		[]string{"X-RateLimit-Limit", "", "x-ratelimit-limit-requests", "5", "x-ratelimit-remaining-requests", "4", "x-ratelimit-reset-requests", "1m0s",
			"x-ratelimit-limit-tokens", "1", "x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "1m30s"},
		[]string{"x-ratelimit-remaining-requests", "4", "x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "1m30s"},
		[]string{"x-ratelimit-remaining-requests", "5", "x-ratelimit-reset-requests", "1m0s", "x-ratelimit-remaining-tokens", "1"}},
	{"Anthropic", middleware.Anthropic{},
		[]string{"X-RateLimit-Limit", "", "anthropic-ratelimit-requests-limit", "5", "anthropic-ratelimit-requests-remaining", "4", "anthropic-ratelimit-requests-reset", rfc3339(60),
			"anthropic-ratelimit-tokens-limit", "1", "anthropic-ratelimit-tokens-remaining", "0", "anthropic-ratelimit-tokens-reset", rfc3339(90),
			"anthropic-ratelimit-input-tokens-limit", "7", "anthropic-ratelimit-input-tokens-remaining", "6", "anthropic-ratelimit-input-tokens-reset", rfc3339(60),
			"anthropic-ratelimit-output-tokens-limit", "1", "anthropic-ratelimit-output-tokens-remaining", "0", "anthropic-ratelimit-output-tokens-reset", rfc3339(90)},
		[]string{"anthropic-ratelimit-requests-remaining", "4", "anthropic-ratelimit-tokens-remaining", "0", "anthropic-ratelimit-output-tokens-reset", rfc3339(90)},
		[]string{"anthropic-ratelimit-requests-remaining", "5", "anthropic-ratelimit-output-tokens-remaining", "1", "anthropic-ratelimit-output-tokens-reset", rfc3339(90)}},
	{"none", middleware.NoHeaders{}, nil, nil, nil},
	{"of a program", &ours{}, []string{"X-Left", "0"}, []string{"X-Left", "0"}, []string{"X-Left", "1"}},
}

// rfc3339 returns t0 plus seconds, rounded up.
func rfc3339(seconds int64) string {
	return time.Unix(t0.Unix()+seconds+1, 0).UTC().Format(time.RFC3339)
}

// ours is a dialect that package middleware does not know.
type ours struct{ _ []int }

func (*ours) Names() []string { return []string{"x-LEFT"} }

func (*ours) Write(h http.Header, r *middleware.Report) {
	s := r.Binding()
	h.Set("X-Left", strconv.FormatInt(s.Remaining, 10))
}

// namesOf returns the names of d's headers.
func namesOf(d middleware.Dialect) []string {
	if d == nil {
		d = middleware.GitHub{}
	}
	return d.Names()
}

// alone checks that h has no headers of dialects other than want.
func alone(t *testing.T, h http.Header, want middleware.Dialect) {
	t.Helper()
	allowed := strings.ToLower(strings.Join(namesOf(want), " ") + " ")
	for _, of := range dialects {
		for _, name := range namesOf(of.dialect) {
			if h.Get(name) != "" && !strings.Contains(allowed, strings.ToLower(name)+" ") {
				t.Errorf("%s is %q; want none", name, h.Get(name))
			}
		}
	}
}

func TestDialects(t *testing.T) {
	for _, test := range dialects {
		t.Run(test.name, func(t *testing.T) {
			four := middleware.All(everyone(policy("core", per(5, time.Minute))), everyone(unit(policy("all", per(9, time.Hour)), quota.Tokens)),
				everyone(unit(policy("in", per(7, time.Minute)), quota.InputTokens)), everyone(unit(policy("out", per(1, 90*time.Second)), quota.OutputTokens)))
			served := func(code int) http.Handler {
				th, _ := newThrottler()
				return must(newMiddleware(th, four, &middleware.Options{Dialect: test.dialect, ExposeHeaders: true}))(status(code))
			}
			h := served(200)
			w := get(h)
			expect(t, w, 200, test.allowed...)
			alone(t, w.Header(), test.dialect)
			if want := strings.Join(append(namesOf(test.dialect), "Retry-After"), ", "); w.Header().Get("Access-Control-Expose-Headers") != want {
				t.Errorf("exposed are %q, want %q", w.Header().Get("Access-Control-Expose-Headers"), want)
			}
			w = get(h)
			expect(t, w, 429, append(test.refused, "Retry-After", "90")...)
			alone(t, w.Header(), test.dialect)
			expect(t, get(served(304)), 304, test.free...)
		})
	}
}

// Values that a handler, or a server behind it, sets under a dialect's names are removed
// from early hints, headers and trailers.
func TestDialectsReplaceHeadersOfOthers(t *testing.T) {
	for _, test := range dialects {
		t.Run(test.name, func(t *testing.T) {
			names := namesOf(test.dialect)
			liar := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				lie := func(prefix string) {
					for _, name := range append(names, "X-RateLimit-Remaining", "RateLimit") {
						w.Header()[prefix+strings.ToLower(name)] = []string{"lie"}
					}
				}
				lie("")
				w.Header().Set("X-Other", "kept")
				w.WriteHeader(http.StatusEarlyHints)
				lie("")
				w.WriteHeader(200)
				_ = http.NewResponseController(w).Flush()
				lie(http.TrailerPrefix)
				w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
			})
			th, _ := newThrottler()
			s := start(t, false, limit(th, policy("core", per(1, time.Minute)), &middleware.Options{Dialect: test.dialect})(liar), nil)
			var hints http.Header
			res, _ := s.do(t, must(http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { hints = http.Header(h); return nil },
			}), "GET", s.URL, nil)))
			expectHeaders(t, hints, "X-Other", "kept")
			alone(t, hints, middleware.NoHeaders{})
			expectHeaders(t, res.Header, "X-Other", "kept")
			alone(t, res.Header, test.dialect)
			for name, values := range res.Header {
				if strings.Contains(strings.Join(values, " "), "lie") {
					t.Errorf("%s is %q", name, values)
				}
			}
			if len(res.Trailer) != 1 || res.Trailer.Get("X-Sum") != "1" {
				t.Errorf("trailers %v, want X-Sum alone", res.Trailer)
			}
		})
	}
}

// The dialects of all middlewares that a request passes report the limits of all.
func TestNestedDialects(t *testing.T) {
	th, _ := newThrottler()
	outer := limit(th, policy("outer", per(9, time.Minute)), nil)
	inner := limit(th, policy("inner", per(1, time.Minute)), &middleware.Options{Dialect: middleware.Dialects{middleware.OpenAI{}, middleware.IETF{}}})
	h := outer(inner(status(200)))
	for _, code := range []int{200, 429} {
		expect(t, get(h), code, "X-RateLimit-Resource", "inner", "X-RateLimit-Remaining", "0", "x-ratelimit-limit-requests", "1", "x-ratelimit-remaining-requests", "0",
			"RateLimit", `"outer";r=8;t=60, "inner";r=0;t=60`)
	}
	// A refusal further out has the dialects of the middlewares that the request reached.
	h = inner(outer(status(200)))
	expect(t, get(h), 429, "X-RateLimit-Resource", "", "RateLimit", `"inner";r=0;t=60`)
}

// No middleware reports a limit with NoHeaders, neither in headers nor in bodies.
func TestNoHeadersSaysNothing(t *testing.T) {
	for _, accept := range []string{"application/json", "application/problem+json"} {
		th, _ := newThrottler()
		outer := limit(th, policy("outer", per(9, time.Minute)), nil)
		login := limit(th, policy("login", per(1, time.Minute)), &middleware.Options{Dialect: middleware.NoHeaders{}})
		both := outer(login(status(200)))
		expect(t, get(both), 200, "X-RateLimit-Resource", "outer", "X-RateLimit-Remaining", "8", "Retry-After", "")
		w := get(both, "Accept", accept)
		expect(t, w, 429, "X-RateLimit-Resource", "outer", "X-RateLimit-Remaining", "8", "Retry-After", "60")
		if body := w.Body.String(); strings.Contains(body, "login") || !strings.Contains(body, `"API rate limit exceeded. Try again in 60 s."`) {
			t.Errorf("body %s", body)
		}
		w = get(login(outer(status(200))), "Accept", accept)
		expect(t, w, 429, "X-RateLimit-Resource", "", "Retry-After", "60")
		alone(t, w.Header(), middleware.NoHeaders{})
	}
}

// A limit that is not reported does not hide other limits while it is undecided.
func TestNoHeadersWithoutADecision(t *testing.T) {
	log, _ := newLog()
	th, _ := newThrottler()
	outer := limit(th, policy("outer", per(9, time.Minute)), nil)
	login := limit(throttler.New(down{}, nil), policy("login", per(1, time.Minute)), &middleware.Options{Dialect: middleware.NoHeaders{}, Observer: log})
	expect(t, get(outer(login(status(200)))), 200, "X-RateLimit-Resource", "outer", "X-RateLimit-Remaining", "8")
}

// slicy is a dialect that can't be compared. misnamed has an invalid header name.
type (
	slicy struct {
		middleware.GitHub
		_ []int
	}
	misnamed struct{ middleware.GitHub }
)

func (misnamed) Names() []string { return []string{"X Left"} }

func TestWrongDialects(t *testing.T) {
	th, _ := newThrottler()
	for want, d := range map[string]middleware.Dialect{
		"which cannot be compared; it must be a pointer": slicy{},
		"nil among its Dialects":                         middleware.Dialects{nil},
		`a header of the name "X Left"`:                  middleware.Dialects{middleware.GitHub{}, misnamed{}},
	} {
		_, err := middleware.New(th, everyone(policy("core", per(1, time.Minute))), &middleware.Options{Dialect: d})
		if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: error %v, want an ErrInvalid with %q", d, err, want)
		}
	}
	_, err := middleware.New(th, everyone(policy("core", per(1, time.Minute))).CostReported(), &middleware.Options{Dialect: middleware.Draft3{}, CostHeader: "ratelimit-reset"})
	if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "which has another meaning") {
		t.Errorf("a cost in a header of the dialect: error %v", err)
	}
}

// Retry-After with jitter is never early, and at most 3 % late. The body has the same value.
func TestRetryAfterJitter(t *testing.T) {
	th, _ := newThrottler()
	h := limit(th, policy("core", per(1, 24*time.Hour)), &middleware.Options{RetryAfterJitter: 0.03})(status(200))
	get(h)
	seen := map[int]bool{}
	for range 100 {
		w := get(h)
		wait, err := strconv.Atoi(w.Header().Get("Retry-After"))
		if err != nil || wait < 86400 || wait > 88992 || !strings.Contains(w.Body.String(), "Try again in "+strconv.Itoa(wait)+" s.") {
			t.Fatalf("Retry-After is %q, body %s", w.Header().Get("Retry-After"), w.Body)
		}
		seen[wait] = true
	}
	if len(seen) < 50 {
		t.Errorf("%d values in 100 refusals", len(seen))
	}
	for _, jitter := range []float64{-0.01, 0.031, math.NaN()} {
		_, err := middleware.New(th, everyone(policy("core", per(1, time.Minute))), &middleware.Options{RetryAfterJitter: jitter})
		if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), "it must be from 0 to 0.03") {
			t.Errorf("a jitter of %v: error %v", jitter, err)
		}
	}
}
