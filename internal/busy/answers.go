package busy

import (
	"context"
	"sync/atomic"
	"time"
)

// Answers records when the last request that a server answered was sent, and when the
// server was last found silent. It is safe for concurrent use.
type Answers struct {
	started            time.Time
	answered, silenced atomic.Int64 // ns since started
}

// NewAnswers returns Answers for a server that was not asked yet.
func NewAnswers() *Answers { return &Answers{started: time.Now()} }

// Answered records that the server has answered a request sent then.
func (a *Answers) Answered(sent time.Time) {
	if instant := int64(sent.Sub(a.started)); instant > a.answered.Load() { // a race loses little
		a.answered.Store(instant)
	}
}

// Silent records that the server has not answered a request until now.
func (a *Answers) Silent() { a.silenced.Store(int64(time.Since(a.started))) }

// AnsweredSince reports whether the server has answered a request sent at or after t.
func (a *Answers) AnsweredSince(t time.Time) bool {
	return a.answered.Load() >= int64(t.Sub(a.started))
}

// SilentSince reports whether the server was found silent at or after t, and has answered no
// request sent at or after t.
func (a *Answers) SilentSince(t time.Time) bool {
	return a.silenced.Load() >= int64(t.Sub(a.started)) && !a.AnsweredSince(t)
}

// HasTime returns ctx.Err(), for a caller that is about to ask a server. If ctx lasts for less
// than a millisecond, too short for a server to answer, HasTime waits for its end first.
func HasTime(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < time.Millisecond {
		<-ctx.Done()
	}
	return ctx.Err()
}
