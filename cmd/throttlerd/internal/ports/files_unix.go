//go:build unix

package ports

import (
	"math"
	"syscall"
)

// maxFiles returns how many files the process may open.
func maxFiles() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || uint64(l.Cur) > math.MaxInt32 { //nolint:unconvert // an int64 on FreeBSD
		return math.MaxInt32
	}
	return int(l.Cur)
}
