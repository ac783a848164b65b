package middleware_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// The headers of a charge in each mode, for a limit of 10 with some units used, and the used
// units when its handler has returned.
func TestModesInHeaders(t *testing.T) {
	for _, test := range []struct {
		mode       quota.Mode
		cost, used int64
		status     int
		remaining  string
		after      int64
	}{
		{quota.Check, 3, 7, 200, "3", 7},
		{quota.Check, 4, 7, 429, "3", 7},
		{quota.Check, 1, 10, 429, "0", 10},
		{quota.Record, 2, 7, 200, "1", 9},
		{quota.Record, 5, 7, 200, "0", 12},
		{quota.Record, 5, 10, 200, "0", 15},
		{quota.AtMost, 2, 7, 200, "1", 9},
		{quota.AtMost, 99, 7, 200, "0", 10},
		{quota.AtMost, 99, 10, 429, "0", 10},
		{quota.Capped, 99, 0, 200, "0", 10},
		{quota.Capped, 99, 7, 429, "3", 7},
	} {
		t.Run(test.mode.String()+strconv.FormatInt(test.cost, 10), func(t *testing.T) {
			th, _ := newThrottler()
			p := policy("p", per(10, time.Minute))
			c := throttler.Charge{Policy: p, Key: "everyone", Cost: test.cost, Mode: test.mode}
			if test.used > 0 {
				if _, err := th.Take(t.Context(), throttler.Charge{Policy: p, Key: "everyone", Cost: test.used}); err != nil {
					t.Fatal(err)
				}
			}
			w := get(must(newMiddleware(th, charging(c), nil))(ok))
			if w.Code != test.status {
				t.Errorf("status %d; want %d", w.Code, test.status)
			}
			expectHeaders(t, w.Header(), "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", test.remaining)
			expectUsed(t, th, p, test.after)
		})
	}
}

// A checked charge is settled to the cost that the handler reports. Charges without a reported
// cost stay, but a free response refunds them.
func TestModesAreSettled(t *testing.T) {
	th, _ := newThrottler()
	requests, tokens, batch := policy("requests", per(10, time.Minute)), policy("tokens", per(100, time.Minute)), policy("batch", per(8, time.Minute))
	in := func(m quota.Mode, p *throttler.Policy, cost int64) throttler.Charge {
		return throttler.Charge{Policy: p, Key: "everyone", Cost: cost, Mode: m}
	}
	wrap := must(newMiddleware(th, middleware.All(
		charging(in(quota.Record, requests, 2), in(quota.AtMost, batch, 50)).NoRefund(),
		charging(in(quota.Check, tokens, 90)).CostReported(),
	), nil))
	if err := report(t, wrap, func(r *http.Request) error { return middleware.SetCost(r, 133) }); err != nil {
		t.Error(err)
	}
	expectUsed(t, th, requests, 2)
	expectUsed(t, th, tokens, 133)
	expectUsed(t, th, batch, 8)
	if w := get(wrap(ok)); w.Code != 429 {
		t.Errorf("with tokens in debt: status %d", w.Code)
	}
	expectUsed(t, th, requests, 2)

	free := must(newMiddleware(th, middleware.All(charging(in(quota.Record, requests, 2)).NoRefund(), charging(in(quota.Record, tokens, 5))), nil))
	get(free(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })))
	expectUsed(t, th, requests, 4)
	expectUsed(t, th, tokens, 133)
}

var ok = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
