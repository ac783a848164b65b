package middleware_test

import (
	"fmt"
	"log"
	"net/http"
	"time"

	chimiddleware "github.com/go-chi/chi/v5/middleware"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// A whole main: 60 requests per hour to each bearer of a token or, without
// one, to each address.
func Example() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })

	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	t := throttler.New(memorybackend.New(nil), nil)
	who := middleware.FirstOf(middleware.BearerToken(), middleware.ClientIP(nil))
	limit := middleware.New(t, middleware.Limit(core, who), nil)

	http.Handle("GET /hello", chimiddleware.ClientIPFromRemoteAddr(limit(handler)))
	http.Handle("GET /rate_limit", chimiddleware.ClientIPFromRemoteAddr(
		middleware.Status(t, middleware.Limit(core, who), nil)))
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}
