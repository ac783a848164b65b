package frameworks_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"
	"github.com/gofiber/fiber/v3"
	fiberrecover "github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/gorilla/handlers"
	"github.com/klauspost/compress/gzhttp"
	"github.com/labstack/echo/v4"
	echomiddleware "github.com/labstack/echo/v4/middleware"
	echov5 "github.com/labstack/echo/v5"
	echov5middleware "github.com/labstack/echo/v5/middleware"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	weirecho "github.com/weir-go/weir/contrib/echo"
	weirecho5 "github.com/weir-go/weir/contrib/echo5"
	weirfiber "github.com/weir-go/weir/contrib/fiber"
	weirgin "github.com/weir-go/weir/contrib/gin"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// use adds a limit to an application.
type use func(limit func(http.Handler) http.Handler) http.Handler

func none(h http.Handler) http.Handler { return h }

// ginApp returns a Gin application, with inside as middleware and around around the engine.
func ginApp(around func(http.Handler) http.Handler, inside ...gin.HandlerFunc) http.Handler {
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }))
	// As in many applications, an outer middleware responds for handlers that leave an error.
	e.Use(func(c *gin.Context) {
		if c.Next(); len(c.Errors) > 0 && !c.Writer.Written() {
			c.JSON(409, gin.H{"error": c.Errors.String()})
		}
	})
	e.Use(inside...)
	e.GET("/error", func(c *gin.Context) { c.AbortWithStatus(403) })
	e.GET("/left", func(c *gin.Context) { _ = c.Error(errors.New("left")) })
	e.GET("/304", func(c *gin.Context) { c.Status(304) })
	e.GET("/page", func(c *gin.Context) { c.String(200, "page") })
	e.HEAD("/page", func(c *gin.Context) { c.String(200, "page") })
	for path, h := range plain {
		e.GET(path, gin.WrapF(h))
	}
	return around(e)
}

func echoApp(around func(http.Handler) http.Handler, inside ...echo.MiddlewareFunc) http.Handler {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	e.Use(echomiddleware.RecoverWithConfig(echomiddleware.RecoverConfig{DisablePrintStack: true}))
	e.Use(inside...)
	e.GET("/error", func(echo.Context) error { return echo.NewHTTPError(403) })
	e.GET("/left", func(echo.Context) error { return echo.NewHTTPError(409) })
	e.GET("/304", func(echo.Context) error { return echo.NewHTTPError(304) })
	e.GET("/page", func(c echo.Context) error { return c.String(200, "page") })
	e.HEAD("/page", func(c echo.Context) error { return c.String(200, "page") })
	for path, h := range plain {
		e.GET(path, echo.WrapHandler(h))
	}
	return around(e)
}

func echo5App(around func(http.Handler) http.Handler, inside ...echov5.MiddlewareFunc) http.Handler {
	e := echov5.NewWithConfig(echov5.Config{Logger: slog.New(slog.DiscardHandler)})
	e.Use(echov5middleware.Recover())
	e.Use(inside...)
	e.GET("/error", func(*echov5.Context) error { return echov5.NewHTTPError(403, "") })
	e.GET("/left", func(*echov5.Context) error { return echov5.NewHTTPError(409, "") })
	e.GET("/304", func(c *echov5.Context) error { return c.NoContent(304) })
	e.GET("/page", func(c *echov5.Context) error { return c.String(200, "page") })
	e.HEAD("/page", func(c *echov5.Context) error { return c.String(200, "page") })
	for path, h := range plain {
		e.GET(path, echov5.WrapHandler(h))
	}
	return around(e)
}

func chiApp(around func(http.Handler) http.Handler, inside ...func(http.Handler) http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Use(inside...)
	r.Get("/error", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusForbidden) })
	r.Get("/left", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(409) })
	r.Get("/304", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) })
	for path, h := range plain {
		r.Get(path, h)
	}
	r.Get("/page", page)
	r.Head("/page", page)
	return around(r)
}

// fiberApp returns a proxy in front of a server of Fiber.
func fiberApp(t *testing.T, inside ...fiber.Handler) http.Handler {
	app := fiber.New()
	app.Use(fiberrecover.New())
	for _, h := range inside {
		app.Use(h)
	}
	app.Get("/error", func(c fiber.Ctx) error { return c.SendStatus(403) })
	app.Get("/left", func(fiber.Ctx) error { return fiber.NewError(409) })
	app.Get("/304", func(c fiber.Ctx) error { return c.SendStatus(304) })
	app.Get("/page", func(c fiber.Ctx) error { return c.SendString("page") })
	app.Get("/nothing", func(fiber.Ctx) error { return nil })
	app.Get("/panic", func(fiber.Ctx) error { panic("x") })
	app.Get("/flush", func(c fiber.Ctx) error {
		return c.SendStreamWriter(func(w *bufio.Writer) {
			_ = w.Flush()
			_, _ = w.WriteString("page")
		})
	})
	app.Get("/hint", func(c fiber.Ctx) error { return c.SendString("page") })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		if err := errors.Join(app.Shutdown(), <-served); err != nil {
			t.Error(err)
		}
	})
	u := &url.URL{Scheme: "http", Host: listener.Addr().String()}
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u) }}
}

func page(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") }

// plain are handlers of net/http.
var plain = map[string]http.HandlerFunc{
	"/nothing": func(http.ResponseWriter, *http.Request) {},
	"/panic":   func(http.ResponseWriter, *http.Request) { panic("x") },
	"/flush": func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		page(w, r)
	},
	"/hint": func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(103)
		w.WriteHeader(200)
		page(w, r)
	},
	"/hijack": func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 299 own\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	},
}

// recoverer is like chi's, but logs nothing.
func recoverer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(500)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func timeout(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Minute, "") }

func gzipped(h http.Handler) http.Handler { return gzhttp.GzipHandler(h) }

// proxied is a proxy in front of h.
func proxied(t *testing.T, h http.Handler) http.Handler {
	upstream := httptest.NewServer(h)
	t.Cleanup(upstream.Close)
	u, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u) }}
}

// TestTable sends each kind of request through each way to add a limit to an application, and
// checks the response and the charges.
func TestTable(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	for name, stack := range map[string]struct {
		use     use
		buffers bool // has no Flush and no Hijack
		writes  bool // writes a 200 for a handler that writes nothing
	}{
		"net/http":             {func(l func(http.Handler) http.Handler) http.Handler { return recoverer(l(chiApp(none))) }, false, false},
		"chi":                  {func(l func(http.Handler) http.Handler) http.Handler { return chiApp(none, recoverer, l) }, false, false},
		"chi, logged":          {func(l func(http.Handler) http.Handler) http.Handler { return chiApp(none, wrapped, recoverer, l) }, false, false},
		"chi, recovers inside": {func(l func(http.Handler) http.Handler) http.Handler { return chiApp(none, l, recoverer) }, false, false},
		"TimeoutHandler outside": {func(l func(http.Handler) http.Handler) http.Handler {
			return timeout(recoverer(l(chiApp(none))))
		}, true, false},
		"TimeoutHandler inside": {func(l func(http.Handler) http.Handler) http.Handler {
			return recoverer(l(timeout(chiApp(none))))
		}, true, true},
		"gorilla's compressor outside": {func(l func(http.Handler) http.Handler) http.Handler {
			return handlers.CompressHandler(recoverer(l(chiApp(none))))
		}, false, false},
		"gorilla's compressor inside": {func(l func(http.Handler) http.Handler) http.Handler {
			return l(handlers.CompressHandler(recoverer(chiApp(none))))
		}, false, true},
		"gzhttp outside": {func(l func(http.Handler) http.Handler) http.Handler {
			return gzipped(recoverer(l(chiApp(none))))
		}, false, false},
		"gzhttp inside": {func(l func(http.Handler) http.Handler) http.Handler {
			return recoverer(l(gzipped(chiApp(none))))
		}, false, false},
		"ReverseProxy": {func(l func(http.Handler) http.Handler) http.Handler {
			return l(proxied(t, recoverer(chiApp(none))))
		}, false, true},
		"Gin, around it":  {func(l func(http.Handler) http.Handler) http.Handler { return ginApp(l) }, false, true},
		"Gin":             {func(l func(http.Handler) http.Handler) http.Handler { return ginApp(none, weirgin.WrapMiddleware(l)) }, false, false},
		"Echo, around it": {func(l func(http.Handler) http.Handler) http.Handler { return echoApp(l) }, false, false},
		"Echo": {func(l func(http.Handler) http.Handler) http.Handler {
			return echoApp(none, weirecho.WrapMiddleware(l))
		}, false, false},
		"Echo 5, around it": {func(l func(http.Handler) http.Handler) http.Handler { return echo5App(l) }, false, false},
		"Echo 5": {func(l func(http.Handler) http.Handler) http.Handler {
			return echo5App(none, weirecho5.WrapMiddleware(l))
		}, false, false},
		"Fiber": {func(l func(http.Handler) http.Handler) http.Handler {
			return fiberApp(t, weirfiber.WrapMiddleware(l))
		}, false, true},
		"Fiber, recovers inside": {func(l func(http.Handler) http.Handler) http.Handler {
			return fiberApp(t, weirfiber.WrapMiddleware(l), fiberrecover.New())
		}, false, true},
	} {
		for _, test := range []struct {
			request string
			status  int
			used    int64 // by default
			lenient int64 // if every status except 4xx is free
		}{
			{"GET /error", 403, 1, 1},
			{"GET /left", 409, 1, 1},
			{"GET /missing", 404, 1, 1},
			{"POST /page", 405, 1, 1},
			{"GET /304", 304, 0, 0},
			{"GET /page", 200, 1, 0},
			{"HEAD /page", 200, 1, 0},
			{"GET /nothing", 200, 1, 0},
			{"GET /flush", 200, 1, 0},
			{"GET /hint", 200, 1, 0},
			{"GET /panic", 500, 1, 0},
			{"GET /hijack", 299, 1, 1},
		} {
			method, path, _ := strings.Cut(test.request, " ")
			if stack.buffers && (path == "/flush" || path == "/hijack") || (name == "ReverseProxy" || strings.HasPrefix(name, "Fiber")) && path == "/hijack" {
				continue // not possible there
			}
			for _, lenient := range []bool{false, true} {
				t.Run(fmt.Sprint(name, "/", test.request, " lenient ", lenient), func(t *testing.T) {
					want, options := test.used, &middleware.Options{Deadline: time.Minute}
					if lenient {
						if want = test.lenient; path == "/nothing" && !stack.writes {
							want = 1 // it may still become an error
						}
						options.RefundIf = func(_ *http.Request, status int, _ http.Header) bool { return status < 400 || status >= 500 }
					}
					th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(time.Unix(1893499200, 0))})
					p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Minute}}}
					limit, err := middleware.New(th, middleware.Limit(p, middleware.Everyone()), options)
					if err != nil {
						t.Fatal(err)
					}
					ended := make(chan struct{})
					h := stack.use(limit)
					s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						defer close(ended)
						h.ServeHTTP(w, r)
					}))
					s.Config.ErrorLog = log.New(io.Discard, "", 0) // frameworks write superfluous headers
					s.Start()
					defer s.Close()
					r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					res, err := s.Client().Do(r)
					if err != nil {
						t.Fatal(err)
					}
					defer res.Body.Close()
					<-ended
					if res.StatusCode != test.status {
						t.Errorf("status %d, want %d", res.StatusCode, test.status)
					}
					if got := res.Header.Get("X-RateLimit-Used"); got != fmt.Sprint(want) && path != "/hijack" {
						t.Errorf("X-RateLimit-Used is %q, want %d", got, want)
					}
					if d, err := th.Peek(t.Context(), p.Charge("everyone:")); err != nil || d.Limit(0).Used != want {
						t.Errorf("used %d, error %v; want %d", d.Limit(0).Used, err, want)
					}
				})
			}
		}
	}
}

// wrapped wraps the writer, as loggers do.
func wrapped(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(chimiddleware.NewWrapResponseWriter(w, r.ProtoMajor), r)
	})
}

// A login throttle: successful logins are free, and three wrong passwords are allowed.
func TestLoginThrottle(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	for name, use := range map[string]use{
		"Gin":  func(l func(http.Handler) http.Handler) http.Handler { return ginApp(none, weirgin.WrapMiddleware(l)) },
		"Echo": func(l func(http.Handler) http.Handler) http.Handler { return echoApp(none, weirecho.WrapMiddleware(l)) },
		"Echo 5": func(l func(http.Handler) http.Handler) http.Handler {
			return echo5App(none, weirecho5.WrapMiddleware(l))
		},
	} {
		th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(time.Unix(1893499200, 0))})
		p := &throttler.Policy{Name: "login", Limits: []throttler.Limit{{Quota: 3, Window: time.Hour}}}
		limit, err := middleware.New(th, middleware.Limit(p, middleware.Join(middleware.ClientIP(nil), middleware.RoutePattern())),
			&middleware.Options{RefundIf: func(_ *http.Request, status int, _ http.Header) bool { return status < 400 }})
		if err != nil {
			t.Fatal(err)
		}
		h := use(limit)
		for i, want := range []int{403, 403, 403, 429, 429} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/error", nil))
			if w.Code != want {
				t.Errorf("%s, request %d: %d, want %d", name, i, w.Code, want)
			}
		}
	}
}

// Each route has a key, and all paths without a route share one.
func TestRoutePattern(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	for name, use := range map[string]use{
		"Gin": func(l func(http.Handler) http.Handler) http.Handler { return ginApp(none, weirgin.WrapMiddleware(l)) },
		"Echo": func(l func(http.Handler) http.Handler) http.Handler {
			return echoApp(none, weirecho.WrapMiddleware(l))
		},
		"Echo 5": func(l func(http.Handler) http.Handler) http.Handler {
			return echo5App(none, weirecho5.WrapMiddleware(l))
		},
	} {
		var keys []string
		key := middleware.KeyFunc(func(r *http.Request) (string, bool) {
			k, ok := middleware.RoutePattern().Of(r)
			keys = append(keys, k)
			return k, ok
		})
		th := throttler.New(memorybackend.NewDefault(), nil)
		p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}}
		limit, err := middleware.New(th, middleware.Limit(p, key), nil)
		if err != nil {
			t.Fatal(err)
		}
		h := use(limit)
		for _, path := range []string{"/page", "/page?x", "/nowhere", "/elsewhere"} {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
		}
		if len(keys) != 4 || keys[0] != "route:/page" || keys[1] != keys[0] || keys[2] == keys[0] || keys[2] != keys[3] {
			t.Errorf("%s: keys %q", name, keys)
		}
	}
}

// An adapter for handlers that return errors, as in docs/howto/frameworks.md.
func TestAnAdapterThatSendsErrorsAfterTheLimit(t *testing.T) {
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: clock.NewManual(time.Unix(1893499200, 0))})
	p := &throttler.Policy{Name: "login", Limits: []throttler.Limit{{Quota: 3, Window: time.Hour}}}
	limit, err := middleware.New(th, middleware.Limit(p, middleware.ClientIP(nil)),
		&middleware.Options{Deadline: time.Minute, RefundIf: func(_ *http.Request, status int, _ http.Header) bool { return status < 400 }})
	if err != nil {
		t.Fatal(err)
	}
	login := func(http.ResponseWriter, *http.Request) error { return errors.New("wrong password") }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		limit(http.HandlerFunc(func(through http.ResponseWriter, r *http.Request) {
			w = through
			err = login(w, r)
		})).ServeHTTP(w, r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
		}
	}))
	defer s.Close()
	for i, want := range []int{403, 403, 403, 429, 429} {
		res, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("request %d: %d, want %d", i, res.StatusCode, want)
		}
	}
}

// Gin's Stream needs a CloseNotify, and panics without one.
func TestGinStreams(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	for name, use := range map[string]use{
		"Gin, around it": func(l func(http.Handler) http.Handler) http.Handler { return l(ginStream()) },
		"Gin":            func(l func(http.Handler) http.Handler) http.Handler { return ginStream(weirgin.WrapMiddleware(l)) },
	} {
		s := httptest.NewServer(use(newLimit()))
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || string(body) != "xxx" {
			t.Errorf("%s: status %d, body %q, %v; want 200 and xxx", name, res.StatusCode, body, err)
		}
		res.Body.Close()
		s.Close()
	}
}

func ginStream(inside ...gin.HandlerFunc) http.Handler {
	e := gin.New()
	e.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }))
	e.Use(inside...)
	e.GET("/stream", func(c *gin.Context) {
		n := 0
		c.Stream(func(w io.Writer) bool {
			_, _ = io.WriteString(w, "x")
			n++
			return n < 3
		})
	})
	return e
}
