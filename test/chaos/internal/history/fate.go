// Package history has the outcome of an operation, as its caller knows it, and the clock of a
// record. Its test records the requests of many processes to one backend, and the answers, and
// checks that the history is linearizable: that one Go model, asked in some order that real time
// allows, would have given every answer to the last unit.
package history

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// Fate is the outcome of an operation that returned, as its caller knows it.
type Fate string

const (
	// Answered operations have a decision.
	Answered Fate = "answered"
	// Unsent operations failed, and the error says that nothing was sent.
	Unsent Fate = "unsent"
	// Unknown operations failed, and may have been carried out.
	Unknown Fate = "unknown"
	// Wrong operations failed with an error that no backend may return.
	Wrong Fate = "wrong"
)

// FateOf returns the fate of an operation under its own context that returned err.
func FateOf(err error) Fate {
	switch {
	case err == nil:
		return Answered
	case errors.Is(err, throttler.ErrInvalid):
		return Wrong
	case errors.Is(err, driver.ErrNotSent):
		return Unsent
	case errors.Is(err, throttler.ErrUnavailable):
		return Unknown
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return Unsent
	}
	return Wrong
}

// Monotonic returns the machine's monotonic clock in ns, which is the same for all processes.
func Monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}
