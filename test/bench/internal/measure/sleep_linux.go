package measure

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A sleeper sleeps with a precision of some 50 µs. In an otherwise idle process, time.Sleep
// wakes up to a millisecond late, because epoll waits no more precisely. A timer's descriptor
// wakes it in time.
type sleeper struct {
	fd   int
	file *os.File // nil if the system has no such timer
}

func newSleeper() *sleeper {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return &sleeper{}
	}
	return &sleeper{fd, os.NewFile(uintptr(fd), "timer")}
}

func (s *sleeper) sleep(d time.Duration) {
	if s.file != nil && unix.TimerfdSettime(s.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil) == nil {
		var expirations [8]byte
		if _, err := s.file.Read(expirations[:]); err == nil {
			return
		}
	}
	time.Sleep(d)
}

func (s *sleeper) close() {
	if s.file != nil {
		_ = s.file.Close()
	}
}
