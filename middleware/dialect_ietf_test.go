package middleware_test

import (
	"math"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

func TestRateLimitFields(t *testing.T) {
	th, _ := newThrottler()
	options := &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}}
	h := must(newMiddleware(th, everyone(policy("core", per(60, time.Hour))), options))(status(200))
	expect(t, get(h), 200, "RateLimit-Policy", `"core";q=60;w=3600`, "RateLimit", `"core";r=59;t=3600`)
	several := policy("auth.createToken", per(20, time.Minute), per(5, 3*time.Second), per(9, 250*time.Millisecond),
		throttler.Limit{Quota: 30, Window: time.Minute, Algorithm: throttler.SlidingWindow})
	h = must(newMiddleware(th, everyone(several), options))(status(200))
	expect(t, get(h), 200,
		"RateLimit-Policy", `"auth.createToken-1m-fixed-window";q=20;w=60, "auth.createToken-3s";q=5;w=3, "auth.createToken-250ms";q=9, "auth.createToken-1m-sliding-window";q=30;w=60`,
		"RateLimit", `"auth.createToken-1m-fixed-window";r=19;t=60, "auth.createToken-3s";r=4;t=3, "auth.createToken-250ms";r=8;t=1, "auth.createToken-1m-sliding-window";r=29;t=115`)
}

// A calendar's windows vary in length, so w is left out.
func TestRateLimitFieldsOfACalendar(t *testing.T) {
	th, c := newThrottler()
	c.Set(time.Date(2030, time.February, 27, 0, 0, 0, 0, time.UTC))
	p := policy("core", throttler.Limit{Quota: 3, Calendar: quota.Calendar{Period: quota.Day}}, throttler.Limit{Quota: 1, Calendar: quota.Calendar{Period: quota.Month, Day: 31}})
	h := must(newMiddleware(th, everyone(p), &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}}))(status(200))
	expect(t, get(h), 200, "X-RateLimit-Reset", "1898467200", "RateLimit-Policy", `"core-day";q=3, "core-month";q=1`, "RateLimit", `"core-day";r=2;t=86400, "core-month";r=0;t=86400`)
	w := get(h)
	expect(t, w, 429, "Retry-After", "86400")
	if want := `{"message":"API rate limit exceeded: core allows 1 per month. Try again in 86400 s."}` + "\n"; w.Body.String() != want {
		t.Errorf("the body is %s, want %s", w.Body, want)
	}
}

// For any policy, a parser of structured fields can read the fields.
func FuzzRateLimitFields(f *testing.F) {
	f.Add("core", int64(60), int64(3600_000))
	f.Add("a:b/c_d-e.f", int64(math.MaxInt64), int64(1))
	f.Add("x", int64(1)<<53, int64(366*24*3600_000))
	f.Fuzz(func(t *testing.T, name string, quota, windowMS int64) {
		p := policy(name, per(quota, time.Duration(windowMS)*time.Millisecond))
		if p.Validate() != nil {
			return
		}
		th, _ := newThrottler()
		h := must(newMiddleware(th, everyone(p), &middleware.Options{Dialect: middleware.Dialects{middleware.GitHub{}, middleware.IETF{}}}))(status(200))
		header := get(h).Header()
		policies, err := httpsfv.UnmarshalList(header.Values("RateLimit-Policy"))
		if err != nil {
			t.Fatalf("%q: %v", header.Get("RateLimit-Policy"), err)
		}
		limits, err := httpsfv.UnmarshalList(header.Values("RateLimit"))
		if err != nil {
			t.Fatalf("%q: %v", header.Get("RateLimit"), err)
		}
		item := limits[0].(httpsfv.Item)
		if item.Value != name || policies[0].(httpsfv.Item).Value != name {
			t.Errorf("policy %q reads back as %v and %v", name, item.Value, policies[0])
		}
		if r, _ := item.Params.Get("r"); r != min(quota-1, 999_999_999_999_999) {
			t.Errorf("r is %v of a quota of %d", r, quota)
		}
	})
}
