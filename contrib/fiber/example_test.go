package weirfiber_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/contrib/fiber"
	"github.com/weir-go/weir/middleware"
)

func Example() {
	t := weir.New()
	core := weir.MustPolicy("core: 2 per hour")
	limit := weir.Limit(t, core, weir.ClientIP())

	app := fiber.New()
	app.Use(recover.New(), weirfiber.WrapMiddleware(limit))
	app.Get("/secret", func(c fiber.Ctx) error {
		fmt.Println("served")
		return c.Status(http.StatusForbidden).SendString("no")
	})

	for range 3 {
		res, err := app.Test(httptest.NewRequest("GET", "/secret", nil))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(res.StatusCode, res.Header.Get("X-RateLimit-Remaining"))
		_ = res.Body.Close()
	}
	// Output:
	// served
	// 403 1
	// served
	// 403 0
	// 429 0
}

// The key is the user that the framework's own authentication has found.
func ExampleSubject() {
	t := weir.New()
	core := weir.MustPolicy("core: 1 per hour")
	user := weirfiber.Subject(func(c fiber.Ctx) (string, bool) {
		name, _ := c.Locals("user").(string)
		return name, name != ""
	})
	limit := weir.Limit(t, core, middleware.FirstOf(user, weir.ClientIP()))

	app := fiber.New()
	authenticate := func(c fiber.Ctx) error {
		c.Locals("user", c.Get("X-User"))
		return c.Next()
	}
	app.Use(recover.New(), authenticate, weirfiber.WrapMiddleware(limit))
	app.Get("/", func(c fiber.Ctx) error { return c.SendString("hello") })

	for _, name := range []string{"alice", "bob", "alice", "", ""} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", name)
		res, err := app.Test(r)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(name, res.StatusCode)
		_ = res.Body.Close()
	}
	// Output:
	// alice 200
	// bob 200
	// alice 429
	//  200
	//  429
}
