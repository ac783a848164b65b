package algorithm

import "github.com/weir-go/weir/throttler"

// The fixed window keeps a count and the window's reset-at, which is set when
// the window opens and never again.

func (r *record) fixedUsed(now int64) int64 {
	if now >= r.at {
		return 0
	}
	return r.count
}

func (r *record) fixedCharge(cost, now int64) throttler.Mark {
	if now < r.at {
		r.count = addCount(r.count, cost)
	} else {
		r.at, r.count = r.opensUntil(now), cost
	}
	return throttler.Mark{At: r.at}
}

// opensUntil returns the reset-at of a window that opens at now.
func (r *record) opensUntil(now int64) int64 {
	if r.kind == alignedWindow {
		now -= now % r.window
	}
	return addInstant(now, r.window)
}

func (r *record) fixedGiveBack(mark throttler.Mark, amount int64) {
	if mark.At == r.at {
		r.count = max(r.count-amount, 0)
	}
}
