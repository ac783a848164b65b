package node

import (
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// A client of go-redis changes its options while it connects to a server that doesn't know
// maintenance notifications: the race detector sees other connections read them without a lock.
func TestOpenBesideCalls(t *testing.T) {
	server := testserver.Redis(t)
	for range 10 {
		c := redis.NewClient(&redis.Options{Addr: server.Addr})
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := open(t.Context(), c, 2); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if err := c.Ping(t.Context()).Err(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
