// Package busy distinguishes the delays of this process from a server's. A process that is
// short of CPU may find that a deadline has passed, although the reply arrived long before.
package busy

import (
	"errors"
	"net"
	"os"
	"time"
)

const (
	// LeastTime is the least time that a server gets for a reply, however late this process asked.
	LeastTime = 50 * time.Millisecond

	soon     = LeastTime / 5    // a nearer deadline was meant for an earlier time
	lateness = soon / 2         // a look later than this after a deadline shows a lack of CPU
	lookTime = time.Millisecond // enough for a read to return data that has arrived
	looks    = 2                // after a deadline: the process may be stopped in one
	maxLooks = 64               // if a server sends byte by byte, or the process is always late
)

// Silence is the error of a read that timed out, although this process looked after the
// server had had its time: nothing had arrived.
type Silence struct{ Err error }

func (s *Silence) Error() string { return s.Err.Error() }

// Unwrap returns the timeout.
func (s *Silence) Unwrap() error { return s.Err }

// Conn returns conn with deadlines that are the server's alone. Go fails a read after its
// deadline without a look at the connection. A read of the returned connection looks, and
// returns data that has arrived. It looks again, and gives the server more time, while this
// process is late. A deadline that is set when it has passed, or nearly has, is moved to
// leastTime from then.
func Conn(conn net.Conn, leastTime time.Duration) net.Conn {
	return &patientConn{Conn: conn, leastTime: min(leastTime, LeastTime)}
}

type patientConn struct {
	net.Conn
	leastTime time.Duration
	deadline  time.Time // when a read ends
	looked    int       // number of looks since a deadline was set
}

func (c *patientConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for tries := looks; n == 0 && tries > 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.looked < maxLooks; c.looked++ {
		now, wait := time.Now(), lookTime
		if now.Sub(c.deadline) > lateness {
			tries, wait = looks, soon
		} else {
			tries--
		}
		c.deadline = now.Add(wait)
		if err := c.Conn.SetReadDeadline(c.deadline); err != nil {
			return 0, err
		}
		n, err = c.Conn.Read(p)
	}
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		err = &Silence{err}
	}
	return n, err
}

// SetDeadline implements net.Conn.
func (c *patientConn) SetDeadline(t time.Time) error {
	c.deadline, c.looked = c.fair(t), 0
	return c.Conn.SetDeadline(c.deadline)
}

// SetReadDeadline implements net.Conn.
func (c *patientConn) SetReadDeadline(t time.Time) error {
	c.deadline, c.looked = c.fair(t), 0
	return c.Conn.SetReadDeadline(c.deadline)
}

// SetWriteDeadline implements net.Conn.
func (c *patientConn) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(c.fair(t)) }

func (c *patientConn) fair(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return Fair(t, c.leastTime)
}

// Fair returns deadline or, if it has passed, or nearly has, leastTime from now.
func Fair(deadline time.Time, leastTime time.Duration) time.Time {
	if now := time.Now(); deadline.Sub(now) < min(soon, leastTime) {
		return now.Add(leastTime)
	}
	return deadline
}
