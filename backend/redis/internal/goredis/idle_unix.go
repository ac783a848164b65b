//go:build unix

package goredis

import (
	"cmp"
	"errors"
	"io"
	"syscall"
)

// isReadable reports whether a read of conn would return data at once. It returns an error if
// the other side has closed conn.
func isReadable(conn syscall.Conn) (readable bool, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, err
	}
	failed := raw.Read(func(fd uintptr) bool {
		var buf [1]byte
		var n int
		n, _, err = syscall.Recvfrom(int(fd), buf[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
			n, err = 0, nil
		case n == 0 && err == nil:
			err = io.EOF
		}
		readable = n > 0
		return true
	})
	return readable, cmp.Or(err, failed)
}
