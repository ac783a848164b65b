package redisbackend

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ClientOptions returns settings for a client of one server at addr that suit a
// throttler: calls end with their context, nothing is sent twice, and a dead server
// is noticed at once. The caller may change them.
func ClientOptions(addr string) *redis.Options {
	return &redis.Options{
		Addr:                  addr,
		ContextTimeoutEnabled: true,
		MaxRetries:            -1, // 0 would mean 3
		DialerRetries:         1,  // 0 would mean 5, 100 ms apart
		DialTimeout:           time.Second,
		ReadTimeout:           time.Second,
		WriteTimeout:          time.Second,
		PoolTimeout:           time.Second,
		// Saves a round trip on each new connection.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// client is a Redis client whose calls end when their context does.
type client struct {
	redis.UniversalClient
	// keepsDeadlines reports that the client does so itself. By default go-redis
	// lets a context's deadline pass while it waits for a reply.
	keepsDeadlines bool
}

func newClient(c redis.UniversalClient) client {
	switch c := c.(type) {
	case *redis.Client:
		return client{c, c.Options().ContextTimeoutEnabled}
	case *redis.ClusterClient:
		return client{c, c.Options().ContextTimeoutEnabled}
	}
	return client{c, false}
}

// process runs cmd and returns its error, or ctx's if that is done earlier.
func (c client) process(ctx context.Context, cmd redis.Cmder) error {
	return c.within(ctx, func() error { return c.Process(ctx, cmd) })
}

// within returns the error of run, or ctx's if that is done earlier.
func (c client) within(ctx context.Context, run func() error) error {
	if c.ends(ctx) {
		if err := ctx.Err(); err != nil {
			return err
		}
		return run()
	}
	done := make(chan error, 1)
	go func() { done <- run() }() // ends with the client's own timeouts
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ends reports whether a call under ctx ends in time by itself: at ctx's deadline
// or, if nothing ever ends ctx, with the client's own timeouts.
func (c client) ends(ctx context.Context) bool {
	_, bounded := ctx.Deadline()
	return bounded && c.keepsDeadlines || ctx.Done() == nil
}
