package weirecho_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/labstack/echo/v4"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/contrib/echo"
	"github.com/weir-go/weir/middleware"
)

func Example() {
	t := weir.New()
	core := weir.MustPolicy("core: 2 per hour")
	limit := weir.Limit(t, core, weir.ClientIP())

	e := echo.New()
	e.Use(weirecho.WrapMiddleware(limit))
	e.GET("/secret", func(c echo.Context) error {
		fmt.Println("served")
		return c.String(http.StatusForbidden, "no")
	})

	for range 3 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest("GET", "/secret", nil))
		fmt.Println(w.Code, w.Header().Get("X-RateLimit-Remaining"))
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
	user := weirecho.Subject(func(c echo.Context) (string, bool) {
		name, _ := c.Get("user").(string)
		return name, name != ""
	})
	limit := weir.Limit(t, core, middleware.FirstOf(user, weir.ClientIP()))

	e := echo.New()
	authenticate := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("user", c.Request().Header.Get("X-User"))
			return next(c)
		}
	}
	e.Use(authenticate, weirecho.WrapMiddleware(limit))
	e.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello") })

	for _, name := range []string{"alice", "bob", "alice", "", ""} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", name)
		e.ServeHTTP(w, r)
		fmt.Println(name, w.Code)
	}
	// Output:
	// alice 200
	// bob 200
	// alice 429
	//  200
	//  429
}
