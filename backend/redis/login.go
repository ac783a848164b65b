package redisbackend

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// loginDialer returns dial, but its connections have logged in.
//
// go-redis dials in the background: a connection that is late for the decision that
// needed it serves the next. But it sends HELLO, with the password, and SELECT within
// that decision's deadline, and drops the connection if that passes. No decision would
// ever get a connection to a server that is so far away. So the dialer sends what
// go-redis will send, and the connection answers that itself. If go-redis sends anything
// else, it is sent.
func loginDialer(dial dialFunc, o *redis.UniversalOptions) dialFunc {
	if o.StreamingCredentialsProvider != nil { // which is asked for each connection, by go-redis
		return dial
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		user, password, err := credentials(ctx, o)
		if err == nil {
			err = conn.(interface{ bounded() *boundedConn }).bounded().logIn(ctx, loginOf(o, user, password))
		}
		if err != nil {
			_ = conn.Close()
			return nil, &net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: err}
		}
		return conn, nil
	}
}

func credentials(ctx context.Context, o *redis.UniversalOptions) (user, password string, err error) {
	switch {
	case o.CredentialsProviderContext != nil:
		return o.CredentialsProviderContext(ctx)
	case o.CredentialsProvider != nil:
		user, password = o.CredentialsProvider()
		return user, password, nil
	}
	return o.Username, o.Password, nil
}

// exchange is what is sent at once, and the replies.
type exchange struct {
	commands int
	request  []byte
	replies  []byte
}

func (e *exchange) add(args ...string) {
	e.commands++
	e.request = strconv.AppendInt(append(e.request, '*'), int64(len(args)), 10)
	for _, arg := range args {
		e.request = strconv.AppendInt(append(e.request, "\r\n$"...), int64(len(arg)), 10)
		e.request = append(append(e.request, "\r\n"...), arg...)
	}
	e.request = append(e.request, "\r\n"...)
}

// loginOf returns what go-redis sends first on a new connection.
func loginOf(o *redis.UniversalOptions, user, password string) []exchange {
	all := make([]exchange, 2)
	hello, protocol := []string{"hello", "3"}, o.Protocol
	if protocol == 2 {
		hello[1] = "2"
	}
	if password != "" {
		hello = append(hello, "auth", cmp.Or(user, "default"), password)
	}
	if o.ClientName != "" {
		hello = append(hello, "setname", o.ClientName)
	}
	all[0].add(hello...)
	if o.DB > 0 {
		all[1].add("select", strconv.Itoa(o.DB))
	}
	if o.ClientName != "" {
		all[1].add("client", "setname", o.ClientName)
	}
	return all
}

// logIn sends all, reads the replies, and keeps them for go-redis.
func (c *boundedConn) logIn(ctx context.Context, all []exchange) error {
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
		defer func() { _ = c.SetDeadline(time.Time{}) }()
	}
	var request []byte
	for i := range all {
		request = append(request, all[i].request...)
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	var whole replies
	buf := make([]byte, 1024)
	n, from := 0, 0
	for i := range all {
		for k := 0; k < all[i].commands; {
			if from == n {
				var err error
				if n, err = c.Read(buf); err != nil {
					return err
				}
				from = 0
				continue
			}
			whole.follow(buf[from : from+1]) // sound: Read has followed it
			all[i].replies = append(all[i].replies, buf[from])
			from++
			if whole.kind == 0 && whole.items == 0 && whole.skip == 0 {
				k++
			}
		}
	}
	if from < n {
		return errReply
	}
	c.answered, c.login = false, all
	return nil
}

// heard reports whether p was sent when the connection logged in, and has its replies
// read next.
func (c *boundedConn) heard(p []byte) bool {
	next := c.login[0]
	if c.login = c.login[1:]; !bytes.Equal(p, next.request) {
		c.login = nil
		return false
	}
	c.replay = next.replies
	return true
}

// dialContext is the context of a flight, in which go-redis waits for a connection until
// a third of its time has passed. The rest is for the answer: a flight that used up its
// time for the connection would break it, and the next one would wait for another.
//
// A client that keeps deadlines waits for Done while it has no connection, and later for
// the deadline alone. Its first look at Done is at whether the flight may begin.
type dialContext struct {
	context.Context

	mu    sync.Mutex
	looks int
	timer *time.Timer
	done  chan struct{}
}

func (c *dialContext) start(ctx context.Context) { c.Context, c.looks, c.done = ctx, 0, nil }

func (c *dialContext) stop() {
	if c.done != nil {
		c.timer.Stop()
	}
}

// Done implements context.Context.
func (c *dialContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	deadline, bounded := c.Deadline()
	if c.looks++; c.looks == 1 || !bounded {
		return c.Context.Done()
	}
	if c.done == nil {
		done := make(chan struct{})
		c.done, c.timer = done, time.AfterFunc(time.Until(deadline)/3, func() { close(done) })
	}
	return c.done
}

// Err implements context.Context.
func (c *dialContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default: // or nil
		return nil
	}
}
