package redisbackend

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/internal/invalid"
)

// NewClient returns a client of one server, of the primary of a Sentinel master name or of a
// Redis Cluster, with settings that suit a throttler. The caller closes it.
//
//   - One address in Addrs is a server. With MasterName, Addrs are Sentinels. Several
//     addresses, or any with IsClusterMode, are nodes of a Redis Cluster.
//   - A call ends with its context, even while it dials. Nothing is sent twice. A dead server
//     is noticed at the first failed dial, and its return at the next.
//   - A primary that a Sentinel or a Cluster promotes is followed as soon as one of them
//     announces it: the topology of a Cluster is read again after each failed decision, and
//     every second.
//   - A connection that the server closed while it was idle is noticed before it is used, also
//     with TLS.
//   - A reply that announces more than 8 MiB fails its connection before anything is allocated
//     for it.
//
// If zero, DialTimeout, ReadTimeout, WriteTimeout and PoolTimeout are 1 s, MaxRetries is -1,
// and DialerRetries is 1. ContextTimeoutEnabled and DisableIdentity are always set. Other
// fields are go-redis's: TLSConfig, Username, Password, DB, PoolSize. A Dialer must do TLS
// itself. Sentinels are dialed as servers are, with SentinelUsername and
// SentinelPassword.
//
// Errors name the field, and wrap quota.ErrInvalid.
func NewClient(options *redis.UniversalOptions) (redis.UniversalClient, error) {
	o := redis.UniversalOptions{}
	if options != nil {
		o = *options
	}
	cluster := o.MasterName == "" && (o.IsClusterMode || len(o.Addrs) > 1)
	switch {
	case len(o.Addrs) == 0:
		return nil, invalid.Errorf("redisbackend: Addrs is empty; it must have the address of a server, or those of Sentinels or of a Cluster's nodes")
	case o.MasterName != "" && (o.IsClusterMode || o.ReadOnly || o.RouteByLatency || o.RouteRandomly):
		return nil, invalid.Errorf("redisbackend: MasterName is %q, with IsClusterMode, ReadOnly, RouteByLatency or RouteRandomly; leave those out: the client of a master name is of its primary, and a replica needs a client of its own", o.MasterName)
	case cluster && o.DB != 0:
		return nil, invalid.Errorf("redisbackend: DB is %d; it must be 0, because a Redis Cluster has no other", o.DB)
	}
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
	o.Dialer = boundedDialer(&o)

	if cluster {
		co := o.Cluster()
		co.ClusterStateReloadInterval = time.Second
		co.DisableRoutingPolicies = true // they ask a node for COMMAND first, for up to 5 s whatever the context
		c := redis.NewClusterClient(co)
		c.OnNewNode(func(node *redis.Client) { node.AddHook(failLate{}) })
		return c, nil
	}
	server := o.Simple()
	if o.MasterName != "" {
		server.Addr, server.Network = o.MasterName, "tcp"
		server.Dialer = newSentinels(&o).dialPrimary
	}
	c := redis.NewClient(server)
	c.AddHook(failLate{})
	return c, nil
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
		if _, is := conn.(interface{ bounded() *boundedConn }); err != nil || is {
			return conn, err
		}
		all := boundReplies(conn, leastTime)
		if explain != nil {
			all.(interface{ bounded() *boundedConn }).bounded().explain = func(err error) error { return explain(network, addr, err) }
		}
		return all, nil
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

// client is a Redis client. Its calls end when their contexts do.
type client struct {
	redis.UniversalClient
	// keepsDeadlines reports that the UniversalClient does so itself. By default go-redis lets
	// a context's deadline pass while it waits for a reply or, in a cluster, for the reply to
	// COMMAND.
	keepsDeadlines bool

	connections int // at most, to one server; maxInFlight if unknown
}

func newClient(c redis.UniversalClient) client {
	switch c := c.(type) {
	case *redis.Client:
		return client{c, c.Options().ContextTimeoutEnabled, c.Options().PoolSize}
	case *redis.ClusterClient:
		o := c.Options()
		return client{c, o.ContextTimeoutEnabled && o.DisableRoutingPolicies && !o.ReadOnly, o.PoolSize}
	}
	return client{c, false, maxInFlight}
}

// roundTrip sends cmds at once, and returns when they have their replies or errors. If
// ctx ends before that, it returns false: the client still holds cmds.
func (c client) roundTrip(ctx context.Context, cmds []redis.Cmder) bool {
	if c.keepsDeadlines {
		c.send(ctx, cmds)
		return true
	}
	return c.within(ctx, func() error {
		c.send(ctx, cmds)
		return nil
	}) == nil
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
	_, err := pipe.Exec(ctx)
	if err != nil && !slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil }) {
		for _, cmd := range cmds {
			cmd.SetErr(err) // go-redis does not, if the server refused the login
		}
	}
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
