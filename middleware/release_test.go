package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weir-go/weir/middleware"
)

// The decisions of inner middlewares that have returned are kept until the request ends: for
// SetCostOf, which names a policy further out, and for the headers of later refusals.

func TestSetCostOfAPolicyFurtherOut(t *testing.T) {
	th, _ := newThrottler()
	outer, inner := policy("outer", per(100, time.Minute)), policy("inner", per(100, time.Minute))
	var kept *http.Request
	behind := limit(th, inner, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "rows")
		kept = r
	}))
	get(limit(th, outer, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		behind.ServeHTTP(w, r)
		if err := middleware.SetCostOf(kept, "outer", 50); err != nil {
			t.Error(err)
		}
	})))
	expectUsed(t, th, outer, 50)
}

func TestPartsOfAStreamThatAreRefused(t *testing.T) {
	th, _ := newThrottler()
	a, a2, b := policy("a", per(100, time.Minute)), policy("a2", per(100, time.Minute)), policy("b", per(1, time.Minute))
	both := must(newMiddleware(th, middleware.All(everyone(a), everyone(a2)), nil))(hello)
	few := limit(th, b, nil)(hello)
	outer := limit(th, policy("outer", per(100, time.Minute)), nil)
	get(outer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "[")
		var last *httptest.ResponseRecorder
		for _, part := range []http.Handler{both, few, few} {
			last = httptest.NewRecorder()
			part.ServeHTTP(last, r)
		}
		if last.Code != http.StatusTooManyRequests || last.Header().Get("X-RateLimit-Resource") != "b" {
			t.Errorf("the last part has %d and %v; want a refusal with the headers of policy b", last.Code, last.Header())
		}
	})))
}
