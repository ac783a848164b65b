package middleware_test

import (
	"fmt"
	"log"
	"net/http"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// A whole main: 60 requests per hour to each user with a valid token, and to
// each address for requests without one.
func Example() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })

	users := map[string]string{"demo-token": "alice"} // stands for your own check of tokens
	verify := func(_ *http.Request, token string) (user string, ok bool) {
		user, ok = users[token]
		return user, ok
	}

	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	who := middleware.FirstOf(middleware.BearerToken(verify), middleware.ClientIP(nil))
	perCaller := middleware.Limit(core, who)

	t := throttler.New(memorybackend.New(nil), nil)
	limit, err := middleware.New(t, perCaller, nil)
	if err != nil {
		log.Fatal(err)
	}
	status, err := middleware.Status(t, perCaller, nil)
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("GET /hello", limit(handler))
	http.Handle("GET /rate_limit", status)
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}

// The package comment's first program.
func ExampleNew() {
	handler := http.NotFoundHandler()

	t := throttler.New(memorybackend.New(nil), nil)
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	limit, err := middleware.New(t, middleware.Limit(core, middleware.ClientIP(nil)), nil)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", limit(handler)))
}

// A limit on all callers together, in front of one on each.
func ExampleNew_stacked() {
	handler := http.NotFoundHandler()
	t := throttler.New(memorybackend.New(nil), nil)
	global := &throttler.Policy{Name: "global", Limits: []throttler.Limit{{Quota: 1000, Window: time.Second}}}
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	who := middleware.ClientIP(nil)

	together, err := middleware.New(t, middleware.Limit(global, middleware.Everyone()), nil)
	if err != nil {
		log.Fatal(err)
	}
	each, err := middleware.New(t, middleware.Limit(core, who), nil)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", together(each(handler))))
}
