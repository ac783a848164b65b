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

// roundTrip sends cmds at once, and returns when they have their replies or errors. If
// ctx ends before that, it returns false: the client still holds cmds.
func (c client) roundTrip(ctx context.Context, cmds []redis.Cmder) bool {
	if c.keepsDeadlines {
		c.send(ctx, cmds)
		return true
	}
	done := make(chan struct{})
	go func() { // ends with the client's own timeouts
		defer close(done)
		c.send(ctx, cmds)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c client) send(ctx context.Context, cmds []redis.Cmder) {
	if len(cmds) == 1 {
		if err := c.Process(ctx, onceCmd{cmds[0]}); err != nil && cmds[0].Err() == nil {
			cmds[0].SetErr(err)
		}
		return
	}
	pipe := c.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, onceCmd{cmd}) // queues it
	}
	_, _ = pipe.Exec(ctx) // each command has its error
}

// process sends cmd, and returns its error, or ctx's if that ends earlier.
func (c client) process(ctx context.Context, cmd redis.Cmder) error {
	if !c.roundTrip(ctx, []redis.Cmder{cmd}) {
		return ctx.Err()
	}
	return cmd.Err()
}

// within returns the error of run, or ctx's if that ends earlier.
func (c client) within(ctx context.Context, run func() error) error {
	done := make(chan error, 1)
	go func() { done <- run() }() // ends with the client's own timeouts
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// onceCmd is never sent twice, whatever the client's MaxRetries: go-redis would resend
// it after a lost reply, and charge twice.
type onceCmd struct{ redis.Cmder }

func (onceCmd) NoRetry() bool { return true }
