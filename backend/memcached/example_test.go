package memcachedbackend_test

import (
	"context"
	"fmt"
	"log"
	"time"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
)

// Counts live on one Memcached server. Keys find their server by its name, so
// that its address may change.
func Example() {
	server, err := testserver.StartMemcached() // in place of a server of yours
	if err != nil {
		log.Fatal(err)
	}
	defer server.Stop()

	client := memcachedbackend.NewClient(server.Addr)
	defer client.Close()
	backend, err := memcachedbackend.New([]memcachedbackend.Server{{Name: "a", Client: client}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()

	t := throttler.New(backend, nil)
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	for range 2 {
		d, err := t.Take(context.Background(), core.Charge("alice"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("used", d.Limit(0).Used, "remaining", d.Limit(0).Remaining)
	}
	// Output:
	// used 1 remaining 59
	// used 2 remaining 58
}
