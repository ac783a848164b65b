// Command inflight limits each client's requests in flight, next to its rate.
package main

import (
	"log"
	"net/http"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// At most 100 requests of one client at once, and 900 points a minute: all or nothing.
var secondary = &throttler.Policy{Name: "secondary", Limits: []throttler.Limit{
	{Quota: 100, Window: 30 * time.Second, Algorithm: quota.InFlight}, // Window: the lease
	{Quota: 900, Window: time.Minute},
}}

func newServer(t *throttler.Throttler, report http.HandlerFunc) (http.Handler, error) {
	limit, err := middleware.New(t, middleware.Limit(secondary, middleware.ClientIP(nil)), nil)
	if err != nil {
		return nil, err
	}
	return limit(report), nil
}

func main() {
	t := throttler.New(memorybackend.NewDefault(), nil)
	h, err := newServer(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 60 { // a stream is in flight for as long as it lasts
			_, _ = w.Write([]byte("one more line\n"))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Second)
		}
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", h))
}
