package leased

import (
	"encoding/binary"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// tally accounts for takes without an answer. Each take of a lease also charges a count
// of this process alone, which thus includes all units leased of the key, even by a take
// that the other backend executes after its caller has gone.
type tally struct {
	total     int64 // units of that count, by the other backend's last answer
	lost      int64 // units of takes without an answer, not yet found by a later answer
	lostCosts int64 // the part of lost that their requests cost
	failed    bool  // the last take had no answer
}

// lose records that a take of units, for a request of that cost, had no answer.
func (t *tally) lose(units, cost int64) {
	t.failed = true
	t.lost += units
	t.lostCosts += cost
}

// findLost returns the units that takes without an answer have leased in the windows of l's
// last answer. d is the next answer: it leased units, or is a refusal, and reports that total.
// The costs of requests without an answer remain charged.
func (l *lease) findLost(d *driver.Decision, total, units int64) (found int64) {
	t := &l.tally
	// Since total was last read, no other window has been open. After a reset, the windows are
	// others, but may end at the same instants. A refusal does not tell them apart.
	if sameResets(&l.granted, d) && (!d.Allowed || sameWindows(&l.granted, d)) {
		// No more than was lost: the count may contain a take of a lease that was forgotten.
		made := min(max(total-t.total-units, 0), t.lost)
		costs := min(made, t.lostCosts)
		found = made - costs
		t.lost, t.lostCosts = t.lost-made, t.lostCosts-costs
	} else {
		t.lost, t.lostCosts = 0, 0
	}
	t.total, t.failed = total, false
	return found
}

// tallyName is the policy of the counts of the units that a process has leased. Their keys
// are names, which no other process has.
const tallyName = "weir:leased"

// withTally returns r with each charge at cost, and if r has room for it, with an equal
// charge to the tally's count of n, which lasts at least as long as the windows.
func withTally(r *driver.Request, n keyed.Name, cost int64) driver.Request {
	charges := r.Charges()
	extended := make([]quota.Charge, 0, len(charges)+1)
	limit := quota.Limit{Quota: quota.MaxQuota}
	for _, c := range charges {
		c.Cost = cost
		extended = append(extended, c)
		for k := range c.Policy.Limits {
			limit.Window = max(limit.Window, c.Policy.Limits[k].Window, 2*c.Policy.Limits[k].Calendar.Period.Shortest())
		}
	}
	if len(extended) < quota.MaxCharges {
		key := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, n[0]), n[1])
		p := &quota.Policy{Name: tallyName, Limits: []quota.Limit{limit}}
		extended = append(extended, quota.Charge{Policy: p, Key: string(key), Partition: extended[0].Partition, Cost: cost})
	}
	return r.Replace(extended...)
}

// withoutTally returns d about its first n charges, and the used units of the count that
// withTally added.
func withoutTally(d *driver.Decision, n int) (stripped driver.Decision, total int64) {
	charges, results := d.Charges(), d.Results()
	if len(charges) <= n {
		return *d, 0
	}
	stripped = driver.NewDecision(driver.NewRequest(d.Request.Now, charges[:n:n]...))
	stripped.Allowed, stripped.Degraded = d.Allowed, d.Degraded
	copy(stripped.Results(), results)
	return stripped, results[len(results)-1].Used
}
