package throttler

import (
	"context"
	"time"
)

// Backend keeps counts. Users hold a [Throttler]; only those who write a
// backend, or wrap one, implement this. Package backendtest checks the contract.
//
// What every backend promises:
//
//  1. All or nothing. A take charges every limit of every charge or, if one
//     lacks room, none of them. A refused request drains nothing.
//  2. One round trip. One decision is one command to one server, whatever the
//     number of limits and whether allowed or refused.
//  3. The answer is whole: every limit is reported, none needs a second call.
//  4. Time is the application's. A decision uses Request.Now; a server's clock
//     is used only to expire stale data.
//  5. A window is live while now is before its reset-at. At that instant a new
//     one opens.
//  6. Reset-at is stored, never recomputed: the same in every answer about one
//     window, from every process, and it never goes back.
//  7. A refund names its window. It returns units to that window and to no
//     other, and never lifts remaining above the quota.
//  8. A peek writes nothing, and may be served by a replica that lags. A dead
//     window reads as no window.
//  9. No silent double charge. What may have reached the server is not sent
//     again; the error wraps [ErrUnavailable].
//  10. A refusal is not an error.
//  11. Keys are opaque. Two different keys, or the same key under two policies
//     or in two partitions, never share a count.
//  12. Bad arguments fail before anything is charged.
//  13. A done context ends the call. The error wraps ctx.Err() and, if anything
//     may have been sent, [ErrUnavailable]. Without that, nothing was charged or
//     given back.
//
// Requests reach a backend validated, with every Partition filled in and Now
// in whole milliseconds. A Backend must be safe for concurrent use and must
// return when ctx is done.
type Backend interface {
	// Take decides and, if all limits have room, charges.
	Take(ctx context.Context, r Request) (Decision, error)

	// Peek reports what Take would, and charges nothing.
	Peek(ctx context.Context, r Request) (Decision, error)

	// Settle replaces the costs of an allowed decision by the real ones: what
	// was charged too much returns to the window that was charged; what was
	// charged too little is charged at s.Now, room or no room. A refund is a
	// settlement at cost 0. The decision returned reports every limit
	// afterwards.
	Settle(ctx context.Context, s Settlement) (Decision, error)
}

// Request is one decision to make.
//
// A throttler sends costs of 1 and more. A backend that wraps another may send 0:
// that asks for nothing, is allowed unless a limit is in debt, and opens no window.
type Request struct {
	Now     time.Time // whole milliseconds
	Charges []Charge  // at least one, all of one partition, no two for one count
}

// Settlement corrects the costs of an allowed decision.
type Settlement struct {
	Now     time.Time // whole milliseconds
	Charged Decision  // as the same backend returned it
	Costs   []int64   // real costs, one for each of Charged.Charges
}
