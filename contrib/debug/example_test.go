package weirdebug_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	weirdebug "github.com/weir-go/weir/contrib/debug"
	"github.com/weir-go/weir/throttler"
)

func Example() {
	page := weirdebug.New(nil)
	backend := memorybackend.NewDefault()
	page.Stats("memory", func() any { return backend.Stats() })
	t := throttler.New(backend, &throttler.Options{Observer: page})

	// Use a listener that only operators can reach, not the application's.
	operators := http.NewServeMux()
	operators.Handle("GET /debug/weir", page.Handler())

	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	if _, err := t.Take(context.Background(), core.Charge("client")); err != nil {
		fmt.Println(err)
		return
	}

	server := httptest.NewServer(operators)
	defer server.Close()
	r, err := http.Get(server.URL + "/debug/weir")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	fmt.Println(strings.Contains(string(text), "<td>core</td><td>allowed</td>"), err)
	// Output: true <nil>
}
