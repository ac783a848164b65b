package middleware_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

var helloHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })

// stillThrottler returns a throttler with a stopped clock, so that the examples
// print the same each time.
func stillThrottler() *throttler.Throttler {
	clk := clock.NewManual(time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC))
	return throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clk})
}

// printGet gets path from h, and prints the status and some of the headers.
func printGet(h http.Handler, path, authorization string) {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	header := w.Result().Header
	fmt.Println(w.Code, header.Get("X-RateLimit-Resource"), "used", header.Get("X-RateLimit-Used"), "of", header.Get("X-RateLimit-Limit"))
	if after := header.Get("Retry-After"); after != "" {
		fmt.Println("retry after", after, "s")
	}
}

// Each client address gets two requests an hour.
func Example() {
	t := stillThrottler()
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	limit, err := middleware.New(t, middleware.Limit(core, middleware.ClientIP(nil)), nil)
	if err != nil {
		log.Fatal(err)
	}
	h := limit(helloHandler)
	printGet(h, "/hello", "")
	printGet(h, "/hello", "")
	printGet(h, "/hello", "")
	// Output:
	// 200 core used 1 of 2
	// 200 core used 2 of 2
	// 429 core used 2 of 2
	// retry after 3600 s
}

// Requests with a valid token are charged to its user. All others are charged to
// the client's address, so an invented token does not get a fresh quota.
func ExampleFirstOf() {
	t := stillThrottler()
	users := map[string]string{"demo-token": "alice"} // replace this with your check of tokens
	verify := func(_ *http.Request, token string) (user string, ok bool) {
		user, ok = users[token]
		return user, ok
	}
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	caller := middleware.FirstOf(middleware.BearerToken(verify), middleware.ClientIP(nil))
	limit, err := middleware.New(t, middleware.Limit(core, caller), nil)
	if err != nil {
		log.Fatal(err)
	}
	h := limit(helloHandler)
	printGet(h, "/hello", "Bearer demo-token")
	printGet(h, "/hello", "")
	printGet(h, "/hello", "Bearer invented")
	// Output:
	// 200 core used 1 of 60
	// 200 core used 1 of 60
	// 200 core used 2 of 60
}

// Two limits on one caller are one decision. A 304 is refunded by the first
// limit, but counts against the second, which headers don't report.
func ExampleAll() {
	t := stillThrottler()
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	secondary := &throttler.Policy{Name: "secondary", Hidden: true, Limits: []throttler.Limit{{Quota: 2, Window: time.Minute}}}
	caller := middleware.ClientIP(nil)
	both := middleware.All(middleware.Limit(core, caller), middleware.Limit(secondary, caller).NoRefund())

	limit, err := middleware.New(t, both, nil)
	if err != nil {
		log.Fatal(err)
	}
	notModified := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
	for _, h := range []http.Handler{helloHandler, notModified, helloHandler} {
		w := httptest.NewRecorder()
		limit(h).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/hello", nil))
		fmt.Println(w.Code, w.Header().Get("X-RateLimit-Resource"), "left", w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 200 core left 59
	// 304 core left 59
	// 429 core left 59
}

// A login is charged to the account and the address, so one address can't try many accounts.
func ExampleAll_independentKeys() {
	t := stillThrottler()
	accounts := &throttler.Policy{Name: "accounts", Limits: []throttler.Limit{{Quota: 5, Window: time.Minute}}}
	addresses := &throttler.Policy{Name: "addresses", Limits: []throttler.Limit{{Quota: 2, Window: time.Minute}}}
	account := middleware.KeyFunc(func(r *http.Request) (string, bool) { return "account:" + r.FormValue("account"), true })
	address := middleware.ClientIP(nil)
	login := middleware.All(middleware.Limit(addresses, address), middleware.Limit(accounts, account))

	limit, err := middleware.New(t, login, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"alice", "bob", "carol"} {
		w := httptest.NewRecorder()
		limit(helloHandler).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/login?account="+name, nil))
		fmt.Println(name, w.Code, w.Header().Get("X-RateLimit-Resource"))
	}
	// Output:
	// alice 200 addresses
	// bob 200 addresses
	// carol 429 addresses
}

// The users of an organization are counted within it.
func ExampleClassifier_Within() {
	t := stillThrottler()
	orgs := &throttler.Policy{Name: "orgs", Limits: []throttler.Limit{{Quota: 3, Window: time.Minute}}}
	users := &throttler.Policy{Name: "users", Limits: []throttler.Limit{{Quota: 2, Window: time.Minute}}}
	org := middleware.KeyFunc(func(r *http.Request) (string, bool) { return "org:" + r.FormValue("org"), true })
	user := middleware.KeyFunc(func(r *http.Request) (string, bool) { return "user:" + r.FormValue("user"), true })
	feed := middleware.All(middleware.Limit(orgs, org), middleware.Limit(users, user).Within(org))

	limit, err := middleware.New(t, feed, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, query := range []string{"org=acme&user=alice", "org=acme&user=alice", "org=acme&user=alice", "org=other&user=alice", "org=acme&user=bob", "org=acme&user=carol"} {
		w := httptest.NewRecorder()
		limit(helloHandler).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/feed?"+query, nil))
		fmt.Println(query, w.Code, w.Header().Get("X-RateLimit-Resource"), w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// org=acme&user=alice 200 users 1
	// org=acme&user=alice 200 users 0
	// org=acme&user=alice 429 users 0
	// org=other&user=alice 200 users 1
	// org=acme&user=bob 200 orgs 0
	// org=acme&user=carol 429 orgs 0
}

// account is put into the request's context by an authenticating middleware.
type account struct{ id, plan string }

type accountKey struct{}

func accountOf(r *http.Request) account {
	a, _ := r.Context().Value(accountKey{}).(account)
	return a
}

// The plan of the account selects the policy, and the route the cost.
func ExampleClassifierFunc() {
	t := stillThrottler()
	free := &throttler.Policy{Name: "api-free", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	pro := &throttler.Policy{Name: "api-pro", Limits: []throttler.Limit{{Quota: 5000, Window: time.Hour}}}

	byPlan := middleware.ClassifierFunc(func(r *http.Request) []throttler.Charge {
		caller := accountOf(r)
		charge := free.Charge(caller.id)
		if caller.plan == "pro" {
			charge = pro.Charge(caller.id)
		}
		if r.URL.Path == "/export" {
			charge.Cost = 20
		}
		return []throttler.Charge{charge}
	}, free, pro)

	limit, err := middleware.New(t, byPlan, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, caller := range []account{{"alice", "free"}, {"bob", "pro"}} {
		authenticated := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			limit(helloHandler).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accountKey{}, caller)))
		})
		printGet(authenticated, "/hello", "")
		printGet(authenticated, "/export", "")
	}
	// Output:
	// 200 api-free used 1 of 60
	// 200 api-free used 21 of 60
	// 200 api-pro used 1 of 5000
	// 200 api-pro used 21 of 5000
}

// A limit on all callers together runs before the limit on each caller. A request
// that the inner limit refuses costs nothing in the outer one.
func ExampleNew_stacked() {
	t := stillThrottler()
	global := &throttler.Policy{Name: "global", Limits: []throttler.Limit{{Quota: 1000, Window: time.Second}}}
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}

	together, err := middleware.New(t, middleware.Limit(global, middleware.Everyone()), nil)
	if err != nil {
		log.Fatal(err)
	}
	each, err := middleware.New(t, middleware.Limit(core, middleware.ClientIP(nil)), nil)
	if err != nil {
		log.Fatal(err)
	}
	h := together(each(helloHandler))
	printGet(h, "/hello", "")
	printGet(h, "/hello", "")
	// Output:
	// 200 core used 1 of 1
	// 429 core used 1 of 1
	// retry after 3600 s
}

// A client reads its limits without being charged.
func ExampleStatus() {
	t := stillThrottler()
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	perClient := middleware.Limit(core, middleware.ClientIP(nil))
	limit, err := middleware.New(t, perClient, nil)
	if err != nil {
		log.Fatal(err)
	}
	status, err := middleware.Status(t, perClient, nil)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /hello", limit(helloHandler))
	mux.Handle("GET /rate_limit", status)

	printGet(mux, "/hello", "")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/rate_limit", nil))
	fmt.Println(w.Body)
	// Output:
	// 200 core used 1 of 60
	// {"resources":{"core":{"limit":60,"used":1,"remaining":59,"reset":1893502800,"limits":[{"limit":60,"used":1,"remaining":59,"reset":1893502800,"window":"1h","algorithm":"fixed-window"}]}}}
}

// The handler knows the cost of a request when the work is done. If called before
// the response begins, SetCost also corrects the headers.
func ExampleSetCost() {
	t := stillThrottler()
	rows := &throttler.Policy{Name: "rows", Limits: []throttler.Limit{{Quota: 1000, Window: time.Minute}}}
	perClient := middleware.Limit(rows, middleware.ClientIP(nil)).CostReported()
	limit, err := middleware.New(t, perClient, nil)
	if err != nil {
		log.Fatal(err)
	}
	query := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const found = 42 // rows that the query returned
		if err := middleware.SetCost(r, found); err != nil {
			log.Print(err)
		}
		fmt.Fprintln(w, found, "rows")
	})
	printGet(limit(query), "/query", "")
	// Output: 200 rows used 42 of 1000
}

// A stricter policy is tried out: it is evaluated and reported, but not enforced.
func ExampleOptions_dryRun() {
	t := stillThrottler()
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	stricter := &throttler.Policy{Name: "core-dry-run", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	caller := middleware.ClientIP(nil)

	refused := 0
	try, err := middleware.New(t, middleware.Limit(stricter, caller), &middleware.Options{
		DryRun: func(_ *http.Request, d throttler.Decision) {
			if !d.Allowed {
				refused++ // in a server: an atomic counter, or a metric
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	limit, err := middleware.New(t, middleware.Limit(core, caller), nil)
	if err != nil {
		log.Fatal(err)
	}
	h := try(limit(helloHandler))
	printGet(h, "/hello", "")
	printGet(h, "/hello", "")
	fmt.Println("the stricter policy would have refused", refused)
	// Output:
	// 200 core used 1 of 60
	// 200 core used 2 of 60
	// the stricter policy would have refused 1
}

// xLeft is a dialect of one header, X-Left.
type xLeft struct{}

func (xLeft) Names() []string { return []string{"X-Left"} }

func (xLeft) Write(h http.Header, r *middleware.Report) {
	h.Set("X-Left", strconv.FormatInt(r.Binding().Remaining, 10))
}

// A program can define a dialect, and use it with others.
func ExampleDialect() {
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	t := throttler.New(memorybackend.NewDefault(), nil)
	limit, err := middleware.New(t, middleware.Limit(core, middleware.Everyone()), &middleware.Options{
		Dialect: middleware.Dialects{xLeft{}, middleware.OpenAI{}},
	})
	if err != nil {
		panic(err)
	}
	w := httptest.NewRecorder()
	limit(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Header().Get("X-Left"), w.Header().Get("x-ratelimit-remaining-requests"))
	// Output: 59 59
}

func ExampleRefusal() {
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour}}}
	refuse := func(w http.ResponseWriter, r *http.Request, x middleware.Refusal) {
		if x.Decision.Blocked {
			x.Status = http.StatusForbidden
		}
		x.DocumentationURL = "https://api.example.org/limits"
		x.Write(w, r)
	}
	limit, err := middleware.New(stillThrottler(), middleware.Limit(core, middleware.Everyone()), &middleware.Options{Refuse: refuse})
	if err != nil {
		log.Fatal(err)
	}
	h := limit(helloHandler)
	for range 2 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 hello
	// 429 {"message":"API rate limit exceeded: core allows 1 per 1h. Try again in 3600 s.","documentation_url":"https://api.example.org/limits"}
}
