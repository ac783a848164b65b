package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// A client that sends requests at 0.95 of the rate, and pauses at Remaining 0 until
// Reset as go-github does, gets most of its quota under each algorithm. When Reset did
// not name the next unit, it got 26 of 60 of a sliding window, 35 of a sliding log.
func TestAClientThatWaitsForResetGetsItsQuota(t *testing.T) {
	const requests, units, window, atLeast = 60, 12, 6 * time.Second, 54
	for _, l := range []throttler.Limit{
		{Algorithm: throttler.FixedWindow},
		{Algorithm: throttler.FixedWindow, Aligned: true},
		{Algorithm: throttler.SlidingWindow},
		{Algorithm: throttler.SlidingLog},
		{Algorithm: throttler.TokenBucket},
		{Algorithm: throttler.LeakyBucket},
	} {
		l.Quota, l.Window = units, window
		for _, startsAt := range []time.Duration{0, 250 * time.Millisecond, 700 * time.Millisecond} {
			now := clock.NewManual(time.Unix(1_900_000_000, 0).Add(startsAt))
			th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: now})
			h := limit(th, policy("core", l), nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			served, refused, reset := 0, 0, time.Time{}
			begin := now.Now()
			for i := range requests {
				now.Set(begin.Add(time.Duration(i) * window * 100 / (95 * units)))
				if now.Now().Before(reset) {
					continue
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				if w.Code == http.StatusOK {
					served++
				} else {
					refused++
				}
				if w.Header().Get("X-RateLimit-Remaining") == "0" {
					reset = time.Unix(must(strconv.ParseInt(w.Header().Get("X-RateLimit-Reset"), 10, 64)), 0)
				}
			}
			if served < atLeast || refused > 0 {
				t.Errorf("%v, from %v into a second: %d of %d served, %d refused; want %d or more, and none refused", l, startsAt, served, requests, refused, atLeast)
			}
		}
	}
}

// At Remaining 0, all times that a client reads are when one more unit fits; otherwise,
// when the whole quota is free.
func TestResetAtRemaining0IsTheNextUnits(t *testing.T) {
	begin := time.Unix(1_900_000_000, 0)
	per10s := func(a quota.Algorithm) []throttler.Limit {
		return []throttler.Limit{{Quota: 3, Window: 10 * time.Second, Algorithm: a}}
	}
	for _, test := range []struct {
		name                   string
		limits                 []throttler.Limit
		second, third, refused time.Duration // Reset, after begin, of requests at 1, 2 and 3 s
	}{
		{"fixed window", per10s(throttler.FixedWindow), 10 * time.Second, 10 * time.Second, 10 * time.Second},
		{"sliding window", per10s(throttler.SlidingWindow), 20 * time.Second, 14 * time.Second, 14 * time.Second},
		{"sliding log", per10s(throttler.SlidingLog), 11 * time.Second, 10 * time.Second, 10 * time.Second},
		{"token bucket", per10s(throttler.TokenBucket), 7 * time.Second, 4 * time.Second, 4 * time.Second},
		// The bucket is full later than the window ends, but has its next unit earlier.
		{"two limits", []throttler.Limit{
			{Quota: 3, Window: 5 * time.Minute},
			{Quota: 30, Window: time.Hour, Algorithm: throttler.TokenBucket, Burst: 3},
		}, 5 * time.Minute, 5 * time.Minute, 5 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := clock.NewManual(begin)
			th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: now})
			p := policy("core", test.limits...)
			status := must(newStatus(th, everyone(p), nil))
			h := limit(th, p, &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			get := func(h http.Handler) *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				return w
			}
			get(h)
			for i, reset := range []time.Duration{test.second, test.third, test.refused} {
				now.Advance(time.Second)
				w := get(h)
				unix := strconv.FormatInt(begin.Add(reset).Unix(), 10)
				expectHeaders(t, w.Header(), "X-RateLimit-Remaining", strconv.Itoa(max(1-i, 0)), "X-RateLimit-Reset", unix)
				left := strconv.Itoa(int((begin.Add(reset).Sub(now.Now())) / time.Second))
				if fields := w.Header().Get("RateLimit"); !strings.Contains(fields+",", ";t="+left+",") {
					t.Errorf("RateLimit: %s; want t=%s", fields, left)
				}
				if w.Code == http.StatusTooManyRequests {
					expectHeaders(t, w.Header(), "Retry-After", left)
				}
				if body := get(status).Body.String(); !strings.Contains(body, `"reset":`+unix+",") {
					t.Errorf("the status is %s; want reset %s", body, unix)
				}
			}
		})
	}
}
