package algorithm

import (
	"cmp"
	"slices"

	"github.com/weir-go/weir/throttler"
)

// The sliding log keeps every charge's instant. A charge counts while now is
// less than a window after it, so no window of that length, wherever it
// starts, holds more than the quota. Charges of one millisecond share an entry.

// logPrune takes out entries that no longer count at now. A record is pruned
// once, before anything else is asked of it.
func (r *record) logPrune(now int64) {
	dead := 0
	for dead < len(r.log) && r.log[dead].at+r.window <= now {
		r.count -= r.log[dead].cost
		dead++
	}
	r.log = r.log[dead:]
}

func (r *record) logUsed() int64 { return min(r.count, maxCount) }

func (r *record) logResetAt(now int64) int64 {
	if len(r.log) == 0 {
		return now
	}
	return max(r.log[len(r.log)-1].at+r.window, now)
}

func (r *record) logRetryAt(l limit, cost, now int64) int64 {
	excess := r.count + cost - l.capacity
	for _, e := range r.log {
		excess -= e.cost
		if excess <= 0 {
			return e.at + r.window
		}
	}
	return now
}

// Time that stepped back logs at the last instant: entries stay in order.
func (r *record) logCharge(cost, now int64) throttler.Mark {
	cost = min(cost, maxLogCost)
	last := len(r.log) - 1
	if last < 0 || r.log[last].at < now {
		r.log = append(r.log, entry{at: now, cost: cost})
		r.count += cost
		return throttler.Mark{At: now}
	}
	before := r.log[last].cost
	r.log[last].cost = min(before+cost, maxLogCost)
	r.count += r.log[last].cost - before
	return throttler.Mark{At: r.log[last].at}
}

func (r *record) logGiveBack(mark throttler.Mark, amount int64) {
	i, found := slices.BinarySearchFunc(r.log, mark.At, func(e entry, at int64) int { return cmp.Compare(e.at, at) })
	if !found {
		return
	}
	amount = min(amount, r.log[i].cost)
	r.log[i].cost -= amount
	r.count -= amount
	if r.log[i].cost == 0 {
		r.log = slices.Delete(r.log, i, i+1)
	}
}
