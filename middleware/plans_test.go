package middleware_test

import (
	"context"
	"regexp"
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

var resets = regexp.MustCompile(`"reset":\d+`)

// The status shows each caller's plan with all its limits. A blocked caller gets the status
// code of blocks.
func TestPlansOfRequests(t *testing.T) {
	var table policies.Table
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &table, Clock: clock.NewManual(t0)})
	pro := &quota.Policy{Name: "core-pro", Limits: []quota.Limit{per(100, time.Minute), {Algorithm: throttler.TokenBucket, Quota: 5000, Window: time.Hour}}}
	bucket := &quota.Policy{Name: "core", Unit: quota.Tokens, Limits: []quota.Limit{{Algorithm: throttler.TokenBucket, Quota: 60, Window: time.Hour}}}
	if err := table.Source("code").Edit(func(e *policies.Edit) {
		e.Set(pro)
		e.Plan("core", func(_ context.Context, key string) string { return strings.TrimPrefix(key, "subject:") })
	}); err != nil {
		t.Fatal(err)
	}
	classify := middleware.Limit(bucket, middleware.APIKey("X-Key", anyToken))
	h := must(newMiddleware(th, classify, &middleware.Options{Refuse: withStatus(403)}))(status(200))
	rates := must(newStatus(th, classify, nil))
	for plan, want := range map[string]struct {
		status int
		limit  string
		body   string
	}{
		"core": {200, "60", `{"resources":{"core":{"limit":60,"used":1,"remaining":59,"reset":R,"unit":"tokens","limits":[` +
			`{"limit":60,"used":1,"remaining":59,"reset":R,"window":"1h","algorithm":"token-bucket"}]}}}`},
		"core-pro": {200, "100", `{"resources":{"core":{"limit":100,"used":1,"remaining":99,"reset":R,"unit":"tokens","limits":[` +
			`{"limit":100,"used":1,"remaining":99,"reset":R,"window":"1m","algorithm":"fixed-window"},` +
			`{"limit":5000,"used":1,"remaining":4999,"reset":R,"window":"1h","algorithm":"token-bucket"}]}}}`},
		policies.Unlimited: {200, "", `{"resources":{},"unlimited":["core"]}`},
		policies.Blocked: {403, "", `{"resources":{"core":{"limit":60,"used":60,"remaining":0,"reset":R,"unit":"tokens","blocked":true,"limits":[` +
			`{"limit":60,"used":60,"remaining":0,"reset":R,"window":"1h","algorithm":"token-bucket"}]}}}`},
	} {
		expect(t, get(h, "X-Key", plan), want.status, "X-RateLimit-Limit", want.limit)
		body := resets.ReplaceAllString(get(rates, "X-Key", plan).Body.String(), `"reset":R`)
		if strings.TrimSpace(body) != want.body {
			t.Errorf("%s: %s, want %s", plan, body, want.body)
		}
	}
}

// Status lists a policy that does not limit the key as unlimited, whether or not it still counts,
// and even if the program defined it so. The other policies are resources, even next to a blocked
// one.
func TestStatusOfUnlimitedKeys(t *testing.T) {
	var table policies.Table
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &table, Clock: clock.NewManual(t0)})
	window := &quota.Policy{Name: "window", Limits: []quota.Limit{per(60, time.Hour), {Algorithm: throttler.TokenBucket, Quota: 9, Window: time.Second}}}
	none := &quota.Policy{Name: "none", Limits: []quota.Limit{per(quota.MaxQuota, time.Hour)}}
	if err := table.Source("code").Edit(func(e *policies.Edit) {
		e.Plan("window", func(_ context.Context, key string) string { return strings.TrimPrefix(key, "subject:") })
	}); err != nil {
		t.Fatal(err)
	}
	key := middleware.APIKey("X-Key", anyToken)
	classify := middleware.All(middleware.Limit(window, key), middleware.Limit(none, key))
	h, rates := must(newMiddleware(th, classify, nil))(status(200)), must(newStatus(th, classify, nil))
	for plan, want := range map[string]string{
		"window": `{"resources":{"window":{"limit":9,"used":1,"remaining":8,"reset":R,"limits":[` +
			`{"limit":60,"used":1,"remaining":59,"reset":R,"window":"1h","algorithm":"fixed-window"},` +
			`{"limit":9,"used":1,"remaining":8,"reset":R,"window":"1s","algorithm":"token-bucket"}]}},"unlimited":["none"]}`,
		policies.Unlimited: `{"resources":{},"unlimited":["window","none"]}`,
		policies.Blocked: `{"resources":{"window":{"limit":60,"used":60,"remaining":0,"reset":R,"blocked":true,"limits":[` +
			`{"limit":60,"used":60,"remaining":0,"reset":R,"window":"1h","algorithm":"fixed-window"},` +
			`{"limit":9,"used":9,"remaining":0,"reset":R,"window":"1s","algorithm":"token-bucket"}]}},"unlimited":["none"]}`,
	} {
		code := 200
		if plan == policies.Blocked {
			code = 429
		}
		expect(t, get(h, "X-Key", plan), code)
		body := resets.ReplaceAllString(get(rates, "X-Key", plan).Body.String(), `"reset":R`)
		if strings.TrimSpace(body) != want {
			t.Errorf("%s: %s, want %s", plan, body, want)
		}
	}
}
