package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// overloaded is a backend of an overloaded process.
type overloaded struct{ driver.Backend }

func (overloaded) Take(context.Context, driver.Request) (driver.Decision, error) {
	return driver.Decision{}, &driver.UnavailableError{Backend: "b", Shard: "a", Err: fmt.Errorf("%w: %w", driver.ErrOverloaded, driver.ErrNotSent)}
}

// An overloaded process sheds requests before their work is done, whatever the policy for
// outages.
func TestAnOverloadedProcessServesNothing(t *testing.T) {
	for _, closed := range []bool{false, true} {
		log, logged := newLog()
		th := throttler.New(overloaded{memorybackend.NewDefault()}, nil)
		m, err := middleware.New(th, middleware.Limit(policy("core", per(5, time.Hour)), middleware.ClientIP(nil)), &middleware.Options{FailClosed: closed, Observer: log})
		if err != nil {
			t.Fatal(err)
		}
		handler := m(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("status %d, Retry-After %q; want 503 with one", w.Code, w.Header().Get("Retry-After"))
		}
		if !strings.Contains(logged.String(), "cause=overloaded") {
			t.Errorf("logged %q; want the cause", logged.String())
		}
	}
}
