package frameworks_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// newLimit returns a limit of two a minute on each client.
func newLimit() func(http.Handler) http.Handler {
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC))})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Minute}}}
	limit, err := middleware.New(t, middleware.Limit(core, middleware.ClientIP(nil)), nil)
	if err != nil {
		log.Fatal(err)
	}
	return limit
}

// three prints the responses to three requests.
func three(h http.Handler) {
	for range 3 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/secret", nil))
		fmt.Println(w.Code, w.Header().Get("X-RateLimit-Remaining"))
	}
}

func Example_around() {
	gin.SetMode(gin.ReleaseMode)
	limit := newLimit()

	engine := gin.New()
	engine.GET("/secret", func(c *gin.Context) { c.String(http.StatusForbidden, "no") })
	h := limit(engine)

	three(h)
	// Output:
	// 403 1
	// 403 0
	// 429 0
}
