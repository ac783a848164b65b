package goredis

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/busy"
)

// Bounds of one reply, by the lengths that it announces. The largest replies of a sound server
// are the stored counts of a decision (150 kB for a full sliding log), COMMAND (200 kB) and
// CLUSTER SLOTS (700 bytes for each range of slots with three nodes).
const (
	maxReply  = 8 << 20 // bytes of strings and lines, and of the costs below
	itemCost  = 32      // bytes that go-redis allocates for an announced item
	arrayCost = 256     // bytes of stack that it needs for a nested array
)

// boundReplies returns conn with reads that fail before a reply larger than maxReply. go-redis
// allocates the announced size of a reply before any of it has come: a server that answers
// *1000000000 would cost 8 GB. Deadlines bound the server's time, which is at least leastTime:
// see busy.Conn.
func boundReplies(conn net.Conn, leastTime time.Duration) net.Conn {
	c := &boundedConn{Conn: busy.Conn(conn, leastTime)}
	switch socket := conn.(type) {
	case syscall.Conn:
		return &boundedSocket{c, socket}
	case interface{ NetConn() net.Conn }: // a *tls.Conn
		if raw, ok := socket.NetConn().(syscall.Conn); ok {
			return &tlsSocket{c, conn, raw}
		}
	}
	return c
}

type boundedConn struct {
	net.Conn
	framing  framing
	answered bool
	err      error

	last    time.Time // when a read last returned data
	writing bool      // something was written since
	wasIdle bool      // for longIdle, before that

	explain func(err error) error // of a connection that ended without a reply; may be nil

	closed func() // if not nil, called by the first Close
	once   sync.Once
}

func (c *boundedConn) bounded() *boundedConn { return c }

// boundedSocket is a boundedConn that lets go-redis see whether the server hung up
// before it uses the connection again.
type boundedSocket struct {
	*boundedConn
	syscall.Conn
}

// Read reads up to, and not including, the line that announces too much.
func (c *boundedConn) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.answered, c.writing, c.last = true, false, time.Now()
	} else if err != nil {
		if !c.answered && c.explain != nil {
			err = errors.Join(c.explain(err)) // go-redis takes a layer off the error of a login, here Join's
		}
		c.closeUnused(err)
		if c.answered && c.wasIdle && !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, &idleClosedError{err}
		}
	}
	if sound, reason := c.framing.follow(p[:n]); reason != "" {
		c.err = fmt.Errorf("redisbackend: %v sent a reply that no Redis server sends: %s", c.RemoteAddr(), reason)
		return sound, c.err
	}
	return n, err
}

// Write writes p.
func (c *boundedConn) Write(p []byte) (int, error) {
	first := !c.writing
	if first {
		c.writing, c.wasIdle = true, time.Since(c.last) > longIdle
	}
	n, err := c.Conn.Write(p)
	if err != nil {
		if alert := c.alert(); alert != nil {
			err = alert
		}
		c.closeUnused(err)
		if first && n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
			err = &unwrittenError{err}
		}
	}
	return n, err
}

// alert returns the TLS alert that a connection without a reply has received, or nil. With TLS
// 1.3 the server looks at a client's certificate when the client may have written already.
func (c *boundedConn) alert() error {
	if c.answered || c.SetReadDeadline(time.Now().Add(time.Millisecond)) != nil {
		return nil
	}
	var op *net.OpError
	if _, err := c.Conn.Read(make([]byte, 1)); errors.As(err, &op) && op.Op == "remote error" {
		return errors.Join(err) // as explained above
	}
	return nil
}

// closeUnused closes the connection after err, if it has had no reply. go-redis 9.22 leaves a
// connection to the garbage collector if its first command fails: a server that hangs would
// cost a file descriptor for each dial.
func (c *boundedConn) closeUnused(err error) {
	if !c.answered {
		_ = c.Close()
		c.err = err
	}
}

// Close closes the connection.
func (c *boundedConn) Close() error {
	if c.closed != nil {
		c.once.Do(c.closed)
	}
	return c.Conn.Close()
}

// framing follows the framing of RESP, the protocol of Redis. Each item of an array
// begins a line, so framing counts the items to come and knows nothing of nesting.
type framing struct {
	cost  int // of the reply so far
	items int // of the reply that are still to come
	skip  int // bytes of a string to come, with its line end

	// Of the line that has begun.
	kind byte   // its first byte, 0 between lines
	line []byte // the bytes after kind, if they announce a length
}

// longestLength is more than the number of bytes of a length from a sound server.
const longestLength = 16

// follow follows the next bytes. If they announce too much or are not RESP, it returns the
// reason, and how many of them, all in earlier lines, are sound.
func (f *framing) follow(p []byte) (sound int, reason string) {
	for i := 0; i < len(p); {
		n := 1
		switch {
		case f.skip > 0:
			n = min(f.skip, len(p)-i)
			f.skip -= n
			f.endIfWhole()
		case f.kind == 0:
			sound = i
			reason = f.begin(p[i])
		default:
			end := bytes.IndexByte(p[i:], '\n')
			if n = end + 1; end < 0 {
				n = len(p) - i
			}
			f.cost += n
			f.line = append(f.line, p[i:i+min(n, longestLength)]...)
			if follows[f.kind] == nothing {
				f.line = f.line[:0]
			} else if end >= 0 || len(f.line) >= longestLength {
				reason = f.announce()
			}
			if end >= 0 {
				f.kind = 0
				f.endIfWhole()
			}
		}
		if f.cost > maxReply && reason == "" {
			reason = fmt.Sprintf("a reply of more than %d bytes", maxReply)
		}
		if reason != "" {
			return sound, reason
		}
		i += n
	}
	return len(p), ""
}

// follows maps the first byte of a line to the kind of data that follows the line.
var follows = [256]byte{
	'+': nothing, '-': nothing, ':': nothing, '_': nothing, ',': nothing, '#': nothing, '(': nothing,
	'$': text, '!': text, '=': text,
	'*': items, '~': items, '>': items,
	'%': pairs, '|': pairs,
}

const (
	nothing = iota + 1
	text    // of as many bytes as the line says
	items   // as many
	pairs   // of items
)

// begin follows the first byte of a line.
func (f *framing) begin(b byte) (reason string) {
	if follows[b] == 0 {
		return fmt.Sprintf("a line that begins with %q", b)
	}
	if f.items == 0 {
		f.items = 1 // the reply itself
	}
	if b != '|' { // attributes come before the item that they belong to
		f.items--
	}
	f.kind, f.line = b, f.line[:0]
	f.cost++
	return ""
}

// announce reads the length that the line announces.
func (f *framing) announce() (reason string) {
	line, complete := bytes.CutSuffix(f.line, []byte("\r\n"))
	digits, negative := bytes.CutPrefix(line, []byte("-")) // as $-1, which announces nothing
	n := 0
	for _, b := range digits {
		if b < '0' || b > '9' {
			complete = false
			break
		}
		if n = n*10 + int(b-'0'); n > maxReply {
			return fmt.Sprintf("%c%d…", f.kind, n)
		}
	}
	switch {
	case !complete || len(digits) == 0:
		return fmt.Sprintf("%c without a length", f.kind)
	case negative:
	case follows[f.kind] == text:
		f.skip = n + len("\r\n")
		f.cost += n
	default:
		if follows[f.kind] == pairs {
			n *= 2
		}
		f.items += n
		f.cost += arrayCost + itemCost*n
	}
	return ""
}

// endIfWhole makes the next line begin another reply, if this reply is whole.
func (f *framing) endIfWhole() {
	if f.items == 0 && f.skip == 0 && f.cost <= maxReply {
		f.cost = 0
	}
}
