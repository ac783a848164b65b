package goredis

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// This file notices connections that the server closed while they were idle, as managed
// servers do after some minutes.

// longIdle is how long a connection was idle if its end without a reply says nothing about the
// server: the server may have closed it before the request came.
const longIdle = time.Second

// idleClosedError is the error of a request on a connection that was idle for longIdle, and
// ended without a reply.
type idleClosedError struct{ err error }

func (e *idleClosedError) Error() string {
	return fmt.Sprintf("the connection was closed after it had been idle: %v", e.err)
}

func (e *idleClosedError) Unwrap() error { return e.err }

// IsIdleClosed reports whether err is an *idleClosedError.
func IsIdleClosed(err error) bool { return err != nil && errors.As(err, new(*idleClosedError)) }

// unwrittenError is the error of a request of which no byte was sent.
type unwrittenError struct{ err error }

// IsUnwritten reports whether no byte of the request that failed with err was sent, because the
// connection had ended.
func IsUnwritten(err error) bool { return errors.As(err, new(*unwrittenError)) }

func (e *unwrittenError) Error() string { return e.err.Error() }
func (e *unwrittenError) Unwrap() error { return e.err }

// tlsSocket is a boundedConn over TLS that lets go-redis see whether the server hung up before
// it uses the connection again. go-redis 9.22 looks at TCP and unix sockets alone. On TLS a
// readable connection holds the server's goodbye or, with TLS 1.3, a message between requests,
// such as a session ticket, which a read consumes.
type tlsSocket struct {
	*boundedConn
	tls net.Conn
	raw syscall.Conn
}

// SyscallConn returns a RawConn for go-redis's look at idle connections.
func (s *tlsSocket) SyscallConn() (syscall.RawConn, error) { return tlsLook{s}, nil }

type tlsLook struct{ *tlsSocket }

// Read returns an error if the connection cannot be used again. It doesn't call f.
//
// In a busy process the deadline may pass before the read: it looks again while there is
// something to read.
func (l tlsLook) Read(func(fd uintptr) bool) error {
	for {
		if readable, err := isReadable(l.raw); err != nil || !readable {
			return err
		}
		if err := l.tls.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			return err
		}
		n, err := l.tls.Read(make([]byte, 1))
		switch {
		case n > 0:
			return errors.New("data without a request")
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		if err := l.tls.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
}

func (tlsLook) Control(func(fd uintptr)) error    { return errors.ErrUnsupported }
func (tlsLook) Write(func(fd uintptr) bool) error { return errors.ErrUnsupported }
