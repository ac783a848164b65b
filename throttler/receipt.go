package throttler

import (
	"sync/atomic"

	"github.com/weir-go/weir/throttler/decision"
)

// A Decision is a [decision.Decision] with a receipt: the process that took it can refund
// or settle it, with the backend that charged.
type Decision struct {
	decision.Decision

	// receipt is nil if the decision was not made in this process.
	receipt *receipt
}

// receipt lets a charge be given back or settled once. Copies of a Decision
// share it.
type receipt struct {
	done  atomic.Bool
	parts []taken // if several partitions were charged one by one
	links *links  // if parents were charged
}

// tookNothing is the receipt of every peek: there is nothing to give back.
var tookNothing = func() *receipt {
	r := new(receipt)
	r.done.Store(true)
	return r
}()
