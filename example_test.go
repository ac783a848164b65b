package weir_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/weir-go/weir"
)

func Example() {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })

	t := weir.New()
	core := weir.MustPolicy("core: 2 per hour")
	h := weir.Limit(t, core, weir.ClientIP())(hello)

	for range 3 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/hello", nil))
		fmt.Println(w.Code, w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 200 1
	// 200 0
	// 429 0
}

// Counts that processes share are in Redis. Several URLs, with spaces between them, are shards.
func ExampleOpen() {
	t, err := weir.Open(os.Getenv("REDIS_URL"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
}
