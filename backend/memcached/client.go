package memcachedbackend

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/throttler/driver"
)

// dialTimeout is the least time that a dial gets, even if the call that needs it ends earlier.
const dialTimeout = time.Second

// Client keeps the connections to one Memcached server. It is safe for concurrent use.
//
// It implements the part of Memcached's text protocol that the backend needs, with a deadline
// for each call. A call waits for a new connection for a third of its time. A connection that
// is ready later serves the next call.
type Client struct {
	// DialContext dials addr. If nil, a net.Dialer dials; for TLS, use a tls.Dialer. It must
	// not change after the first call.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)

	addr string

	mu     sync.Mutex
	idle   []*conn // the last used one at the end
	closed bool
}

// NewClient returns a Client of the server at addr: host:port, or the path of a Unix
// socket, which begins with a slash. It dials nothing.
func NewClient(addr string) *Client { return &Client{addr: addr} }

// Ping asks the server for its version.
func (c *Client) Ping(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(DefaultDeadline)
	}
	return c.call(deadline, true, func(cn *conn) error {
		line, err := cn.ask([]byte("version\r\n"))
		if err == nil && !bytes.HasPrefix(line, []byte("VERSION ")) {
			err = replyError(line)
		}
		return err
	})
}

// Close closes each connection once no call uses it. Later calls dial a connection each.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.closeIdle()
	return nil
}

// closeIdle closes the idle connections. c.mu is held.
func (c *Client) closeIdle() {
	for _, cn := range c.idle {
		_ = cn.Close()
	}
	c.idle = nil
}

// conn is a connection. It is closed after an error, because the next reply may belong to the
// call that failed.
type conn struct {
	net.Conn
	r        *bufio.Reader
	deadline time.Time // of the call
}

// call makes a call on an idle connection or a new one. If the connection breaks,
// and the call may be repeated, it is made once more, on a new one: the server may
// have restarted since the connection was used.
func (c *Client) call(deadline time.Time, repeatable bool, f func(*conn) error) error {
	cn := c.reuse()
	err := c.callOn(cn, deadline, f)
	if broken(err) && repeatable {
		c.mu.Lock()
		c.closeIdle() // they broke with it
		c.mu.Unlock()
		err = c.callOn(nil, deadline, f)
	}
	return err
}

// callOn makes a call on cn or, if it is nil, on a new connection.
func (c *Client) callOn(cn *conn, deadline time.Time, f func(*conn) error) (err error) {
	if cn == nil {
		if cn, err = c.dial(time.Until(deadline)); err != nil {
			return err
		}
	}
	cn.deadline = deadline
	if err = f(cn); err != nil {
		_ = cn.Close()
		return timeoutOf(err)
	}
	c.keep(cn)
	return nil
}

// keep keeps cn for the next call.
func (c *Client) keep(cn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || cn.r.Buffered() > 0 { // more than the reply: the rest would pass for the next reply
		_ = cn.Close()
	} else {
		c.idle = append(c.idle, cn)
	}
}

func (c *Client) reuse() *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.idle) - 1
	if last < 0 {
		return nil
	}
	cn := c.idle[last]
	c.idle = c.idle[:last]
	return cn
}

// dial returns a new connection, or an error once a third of timeout, the call's, has passed:
// the rest is for the reply. A connection that is ready later serves the next call.
func (c *Client) dial(timeout time.Duration) (*conn, error) {
	type dialed struct {
		*conn
		err error
	}
	result := make(chan dialed)
	end := time.Now().Add(timeout / 3)
	ctx := busy.NewContext() // gives a process that is late more time
	ctx.StartWithin(context.Background(), end)
	defer ctx.Stop()
	done := ctx.Done()
	go func() {
		cn, err := c.connect(max(timeout, dialTimeout))
		select {
		case result <- dialed{cn, err}:
		case <-done:
			if err == nil {
				c.keep(cn)
			}
		}
	}()
	select {
	case d := <-result:
		return d.conn, d.err
	case <-done:
		if busy.Late(end) {
			return nil, fmt.Errorf("%w: no connection was made: %w", driver.ErrOverloaded, context.DeadlineExceeded)
		}
		return nil, fmt.Errorf("no connection was made: %w", context.DeadlineExceeded)
	}
}

func (c *Client) connect(timeout time.Duration) (*conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	dial := c.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	network := "tcp"
	if strings.HasPrefix(c.addr, "/") {
		network = "unix"
	}
	nc, err := dial(ctx, network, c.addr)
	if err != nil {
		return nil, timeoutOf(err)
	}
	nc = busy.Conn(nc, busy.LeastTime)
	return &conn{Conn: nc, r: bufio.NewReader(nc)}, nil
}

// ask sends a request and returns the first line of the reply, without its end. It
// is valid until the next read.
func (cn *conn) ask(request []byte) ([]byte, error) {
	// Set one by one, so that a delay of this process between them is not the server's.
	if err := cn.SetWriteDeadline(cn.deadline); err != nil {
		return nil, err
	}
	if _, err := cn.Write(request); err != nil {
		return nil, err
	}
	if err := cn.SetReadDeadline(cn.deadline); err != nil {
		return nil, err
	}
	return cn.line()
}

func (cn *conn) line() ([]byte, error) {
	line, err := cn.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}

// stored is an item as Memcached keeps it. The zero value says that there is no item.
type stored struct {
	value []byte
	cas   uint64 // changes with each write
	found bool
}

// gets returns the items of keys, in their order. No value may have more than
// maxBytes. Reading twice does no harm, so the call may be repeated.
func (c *Client) gets(deadline time.Time, keys []string, maxBytes int) ([]stored, error) {
	size := len("gets") + len(crlf)
	for _, key := range keys {
		size += 1 + len(key)
	}
	request := append(make([]byte, 0, size), "gets"...)
	for _, key := range keys {
		request = append(append(request, ' '), key...)
	}
	request = append(request, crlf...)
	items := make([]stored, len(keys))
	err := c.call(deadline, true, func(cn *conn) error {
		clear(items)
		line, err := cn.ask(request)
		// The server sends the items in the order of the keys. Insisting on that order bounds
		// the reply.
		for next := 0; err == nil && string(line) != "END"; line, err = cn.line() {
			header, isValue := bytes.CutPrefix(line, []byte("VALUE "))
			if !isValue {
				return replyError(line)
			}
			key, header, _ := bytes.Cut(header, []byte(" "))
			for next < len(keys) && keys[next] != string(key) {
				next++
			}
			if next == len(keys) {
				return fmt.Errorf("the server replied with an item that was not asked for: %.250q", key)
			}
			if items[next], err = cn.value(header, maxBytes); err != nil {
				return err
			}
			next++
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}

// value reads an item. line is the announcing line after the key: "flags bytes cas".
func (cn *conn) value(line []byte, maxBytes int) (item stored, err error) {
	_, numbers, _ := bytes.Cut(line, []byte(" "))
	bytesField, casField, _ := bytes.Cut(numbers, []byte(" "))
	size, sizeErr := strconv.Atoi(string(bytesField))
	cas, casErr := strconv.ParseUint(string(casField), 10, 64)
	if sizeErr != nil || casErr != nil || size < 0 || size > maxBytes {
		return item, fmt.Errorf("the server replied with an item of %.20q bytes; at most %d are written", bytesField, maxBytes)
	}
	b := make([]byte, size+len(crlf))
	if _, err = io.ReadFull(cn.r, b); err != nil {
		return item, err
	}
	if string(b[size:]) != crlf {
		return item, errors.New("the server replied with an item that is longer than announced")
	}
	return stored{b[:size], cas, true}, nil
}

const crlf = "\r\n"

// swap writes value in place of old or, if old was not found, adds it. It returns false if the
// server's item is not old.
func (c *Client) swap(deadline time.Time, key string, old stored, value []byte, expiration int32) (written bool, err error) {
	command := "add "
	if old.found {
		command = "cas "
	}
	request := make([]byte, 0, len(command)+len(key)+len(value)+64)
	request = append(append(append(request, command...), key...), " 0 "...)
	request = append(strconv.AppendInt(request, int64(expiration), 10), ' ')
	request = strconv.AppendInt(request, int64(len(value)), 10)
	if old.found {
		request = strconv.AppendUint(append(request, ' '), old.cas, 10)
	}
	request = append(append(append(request, crlf...), value...), crlf...)
	err = c.call(deadline, false, func(cn *conn) error {
		line, err := cn.ask(request)
		if err != nil {
			return err
		}
		switch string(line) {
		case "STORED":
			written = true
		case "NOT_STORED", "EXISTS", "NOT_FOUND":
		default:
			return replyError(line)
		}
		return nil
	})
	return written, err
}

// errItemTooLarge is the server's error for an item above its -I.
var errItemTooLarge = errors.New("the item is larger than memcached's -I allows")

// replyError returns a line of a reply as an error.
func replyError(line []byte) error {
	if bytes.HasPrefix(line, []byte("SERVER_ERROR object too large")) {
		return errItemTooLarge
	}
	return fmt.Errorf("the server replied %.200q", line)
}

// broken reports whether a connection ended without a reply.
func broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// timeoutOf returns err, which wraps context.DeadlineExceeded too if it is a timeout.
func timeoutOf(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}
