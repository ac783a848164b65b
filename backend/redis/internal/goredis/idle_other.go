//go:build !unix

package goredis

import "syscall"

// isReadable can't look at a connection on this system, as go-redis can't.
func isReadable(syscall.Conn) (readable bool, err error) { return false, nil }
