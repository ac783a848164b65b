package middleware_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// Wirings that work and are probably mistakes are warned of, once.
func TestWiringsThatAreWarnedOf(t *testing.T) {
	core, other := policy("core", per(60, time.Hour)), policy("other", per(60, time.Hour))
	proxied := middleware.ClientIP(&middleware.IPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	type stack struct{ *throttler.Throttler }
	wrap := func(s stack, c middleware.Classifier) func(http.Handler) http.Handler {
		return must(newMiddleware(s.Throttler, c, nil))
	}
	for _, test := range []struct {
		name    string
		handler func(s stack) http.Handler
		header  []string
		want    string // of the warning, or "" for none
	}{
		{"a status behind the limit", func(s stack) http.Handler {
			return wrap(s, everyone(core))(must(newStatus(s.Throttler, everyone(core), nil)))
		}, nil, "requests for the status are charged"},
		{"a status behind another limit", func(s stack) http.Handler {
			return wrap(s, everyone(other))(must(newStatus(s.Throttler, everyone(core), nil)))
		}, nil, ""},
		{"one limit twice", func(s stack) http.Handler {
			return wrap(s, everyone(core))(wrap(s, everyone(core))(status(200)))
		}, nil, "core: two middlewares charge a request to one count"},
		{"one policy for two keys", func(s stack) http.Handler {
			return wrap(s, everyone(core))(wrap(s, middleware.Limit(core, middleware.Everyone()))(status(200)))
		}, nil, ""},
		{"one limit twice in All", func(s stack) http.Handler {
			return wrap(s, middleware.All(everyone(core), everyone(core)))(status(200))
		}, nil, "core: two parts of All charge a request to one count"},
		{"one policy for two keys in All", func(s stack) http.Handler {
			return wrap(s, middleware.All(everyone(core), middleware.Limit(core, middleware.Everyone())))(status(200))
		}, nil, ""},
		{"a fixed and a reported cost", func(s stack) http.Handler {
			return wrap(s, middleware.All(everyone(core), everyone(core).CostReported()))(status(200))
		}, nil, ""},
		{"a key with the port", func(s stack) http.Handler {
			return wrap(s, middleware.Limit(core, middleware.KeyFunc(func(r *http.Request) (string, bool) { return "ip:" + r.RemoteAddr, true })))(status(200))
		}, nil, "keys contain the client's port"},
		{"an address without its port", func(s stack) http.Handler {
			h := wrap(s, middleware.Limit(core, middleware.KeyFunc(func(r *http.Request) (string, bool) { return "ip:" + r.RemoteAddr, true })))(status(200))
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.RemoteAddr, _, _ = strings.Cut(r.RemoteAddr, ":")
				h.ServeHTTP(w, r)
			})
		}, nil, ""},
		{"a proxy with another header", func(s stack) http.Handler {
			return wrap(s, middleware.Limit(core, proxied))(status(200))
		}, []string{"X-Real-IP", "203.0.113.7"}, "requests come from a trusted proxy without X-Forwarded-For"},
		{"a proxy's own check", func(s stack) http.Handler { return wrap(s, middleware.Limit(core, proxied))(status(200)) }, nil, ""},
		{"a proxy with both headers", func(s stack) http.Handler {
			return wrap(s, middleware.Limit(core, proxied))(status(200))
		}, []string{"X-Real-IP", "203.0.113.7", "X-Forwarded-For", "203.0.113.7"}, ""},
	} {
		seen := new(warnings)
		h := test.handler(stack{throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: seen})})
		for range 2 {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "10.0.0.1:99"
			for i := 0; i < len(test.header); i += 2 {
				r.Header.Set(test.header[i], test.header[i+1])
			}
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		if got := seen.take(); test.want == "" && len(got) > 0 || test.want != "" && (len(got) != 1 || !strings.Contains(got[0], test.want)) {
			t.Errorf("%s: the warnings are %q; want %q", test.name, got, test.want)
		}
	}
}

// A charge of a ClassifierFunc without a Cost is one of 1 unit, and nothing to warn of.
func TestChargesWithoutACost(t *testing.T) {
	seen := new(warnings)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: seen})
	core := policy("core", per(60, time.Hour))
	h := must(newMiddleware(th, middleware.ClassifierFunc(func(*http.Request) []throttler.Charge {
		return []throttler.Charge{{Policy: core, Key: "k"}}
	}, core), nil))(status(200))
	for range 20 {
		get(h)
	}
	if got, used := seen.take(), get(h).Header().Get("X-Ratelimit-Used"); len(got) > 0 || used != "21" {
		t.Errorf("the warnings are %q, and %s units are used; want none, and 21", got, used)
	}
}

// Requests that are charged one token each are warned of, unless a handler reports a cost.
func TestRequestsOfOneToken(t *testing.T) {
	for _, reports := range []bool{false, true} {
		seen := new(warnings)
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: seen})
		tokens := policy("tokens", per(60_000, time.Hour))
		tokens.Unit = quota.OutputTokens
		h := must(newMiddleware(th, everyone(tokens), nil))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if reports {
				if err := middleware.SetCostOf(r, "tokens", 5); err != nil {
					t.Error(err)
				}
			}
		}))
		for range 20 {
			get(h)
		}
		if got := seen.take(); reports && len(got) > 0 || !reports && (len(got) != 1 || !strings.HasPrefix(got[0], "tokens: the limits are in output-tokens, and each request is charged 1 of them")) {
			t.Errorf("a handler reports: %t; the warnings are %q", reports, got)
		}
	}
}

// Limits that can never refuse are warned of when they are used first.
func TestLimitsThatNeverRefuse(t *testing.T) {
	seen := new(warnings)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: seen})
	slow := policy("slow", per(10, time.Second), per(600, time.Minute))
	for range 2 {
		must(newMiddleware(th, everyone(slow), nil))
	}
	if got := seen.take(); len(got) != 1 || !strings.HasPrefix(got[0], `slow: policy "slow": limit 1, 600 per 1m0s (fixed-window), can never refuse`) {
		t.Errorf("the warnings are %q", got)
	}
}

// CostReported without a report is warned of, unless one of the first handlers reports, or takes the
// receipt for somebody else to settle.
func TestCostsThatNoHandlerReports(t *testing.T) {
	const want = "rows: charges are marked CostReported, and handlers report no cost, so that each request costs its estimate (handlers call SetCost, or set the header that Options.CostHeader names; otherwise, CostReported should be left out)"
	for _, test := range []struct {
		name    string
		options *middleware.Options
		handler http.HandlerFunc
		want    []string
	}{
		{"no report", nil, func(http.ResponseWriter, *http.Request) {}, []string{want}},
		{"a report for another policy", nil, func(_ http.ResponseWriter, r *http.Request) { _ = middleware.SetCostOf(r, "row", 2) }, []string{want}},
		{"a report", nil, func(_ http.ResponseWriter, r *http.Request) { _ = middleware.SetCost(r, 2) }, nil},
		{"a late report", nil, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			_ = middleware.SetCost(r, 2)
		}, nil},
		{"a header", &middleware.Options{CostHeader: "X-Cost"}, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Cost", "2") }, nil},
		{"a header that is not set", &middleware.Options{CostHeader: "X-Cost"}, status(200).ServeHTTP, []string{want}},
		{"a receipt", nil, func(_ http.ResponseWriter, r *http.Request) { must(middleware.Receipt(r)) }, nil},
		{"304s", nil, status(304).ServeHTTP, nil},
		{"in the handler, no Take", nil, status(200).ServeHTTP, []string{": handlers behind InHandler do not call Take, so that requests are not limited (handlers call Take; or Limit, in the place of InHandler, charges each request)"}},
		{"in the handler", nil, func(w http.ResponseWriter, r *http.Request) {
			middleware.Take(w, r, policy("none", per(1, time.Hour)).Charge("k"))
		}, nil},
	} {
		seen := new(warnings)
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: seen, ReceiptKey: make([]byte, 16)})
		rows := middleware.All(everyone(policy("core", per(60, time.Hour))), everyone(policy("rows", per(60, time.Hour))).CostReported())
		if strings.HasPrefix(test.name, "in the handler") {
			rows = middleware.InHandler()
		}
		h := must(newMiddleware(th, rows, test.options))(test.handler)
		for range 9 {
			get(h)
		}
		if got := seen.take(); len(got) > 0 {
			t.Errorf("%s: after 9 requests %q", test.name, got)
		}
		for range 11 {
			get(h)
		}
		if got := seen.take(); !slices.Equal(got, test.want) {
			t.Errorf("%s: the warnings are %q; want %q", test.name, got, test.want)
		}
	}
}

// A RefundIf that refunds 1000 requests is warned of, unless one of them, or another charge, is kept.
func TestRefundsOfEachRequest(t *testing.T) {
	always := func(*http.Request, int, http.Header) bool { return true }
	core := everyone(policy("core", per(60, time.Hour)))
	requests := 0
	for _, test := range []struct {
		name     string
		classify middleware.Classifier
		refundIf func(*http.Request, int, http.Header) bool
		handler  http.Handler
		warns    bool
	}{
		{"each", core, always, status(200), true},
		{"all but the last", core, func(*http.Request, int, http.Header) bool { return requests < 1000 }, status(200), false},
		{"a 304 is free without it", core, always, status(304), false},
		{"an empty response keeps its charge", core, always, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if requests != 3 {
				w.WriteHeader(200)
			}
		}), false},
		{"a charge that is not refunded", middleware.All(core, everyone(policy("other", per(2000, time.Hour))).NoRefund()), always, status(200), false},
	} {
		th, _ := newThrottler()
		seen := new(warnings)
		h := must(newMiddleware(th, test.classify, &middleware.Options{RefundIf: test.refundIf, Observer: seen}))(test.handler)
		for requests = 1; requests <= 999; requests++ {
			get(h)
		}
		if got := seen.take(); len(got) > 0 {
			t.Errorf("%s: after 999 requests %q", test.name, got)
		}
		for ; requests <= 2100; requests++ {
			get(h)
		}
		const want = ": Options.RefundIf has refunded each of 1000 requests, so that nothing is limited (RefundIf reports true only for responses that are free, such as those of a status from 500 on)"
		if got := seen.take(); test.warns != (len(got) == 1 && got[0] == want) || !test.warns && len(got) > 0 {
			t.Errorf("%s: the warnings are %q", test.name, got)
		}
	}
}

// A table that has overrides under a misspelled name is warned of, once.
func TestOverridesOfAMisspelledPolicy(t *testing.T) {
	var table policies.Table
	if err := table.Source("code").Edit(func(e *policies.Edit) {
		for _, name := range []string{"corr", "cor", "tier1", "export", "core2"} {
			e.Override(policies.Override{Policy: name, Key: "everyone", Blocked: true})
		}
	}); err != nil {
		t.Fatal(err)
	}
	seen := new(warnings)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &table, Observer: seen})
	h := must(newMiddleware(th, middleware.All(everyone(policy("core", per(60, time.Hour))), everyone(policy("tier2", per(60, time.Hour)))), nil))(status(200))
	for range 2 {
		expect(t, get(h), 200)
	}
	const text = "the table has a policy, overrides or plans of a name that no request is charged under (did you mean core?)"
	got := seen.take()
	if slices.Sort(got); !slices.Equal(got, []string{"cor: " + text, "corr: " + text}) {
		t.Errorf("the warnings are %q", got)
	}
}

// A policy of a table is warned of if its name is nearly the name of a policy which the table lacks, unless
// it may be a plan or a parent.
func TestMisspelledPoliciesOfATable(t *testing.T) {
	per60 := []throttler.Limit{per(60, time.Hour)}
	for _, test := range []struct {
		name   string
		change func(e *policies.Edit)
		want   string // the misspelled name, or ""
	}{
		{"another letter", func(e *policies.Edit) { e.Set(policy("Core", per60...)) }, "Core"},
		{"a letter less", func(e *policies.Edit) { e.Set(policy("cor", per60...)) }, "cor"},
		{"the name itself, too", func(e *policies.Edit) { e.Set(policy("cor", per60...)); e.Set(policy("core", per60...)) }, ""},
		{"a digit", func(e *policies.Edit) { e.Set(policy("core2", per60...)) }, ""},
		{"a plan", func(e *policies.Edit) {
			e.Set(policy("cores", per60...))
			e.Plan("core", func(context.Context, string) string { return "cores" })
		}, ""},
		{"overrides, too", func(e *policies.Edit) {
			e.Set(policy("cor", per60...))
			e.Override(policies.Override{Policy: "cor", Key: "everyone", Blocked: true})
		}, "cor"},
		{"a parent", func(e *policies.Edit) {
			child := policy("search", per60...)
			child.Parent, child.ParentKey = "cores", "all"
			e.Set(policy("cores", per60...))
			e.Set(child)
		}, ""},
	} {
		var table policies.Table
		if err := table.Source("code").Edit(test.change); err != nil {
			t.Fatal(err)
		}
		seen := new(warnings)
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &table, Observer: seen})
		h := must(newMiddleware(th, everyone(policy("core", per60...)), nil))(status(200))
		for range 2 {
			expect(t, get(h), 200)
		}
		got := seen.take()
		if test.want == "" && len(got) > 0 || test.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], test.want+": the table has a policy")) {
			t.Errorf("%s: the warnings are %q", test.name, got)
		}
	}
}

// A policy of a table is warned of next to plans of another source that has the policies of all its
// plans, and not if it may be one of the plans.
func TestMisspelledPoliciesNextToPlans(t *testing.T) {
	per60 := []throttler.Limit{per(60, time.Hour)}
	for _, planned := range []bool{false, true} {
		var table policies.Table
		err := table.Source("plans").Edit(func(e *policies.Edit) {
			e.Plan("core", func(context.Context, string) string { return "" })
			if planned {
				e.Set(policy("core.pro", per60...))
			}
		})
		if err == nil {
			err = table.Source("file").Edit(func(e *policies.Edit) { e.Set(policy("cor", per60...)) })
		}
		if err != nil {
			t.Fatal(err)
		}
		seen := new(warnings)
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &table, Observer: seen})
		expect(t, get(must(newMiddleware(th, everyone(policy("core", per60...)), nil))(status(200))), 200)
		if got := seen.take(); planned != (len(got) == 1 && strings.HasPrefix(got[0], "cor: the table has a policy")) {
			t.Errorf("the source of the plans has their policies: %t; the warnings are %q", planned, got)
		}
	}
}

// A setting of a policy that needs a table is an error without one.
func TestPoliciesThatNeedATable(t *testing.T) {
	child, ending := policy("core", per(60, time.Hour)), policy("search", per(60, time.Hour))
	child.Parent, child.ParentKey = "orgs", "acme"
	ending.Until = t0
	var table policies.Table
	tables := map[*policies.Table][]string{
		nil:    {"has the parent \"orgs\", and the throttler has no table of policies", "has an end, and is not in the throttler's table"},
		&table: {"", "has an end, and is not in the throttler's table"},
	}
	for of, wants := range tables {
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: of})
		for i, p := range []*throttler.Policy{child, ending} {
			if _, err := middleware.New(th, everyone(p), nil); wants[i] == "" && err != nil || wants[i] != "" && (err == nil || !strings.Contains(err.Error(), wants[i])) {
				t.Errorf("%s, a table %t: %v; want %q", p.Name, of != nil, err, wants[i])
			}
		}
	}
}

func TestQuotasOfAnIPv6ChainMustRise(t *testing.T) {
	th, _ := newThrottler()
	_, err := middleware.New(th, middleware.IPv6Chain(policy("p48", per(3, time.Second)), policy("p56", per(3, time.Second)), policy("p64", per(9, time.Second)), nil), nil)
	if err == nil || !strings.Contains(err.Error(), `policy "p56" allows 3 per 1s (fixed-window), and "p64", of a part of its addresses, 9 per 1s (fixed-window), which none can reach; quotas must rise from p64 to p48`) {
		t.Errorf("got %v", err)
	}
}
