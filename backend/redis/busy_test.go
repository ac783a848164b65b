package redisbackend_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
)

// The functions of this file tell a busy machine from a fault, for tests of deadlines.

// sent repeats a call with a deadline until it is sent to the server in time.
func sent(t *testing.T, deadline time.Duration, call func(context.Context) (throttler.Decision, error)) (d throttler.Decision, err error) {
	t.Helper()
	eventually(t, "a call to be sent before its deadline", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		d, err = call(ctx)
		return !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, throttler.ErrUnavailable)
	})
	return d, err
}

// processorTime returns the processor time that this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// pauses starts to measure how late the machine wakes a sleeping goroutine. longest ends that,
// and returns the longest delay.
func pauses() (longest func() time.Duration) {
	const nap = 2 * time.Millisecond
	stop, most := make(chan struct{}), make(chan time.Duration)
	go func() {
		var longest time.Duration
		for {
			began := time.Now()
			select {
			case <-stop:
				most <- longest
				return
			case <-time.After(nap):
				longest = max(longest, time.Since(began)-nap)
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-most
	}
}
