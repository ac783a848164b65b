package driver

import "context"

// Backend keeps counts.
//
// Every backend promises:
//
//  1. All or nothing. A take charges every limit of every charge or, if one
//     lacks room, none of them. A refused request drains nothing.
//  2. One round trip. One decision is one command to one server, or a share of
//     one, whether allowed or refused. What is rare may take a few: counts that
//     another version of the policy has charged, counts that move, dozens of limits.
//  3. The answer is whole: every limit is reported, none needs a second call.
//  4. Time is the application's. A decision uses Request.Now; a server's clock
//     is used only to expire stale data.
//  5. A window is live while now is before its reset-at. At that instant a new
//     one opens.
//  6. Reset-at is stored, never recomputed: the same in every answer about one
//     window, from every process, and it never goes back.
//  7. A refund names its window. It returns units to that window and to no
//     other, and never lifts remaining above the quota.
//     It does nothing if the count was reset since.
//  8. A peek writes nothing, and may be served by a replica that lags. A dead
//     window reads as no window.
//  9. No silent double charge. What may have reached the server is not sent
//     again; the error wraps [ErrUnavailable]. If nothing was sent for another
//     reason than a done context, it wraps [ErrNotSent] too.
//  10. A refusal is not an error.
//  11. Keys are opaque. Two different keys, or the same key under two policies
//     or in two partitions, never share a count.
//  12. Bad arguments fail before anything is charged.
//  13. A done context ends the call. The error wraps ctx.Err() and, if anything
//     may have been sent, [ErrUnavailable]. Without that, nothing was charged or
//     given back.
//  14. While the store answers, its answer holds. Request.ServerTime is the server's:
//     it begins when a server is asked, and a process that is late itself goes on,
//     or fails with [ErrOverloaded].
//
// Requests reach a backend validated, with every Cost and Partition filled in, and about
// one partition unless it is a [Joiner]. A Backend must be safe for concurrent use and must
// return when ctx is done. It returns, too, when a server has been silent for the ServerTime.
type Backend interface {
	// Take decides whether all limits have room for the units that the charges' modes ask for
	// and, if so, charges as the modes say: see [quota.Mode] and [Decision.Grant]. The costs of
	// an allowed decision are the units charged, so Settle needs no modes. No charge is Capped.
	Take(ctx context.Context, r Request) (Decision, error)

	// Peek reports whether Take would allow r and, if not, when it would, and charges
	// nothing. Used and ResetAt are the present ones, without the costs of r.
	Peek(ctx context.Context, r Request) (Decision, error)

	// Settle replaces the costs of an allowed decision by the real ones: what
	// was charged too much returns to the window that was charged; what was
	// charged too little is charged at s.Now, room or no room. A refund is a
	// settlement at cost 0. The decision returned reports every limit
	// afterwards.
	Settle(ctx context.Context, s Settlement) (Decision, error)

	// Reset forgets what the counts of r's charges have: the next charge finds them as if
	// nothing had been charged. Costs and limits are ignored.
	Reset(ctx context.Context, r Request) error
}
