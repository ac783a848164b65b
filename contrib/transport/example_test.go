package transport_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/contrib/transport"
	"github.com/weir-go/weir/throttler"
)

func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "welcome")
	}))
	defer server.Close()

	t := throttler.New(memorybackend.NewDefault(), nil) // or Redis, for workers in several processes
	api := &throttler.Policy{Name: "api", Limits: []throttler.Limit{
		{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket},
	}}
	inTurn, err := transport.New(t, transport.ByHost(api), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: inTurn}
	response, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = response.Body.Close() }()
	fmt.Println(response.Status)
	// Output:
	// 200 OK
}
