// Package ports serves the ports of a service so that the clients of one port can't take the
// connections of another: each has a bound, and no connection waits for its client for long.
package ports

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Times of a request and its connection. A proxy that keeps connections, such as nginx for 60
// s, closes them before Idle has passed.
const (
	readHeader = 5 * time.Second
	read       = 10 * time.Second
	write      = 2 * time.Minute // longer than a profile
	Idle       = 75 * time.Second
)

// NewServer returns the server of a port. It logs the failures of connections, such as of TLS. A handler that reads no body and takes longer than 10
// s calls Unhurried.
func NewServer(h http.Handler, errors *slog.Logger) *http.Server {
	return &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(errors.Handler(), slog.LevelInfo), ReadHeaderTimeout: readHeader, ReadTimeout: read, WriteTimeout: write, IdleTimeout: Idle}
}

// Unhurried returns h without the bound of the time to read a request, whose end would end the
// request's context.
func Unhurried(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		h(w, r)
	}
}

// Bounds of the connections of a port.
const (
	share        = 8    // a port of HTTP has an eighth of the files that a process may open
	maxHTTP      = 4096 // connections, however many files there are
	maxStrangers = 16   // connections of clients that are refused in any case
)

// HTTP returns how many connections a port of HTTP may have.
func HTTP() int { return min(max(1, maxFiles()/share), maxHTTP) }

// GRPC returns how many connections the port of gRPC may have: each of a proxy's threads has
// one.
func GRPC() int { return max(1, maxFiles()/2) }

// Bounded returns l with at most n connections: others wait. If isStranger is not nil, it says
// of an address that its requests are refused: of these connections, few are open at a time,
// and others are closed.
func Bounded(l net.Listener, n int, isStranger func(net.Addr) bool) net.Listener {
	ctx, cancel := context.WithCancel(context.Background())
	return &bounded{Listener: l, ctx: ctx, cancel: cancel, isStranger: isStranger, places: make(chan struct{}, n), strangers: make(chan struct{}, min(n, maxStrangers))}
}

type bounded struct {
	net.Listener
	ctx        context.Context // until Close
	cancel     context.CancelFunc
	isStranger func(net.Addr) bool
	places     chan struct{} // one for each connection
	strangers  chan struct{}
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		select {
		case b.places <- struct{}{}:
		case <-b.ctx.Done():
			return nil, net.ErrClosed
		}
		c, err := b.Listener.Accept()
		if err != nil {
			<-b.places
			return nil, err
		}
		places := b.places
		if b.isStranger != nil && b.isStranger(c.RemoteAddr()) {
			<-b.places
			places = b.strangers
			select {
			case places <- struct{}{}:
			default:
				_ = c.Close()
				continue
			}
		}
		return &conn{Conn: c, leave: sync.OnceFunc(func() { <-places })}, nil
	}
}

func (b *bounded) Close() error {
	b.cancel()
	return b.Listener.Close()
}

// conn is a connection of a bounded listener.
type conn struct {
	net.Conn
	leave   func()
	pending atomic.Bool // the last Read was full, so there may be more
}

func (c *conn) Read(to []byte) (n int, err error) {
	n, err = c.Conn.Read(to)
	c.pending.Store(n == len(to))
	return n, err
}

// linger bounds the time and the bytes of a client that still sends when its connection is
// closed.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 2 << 20
)

// Close closes the connection. net/http answers an invalid header before it has read all
// headers. The system resets a connection that is closed with bytes unread, and a proxy that
// sees the reset before the answer takes the service for one that can't be reached.
func (c *conn) Close() error {
	defer c.leave()
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && c.pending.Load() && half.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
	return c.Conn.Close()
}
