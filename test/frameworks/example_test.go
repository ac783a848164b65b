package frameworks_test

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// limitGin makes Gin middleware of limit.
func limitGin(limit func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		served := false
		c.Request.Pattern = c.FullPath() // for middleware.RoutePattern
		limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			served = true
			c.Request, c.Writer = r, &limited{c.Writer, w}
			c.Next()
			// Gin sends a status that a handler has only set past c.Writer.
			if c.FullPath() != "" && len(c.Errors) == 0 && c.Writer.Status() != http.StatusOK {
				c.Writer.WriteHeaderNow()
			}
		})).ServeHTTP(c.Writer, c.Request)
		if !served {
			c.Abort()
		}
	}
}

// limited is Gin's writer. What it sends goes through the middleware's.
type limited struct {
	gin.ResponseWriter
	through http.ResponseWriter
}

func (w *limited) WriteHeaderNow() {
	if !w.Written() {
		w.through.WriteHeader(w.Status())
		w.ResponseWriter.WriteHeaderNow()
	}
}

func (w *limited) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	return w.through.Write(p)
}

func (w *limited) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	return io.WriteString(w.through, s)
}

func (w *limited) Flush() {
	w.WriteHeaderNow()
	_ = http.NewResponseController(w.through).Flush()
}

func (w *limited) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.through).Hijack()
}

func (w *limited) Unwrap() http.ResponseWriter { return w.through }

// setPattern lets middleware.RoutePattern know Echo's route.
func setPattern(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Request().Pattern = c.Path()
		return next(c)
	}
}

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

func Example_gin() {
	gin.SetMode(gin.ReleaseMode)
	limit := newLimit()

	engine := gin.New()
	engine.Use(gin.Recovery(), limitGin(limit))
	engine.GET("/secret", func(c *gin.Context) { c.String(http.StatusForbidden, "no") })

	three(engine)
	// Output:
	// 403 1
	// 403 0
	// 429 0
}

func Example_echo() {
	limit := newLimit()

	e := echo.New()
	e.Use(setPattern, echo.WrapMiddleware(limit))
	e.GET("/secret", func(echo.Context) error { return echo.NewHTTPError(http.StatusForbidden, "no") })

	three(e)
	// Output:
	// 403 1
	// 403 0
	// 429 0
}

func Example_echo5() {
	limit := newLimit()

	e := echov5.New()
	e.Use(echov5.WrapMiddleware(limit))
	e.GET("/secret", func(*echov5.Context) error { return echov5.NewHTTPError(http.StatusForbidden, "no") })

	three(e)
	// Output:
	// 403 1
	// 403 0
	// 429 0
}
