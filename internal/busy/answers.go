package busy

import (
	"sync/atomic"
	"time"
)

// Answers is what is known of a server: when it was last asked what it answered, and
// when it was last found silent. It is safe for concurrent use.
type Answers struct {
	started            time.Time
	answered, silenced atomic.Int64 // ns since started
}

// NewAnswers returns Answers of a server that was not asked.
func NewAnswers() *Answers { return &Answers{started: time.Now()} }

// Answered notes that the server has answered what it was asked then.
func (a *Answers) Answered(asked time.Time) {
	if at := int64(asked.Sub(a.started)); at > a.answered.Load() { // or nearly, which is enough
		a.answered.Store(at)
	}
}

// Silent notes that the server has not answered, until now, what it was asked.
func (a *Answers) Silent() { a.silenced.Store(int64(time.Since(a.started))) }

// AnsweredSince reports whether the server has answered what it was asked after then.
func (a *Answers) AnsweredSince(then time.Time) bool {
	return a.answered.Load() >= int64(then.Sub(a.started))
}

// SilentSince reports whether the server was found silent after then, and has answered
// nothing that it was asked after then.
func (a *Answers) SilentSince(then time.Time) bool {
	return a.silenced.Load() >= int64(then.Sub(a.started)) && !a.AnsweredSince(then)
}
