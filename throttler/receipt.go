package throttler

import (
	"sync/atomic"

	"github.com/weir-go/weir/throttler/decision"
)

// Decision is a decision.Decision that Refund and Settle accept: its fields and methods
// say what was decided. The zero value comes with an error.
type Decision struct {
	decision.Decision

	// receipt is nil if the decision was not made in this process.
	receipt *receipt
}

// receipt lets a charge be given back or settled once. Copies of a Decision
// share it.
type receipt struct{ done atomic.Bool }

// tookNothing is the receipt of every peek: there is nothing to give back.
var tookNothing = func() *receipt {
	r := new(receipt)
	r.done.Store(true)
	return r
}()
