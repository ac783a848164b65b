package goredis

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weir-go/weir/internal/busy"
)

// New returns a client with settings that suit a throttler: see redisbackend.NewClient. It
// changes o, which must be valid.
func New(o *redis.UniversalOptions) redis.UniversalClient {
	o.ContextTimeoutEnabled = true
	o.DisableIdentity = true // saves a round trip on each new connection
	o.MaxRetries = cmp.Or(o.MaxRetries, -1)
	o.DialerRetries = cmp.Or(o.DialerRetries, 1) // go-redis tries 5 times, 100 ms apart
	o.DialTimeout = cmp.Or(o.DialTimeout, time.Second)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, time.Second)
	o.PoolTimeout = cmp.Or(o.PoolTimeout, time.Second)
	if o.MaintNotificationsConfig == nil {
		o.MaintNotificationsConfig = noMaintNotifications()
	}
	o.Dialer = boundedDialer(o)

	if o.MasterName == "" && (o.IsClusterMode || len(o.Addrs) > 1) {
		co := o.Cluster()
		co.ClusterStateReloadInterval = time.Second
		co.DisableRoutingPolicies = true // they ask a node for COMMAND first, for up to 5 s whatever the context
		c := redis.NewClusterClient(co)
		c.OnNewNode(func(node *redis.Client) { node.AddHook(failLate{}) })
		return c
	}
	server := o.Simple()
	if o.MasterName != "" {
		server.Addr, server.Network = o.MasterName, "tcp"
		server.Dialer = newSentinels(o).dialPrimary
	}
	c := redis.NewClient(server)
	c.AddHook(failLate{})
	return c
}

// noMaintNotifications returns a configuration without maintenance notifications. Without an
// EndpointType, go-redis resolves the server's name to find one, for up to 2 s per new client:
// a probe's or, under a lock that decisions need, a cluster node's.
func noMaintNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled, EndpointType: maintnotifications.EndpointTypeNone}
}

// boundedDialer returns the Dialer of o, or one with the settings of o. It bounds the replies
// of its connections, on a TLS connection after decryption.
func boundedDialer(o *redis.UniversalOptions) dialFunc {
	dial, explain := o.Dialer, (func(network, addr string, err error) error)(nil)
	if dial == nil {
		d := &net.Dialer{
			Timeout: o.DialTimeout,
			// As in go-redis: below the idle timeouts of load balancers.
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3},
		}
		dial = d.DialContext
		if o.TLSConfig != nil { // go-redis's dialer lets a handshake outlast its context
			dial = dialTLS(d, o.TLSConfig)
		} else {
			explain = func(network, addr string, err error) error { return wantsTLS(d, network, addr, err) }
		}
	}
	leastTime := busy.LeastTime
	for _, t := range []time.Duration{o.ReadTimeout, o.WriteTimeout} {
		if t > 0 {
			leastTime = min(leastTime, t)
		}
	}
	return bounded(dial, leastTime, explain)
}

// bounded returns a dialer like dial that bounds the replies of its connections. If a connection
// ends without a reply, explain, which may be nil, returns the error.
func bounded(dial dialFunc, leastTime time.Duration, explain func(network, addr string, err error) error) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if _, bounded := conn.(interface{ bounded() *boundedConn }); err != nil || bounded {
			return conn, err
		}
		bounded := boundReplies(conn, leastTime)
		if explain != nil {
			bounded.(interface{ bounded() *boundedConn }).bounded().explain = func(err error) error { return explain(network, addr, err) }
		}
		return bounded, nil
	}
}

// failLate is a hook that returns a failed dial as a connection that fails at its first use.
// After as many failed dials as a pool has connections, go-redis dials once a second and fails
// all calls in between, so it would notice a server's return up to a second late.
type failLate struct{}

func (failLate) DialHook(dial redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return failedConn{errors.Join(err)}, nil // go-redis takes a layer off the error, here Join's
		}
		return conn, nil
	}
}

func (failLate) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (failLate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// failedConn takes the place of a connection that could not be made because of err.
type failedConn struct{ err error }

func (c failedConn) Read([]byte) (int, error)       { return 0, c.err }
func (c failedConn) Write([]byte) (int, error)      { return 0, c.err }
func (failedConn) Close() error                     { return nil }
func (failedConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (failedConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (failedConn) SetDeadline(time.Time) error      { return nil }
func (failedConn) SetReadDeadline(time.Time) error  { return nil }
func (failedConn) SetWriteDeadline(time.Time) error { return nil }

// SyscallConn returns the error, so that a pool drops the connection if the dial was made for
// a call that has ended.
func (c failedConn) SyscallConn() (syscall.RawConn, error) { return nil, c.err }

// Client is a Redis client. Its calls end when their contexts do.
type Client struct {
	redis.UniversalClient

	// KeepsDeadlines reports that the UniversalClient does so itself. By default go-redis lets
	// a context's deadline pass while it waits for a reply or, in a cluster, for the reply to
	// COMMAND.
	KeepsDeadlines bool

	// Connections is the greatest number of connections to one server. If unknown, MaxInt.
	Connections int
}

// Wrap returns c as a Client.
func Wrap(c redis.UniversalClient) Client {
	switch c := c.(type) {
	case *redis.Client:
		return Client{c, c.Options().ContextTimeoutEnabled, c.Options().PoolSize}
	case *redis.ClusterClient:
		o := c.Options()
		return Client{c, o.ContextTimeoutEnabled && o.DisableRoutingPolicies && !o.ReadOnly, o.PoolSize}
	}
	return Client{c, false, math.MaxInt}
}

// RoundTrip sends cmds at once, and returns when they have their replies or errors. If
// ctx ends before that, it returns false: the client still holds cmds.
func (c Client) RoundTrip(ctx context.Context, cmds []redis.Cmder) bool {
	if c.KeepsDeadlines {
		c.send(ctx, cmds)
		return true
	}
	return c.Run(ctx, func() error {
		c.send(ctx, cmds)
		return nil
	}) == nil
}

func (c Client) send(ctx context.Context, cmds []redis.Cmder) {
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
	_, err := pipe.Exec(ctx)
	if err != nil && !slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil }) {
		for _, cmd := range cmds {
			cmd.SetErr(err) // go-redis does not, if the server refused the login
		}
	}
}

// Ask sends cmd, and returns its error, or ctx's if that ends earlier.
func (c Client) Ask(ctx context.Context, cmd redis.Cmder) error {
	if !c.RoundTrip(ctx, []redis.Cmder{cmd}) {
		return ctx.Err()
	}
	return cmd.Err()
}

// Run returns the error of run, or ctx's if that ends earlier.
func (c Client) Run(ctx context.Context, run func() error) error {
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

// Another returns another client of c's server, with the same settings and at most the given
// number of connections. It dials nothing yet. No pool and no hook of c delays it.
func Another(c *redis.Client, connections int) *Client {
	o := *c.Options()
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ContextTimeoutEnabled = true
	o.PoolSize, o.MaxConcurrentDials, o.MinIdleConns = connections, connections, 0
	o.PipelineReadBufferSize, o.PipelineWriteBufferSize = 0, 0
	o.Limiter, o.ClientSideCacheConfig, o.ClientSideCache = nil, nil, nil
	o.PushNotificationProcessor = nil
	o.MaintNotificationsConfig = noMaintNotifications()
	o.Dialer = bounded(o.Dialer, busy.LeastTime, nil)
	single := redis.NewClient(&o)
	single.AddHook(failLate{})
	return &Client{single, true, o.PoolSize}
}

// DoNotAsk is a canceled context: under it, a client answers only from its cache.
var DoNotAsk = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
