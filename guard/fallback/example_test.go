package fallback_test

import (
	"context"
	"fmt"
	"log"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/throttler"
)

// Three processes share 60 requests an hour. While the backend does not answer, each
// allows 20 by itself.
func Example() {
	shared := &flaky{Backend: memorybackend.NewDefault()} // in a program, a redisbackend.Backend

	backend, err := fallback.New(shared, &fallback.Options{
		OnFailure: fallback.Local,
		Policies:  map[string]fallback.Choice{"auth.createToken": fallback.Closed},
		Processes: 3,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close() // hands over the rest, so before the shared backend's client

	t := throttler.New(backend, nil)
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}

	shared.fails.Store(down)
	allowed := 0
	for range 100 {
		d, err := t.Take(context.Background(), core.Charge("alice"))
		if err != nil {
			log.Fatal(err)
		}
		if d.Allowed {
			allowed++
		}
	}
	fmt.Println(allowed, "allowed")
	// Output: 20 allowed
}
