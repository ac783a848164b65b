package weirfiber_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/weir-go/weir"
	weirfiber "github.com/weir-go/weir/contrib/fiber"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/middleware/login"
	"github.com/weir-go/weir/throttler"
)

// What other middleware has set in a response stays; the cost header of a handler is taken out;
// the body can be read by the key and by the handler.
func TestFields(t *testing.T) {
	th := weir.New()
	points := weir.MustPolicy("points: 10 per hour")
	body := middleware.KeyFunc(func(r *http.Request) (string, bool) {
		text, err := io.ReadAll(r.Body)
		return "body:" + string(text), err == nil
	})
	limit := weir.Must(middleware.New(th, middleware.Limit(points, body).CostReported(), &middleware.Options{CostHeader: "X-Cost"}))
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		c.Set("Access-Control-Allow-Origin", "*")
		return c.Next()
	}, weirfiber.WrapMiddleware(limit))
	app.Post("/", func(c fiber.Ctx) error {
		if _, ok := middleware.FromContext(c.Context()); !ok {
			t.Error("the context has no decision")
		}
		c.Set("X-Cost", "6")
		c.Append("Set-Cookie", "a=1")
		c.Cookie(&fiber.Cookie{Name: "b", Value: "2"})
		return c.SendString(string(c.Body()))
	})
	app.Post("/set", func(c fiber.Ctx) error {
		return middleware.SetCost(weirfiber.Request(c), 3)
	})
	for i, want := range []struct {
		path      string
		status    int
		remaining string
		body      string
	}{{"/", 200, "4", "hello"}, {"/set", 200, "1", ""}, {"/", 200, "0", "hello"}, {"/", 429, "0", ""}} {
		r := httptest.NewRequest("POST", want.path, http.NoBody)
		r.Body, r.ContentLength = io.NopCloser(&text{"hello"}), 5
		res, err := app.Test(r)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		h := res.Header
		if res.StatusCode != want.status || h.Get("X-RateLimit-Remaining") != want.remaining || h.Values("X-Cost") != nil ||
			h.Get("Access-Control-Allow-Origin") != "*" || want.status == 200 && string(got) != want.body || (want.body != "") != (len(h.Values("Set-Cookie")) == 2) {
			t.Errorf("request %d: status %d, body %q, header %v", i, res.StatusCode, got, h)
		}
	}
}

// text is a body.
type text struct{ unread string }

func (b *text) Read(p []byte) (int, error) {
	n := copy(p, b.unread)
	if b.unread = b.unread[n:]; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// A route is a key if the limit is one of its handlers.
// A handler without a limit in front gets errors, and does not end the process.
func TestRequestWithoutALimit(t *testing.T) {
	guard := weir.Must(login.New(weir.New(), weir.MustPolicy("account: 5 per hour"), login.Form("account"), weir.MustPolicy("address: 20 per hour"), weir.ClientIP(), nil))
	app := fiber.New()
	app.Get("/", func(c fiber.Ctx) error {
		r := weirfiber.Request(c)
		_, noReceipt := middleware.Receipt(r)
		for name, err := range map[string]error{"SetCost": middleware.SetCost(r, 3), "SetCostOf": middleware.SetCostOf(r, "points", 3), "Receipt": noReceipt, "Succeeded": guard.Succeeded(r)} {
			if !errors.Is(err, throttler.ErrInvalid) {
				t.Errorf("%s: error %v; want one that wraps ErrInvalid", name, err)
			}
		}
		return nil
	})
	res, err := app.Test(httptest.NewRequest("GET", "/", http.NoBody))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
}

func TestRoutePattern(t *testing.T) {
	var keys []string
	key := middleware.KeyFunc(func(r *http.Request) (string, bool) {
		k, ok := middleware.RoutePattern().Of(r)
		keys = append(keys, k)
		return "x", ok
	})
	limit := weirfiber.WrapMiddleware(weir.Limit(weir.New(), weir.MustPolicy("core: 60 per hour"), key))
	app := fiber.New()
	app.Get("/users/:id", limit, func(c fiber.Ctx) error { return c.SendString("user") })
	app.Use("/api", limit)
	app.Get("/api/a", func(c fiber.Ctx) error { return c.SendString("a") })
	for _, path := range []string{"/users/7", "/users/8", "/api/a", "/api/b"} {
		res, err := app.Test(httptest.NewRequest("GET", path, nil))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	if want := []string{"route:/users/:id", "route:/users/:id", "route:", "route:"}; !slices.Equal(keys, want) {
		t.Errorf("keys %q, want %q", keys, want)
	}
}
