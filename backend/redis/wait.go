package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// Stages of a job. It leaves the first stage once: a batch takes it, or finds that its time is
// over, the breaker opens, or its caller leaves.
const (
	waiting   = iota // for a batch
	claimed          // a batch has it
	failed           // it is never sent: the breaker has opened, or its time is over
	abandoned        // it is never sent: its caller has left
)

// claim takes j into a batch. It returns false if j's caller has left, or the breaker has
// opened.
func (j *job) claim() bool { return j.stage.CompareAndSwap(waiting, claimed) }

// unsentError is the error of a caller that left before its decision was sent. It
// does not wrap driver.ErrUnavailable, because the outcome is known.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return "the decision was not sent: " + e.err.Error() }
func (e *unsentError) Unwrap() error { return e.err }

var (
	errQueued = fmt.Errorf("%w: the decision was in the queue for %v; %w", driver.ErrOverloaded, maxQueued, driver.ErrNotSent)
	errWaited = fmt.Errorf("%w in time: %w", driver.ErrNotSent, context.DeadlineExceeded)
)

// A decision past its deadline asks again and again whether the server is silent, after
// askAgain and then twice as long each time. In the queue it gives up after maxQueued.
const (
	askAgain  = 4 * time.Millisecond
	maxQueued = time.Second
)

// wait returns when j has its outcome, its time is over, or its caller has left.
func (b *batcher) wait(j *job) error {
	var timeUp <-chan time.Time
	if j.ownDeadline {
		timeUp = j.setTimer(j.timeout)
	}
	again := askAgain
	for {
		select {
		case <-j.done:
			return j.err
		case <-j.ctx.Done():
			return b.leave(j, j.ctx.Err())
		case <-timeUp:
		}
		switch now := time.Now(); {
		case b.server.Answers.SilentSince(j.begun):
			return j.leave(errWaited, context.DeadlineExceeded)
		case now.Sub(j.begun) >= max(maxQueued, j.deadline.Sub(j.begun)) && j.stage.Load() == waiting:
			return j.leave(errQueued, errQueued)
		}
		timeUp = j.setTimer(again)
		again *= 2
	}
}

// leave returns the error of a caller that left because of err. After a deadline it says that
// the server did not answer only if that is known, and this process was not late itself.
func (b *batcher) leave(j *job, err error) error {
	unsent, sent := error(&unsentError{err}), err
	if !errors.Is(err, context.Canceled) {
		if b.server.Answers.SilentSince(j.begun) {
			unsent = errWaited
		} else if b.server.Answers.AnsweredSince(j.begun) || time.Since(j.deadline) > askAgain {
			sent = fmt.Errorf("%w: %w", driver.ErrOverloaded, err)
		}
	}
	return j.leave(unsent, sent)
}

// leave returns the error of a caller that leaves: unsent if j was not sent, and never will
// be. It takes no lock: thousands of deadlines may pass at once, and with a mutex, which is
// handed from one caller to the next, the last would leave much later.
func (j *job) leave(unsent, sent error) error {
	if j.stage.CompareAndSwap(waiting, abandoned) {
		j.abandoned = true // the queue holds it until a batch or a sweep reaches it
		return unsent
	}
	if j.stage.Load() == failed {
		<-j.done // the outcome comes at once
		return j.err
	}
	select {
	case <-j.done: // both at once: the answer counts
		return j.err
	default:
		j.abandoned = true
		return sent
	}
}

// setTimer sets j's timer, and returns its channel.
func (j *job) setTimer(d time.Duration) <-chan time.Time {
	if j.timer == nil {
		j.timer = time.NewTimer(d)
	} else {
		j.timer.Reset(d)
	}
	return j.timer.C
}
