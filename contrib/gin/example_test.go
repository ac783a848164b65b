package weirgin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/contrib/gin"
	"github.com/weir-go/weir/middleware"
)

func Example() {
	gin.SetMode(gin.ReleaseMode)
	t := weir.New()
	core := weir.MustPolicy("core: 2 per hour")
	limit := weir.Limit(t, core, weir.ClientIP())

	engine := gin.New()
	engine.Use(gin.Recovery(), weirgin.WrapMiddleware(limit))
	engine.GET("/secret", func(c *gin.Context) {
		fmt.Println("served")
		c.String(http.StatusForbidden, "no")
	})

	for range 3 {
		w := httptest.NewRecorder()
		engine.ServeHTTP(w, httptest.NewRequest("GET", "/secret", nil))
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
	gin.SetMode(gin.ReleaseMode)
	t := weir.New()
	core := weir.MustPolicy("core: 1 per hour")
	user := weirgin.Subject(func(c *gin.Context) (string, bool) {
		name := c.GetString("user")
		return name, name != ""
	})
	limit := weir.Limit(t, core, middleware.FirstOf(user, weir.ClientIP()))

	engine := gin.New()
	authenticate := func(c *gin.Context) { c.Set("user", c.GetHeader("X-User")) }
	engine.Use(gin.Recovery(), authenticate, weirgin.WrapMiddleware(limit))
	engine.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })

	for _, name := range []string{"alice", "bob", "alice", "", ""} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", name)
		engine.ServeHTTP(w, r)
		fmt.Println(name, w.Code)
	}
	// Output:
	// alice 200
	// bob 200
	// alice 429
	//  200
	//  429
}
