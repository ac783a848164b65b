package leased

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A lease contains the state of one key under one or several policies, and the units
// that this process holds for it. The stripe's lock guards it.
type lease struct {
	keyed.Entry
	names  []keyed.Name // the counts of each charge, if there are several
	limits keyed.Name   // the limits of all charges of the last take

	// held units may be spent from since until the first of d's windows ends. d is the
	// last take that leased units.
	held         int64
	since, until int64 // ms
	demand       demand
	lastAsk      int64    // ms
	renewal      *renewal // the renewal in progress, or nil
	free         int64    // units that no process held when the other backend was last asked
	tooMuch      int64    // cost that the other backend's last answer refused; 0 if it allowed the take
	tally        tally

	d driver.Decision
}

// tally accounts for takes without an answer. Each take of a lease also charges a count
// of this process alone, which thus includes all units leased of the key, even by a take
// that the other backend executes after its caller has gone.
type tally struct {
	total      int64 // units of that count, by the other backend's last answer
	lost       int64 // units of takes without an answer, not yet found by a later answer
	unanswered int64 // the part of lost that the requests themselves cost
	failed     bool  // the last take had no answer
}

// lose records that a take of units, for a request of that cost, had no answer.
func (t *tally) lose(units, cost int64) {
	t.failed = true
	t.lost += units
	t.unanswered += cost
}

// found returns the units that takes without an answer have leased in the windows of l's
// last answer. d is the next answer: it leased units, or is a refusal, and reports that total.
// The costs of requests without an answer remain charged.
func (l *lease) found(d *driver.Decision, total, units int64) (found int64) {
	t := &l.tally
	// Since total was last read, no other window has been open. After a reset, the windows are
	// others, but may end at the same instants. A refusal does not tell them apart.
	if sameResets(&l.d, d) && (!d.Allowed || sameWindows(&l.d, d)) {
		// No more than was lost: the count may contain a take of a lease that was forgotten.
		made := min(max(total-t.total-units, 0), t.lost)
		costs := min(made, t.unanswered)
		found = made - costs
		t.lost, t.unanswered = t.lost-made, t.unanswered-costs
	} else {
		t.lost, t.unanswered = 0, 0
	}
	t.total, t.failed = total, false
	return found
}

// renewal is a take of the other backend that other takes wait for.
type renewal struct {
	waiters int // guarded by the stripe's lock
	done    chan struct{}

	// Set before done is closed.
	err       error
	abandoned bool // the context of the take that made it has ended
}

// failed reports whether the waiting takes fail, too, because the other backend doesn't
// answer. They don't if r was abandoned: they may have more time than the take that made it.
func (r *renewal) failed() bool {
	return errors.Is(r.err, driver.ErrUnavailable) && !r.abandoned
}

// canSpend reports whether to answer a take from the lease. The last unit is not spent
// before the next lease has been asked for: the client would read that nothing remains.
func (l *lease) canSpend(now, cost int64) bool { return l.held > cost && now >= l.since }

// canAnswer reports whether l holds enough for a take after a renewal that leased nothing.
func (l *lease) canAnswer(now, cost int64) bool { return l.held >= cost && now < l.until }

// asksAside reports whether a take should ask the other backend and lease nothing: its cost,
// or less, was refused last, or the key is not busy.
func (l *lease) asksAside(now, cost, busy int64) bool {
	switch {
	case l.held >= cost:
		return false
	case l.tooMuch > 0 && cost >= l.tooMuch:
		return l.renewal != nil || l.tally.lost == 0
	}
	return l.renewal == nil && l.tally.lost == 0 && l.demand.perSecond(now) < busy
}

// spend spends cost of the held units, or returns units if cost is negative, as for a
// settlement. It returns the decision about r. The limit that binds is the one that binds
// in the other backend's answers.
func (l *lease) spend(r *driver.Request, cost int64) driver.Decision {
	l.held -= cost
	d := driver.NewDecision(*r)
	d.Allowed = true
	results := d.Results()
	copy(results, l.d.Results())
	i := 0
	for _, c := range d.Charges() {
		for k := range c.Policy.Limits {
			limit := &c.Policy.Limits[k]
			results[i].More = results[i].Remaining(limit)
			results[i].Used = limit.Capacity() - l.held
			i++
		}
	}
	return d
}

// answer spends cost for r from d, a take that has just leased units, and returns the
// decision about r. Held units count as not used.
func (l *lease) answer(r *driver.Request, d *driver.Decision, cost int64) driver.Decision {
	l.held -= cost
	a := driver.NewDecision(*r)
	a.Allowed = true
	results := a.Results()
	copy(results, d.Results())
	for i := range results {
		results[i].Used -= l.held
	}
	return a
}

// note records in l the free, refused and used units that d, a take, reports.
func (l *lease) note(d *driver.Decision) {
	if l.free, l.tooMuch = free(d), 0; !d.Allowed {
		l.tooMuch = d.Charges()[0].Cost
	}
	if sameResets(&l.d, d) {
		for i := range d.Results() {
			l.d.Results()[i].Used = d.Results()[i].Used
		}
	}
}

// grant adds the units of d, an allowed take.
func (l *lease) grant(d *driver.Decision) {
	l.held += d.Charges()[0].Cost
	l.d = d.About(driver.NewRequest(d.Request.Now, keyed.Clone(d.Charges())...))
	l.until = d.Results()[0].ResetAt
	for _, result := range d.Results() {
		l.until = min(l.until, result.ResetAt)
	}
	l.since = d.Request.Now
}

// drop forgets l's held units, and returns the settlement that refunds them. It copies the
// results, which later takes change while the settlement is made without the lock.
func (l *lease) drop() driver.Settlement {
	r := l.d.Request
	charged := driver.NewDecision(withCost(&r, l.held))
	charged.Allowed = true
	copy(charged.Results(), l.d.Results())
	st := driver.Settlement{Charged: charged, Costs: make([]int64, len(r.Charges()))}
	l.held = 0
	return st
}

// maxKeyBytes bounds a leased key and its partition together: the lease keeps them, to
// name the counts when it is given back.
const maxKeyBytes = 4 << 10

// leasable returns the cost of charges, or 0 if no lease can cover them: all must have the
// same cost and mode, fixed windows alone, and keys that are not too long. Charges to be
// recorded, or charged in part, go to the other backend.
func leasable(charges []quota.Charge) int64 {
	if len(charges) == 0 {
		return 0
	}
	cost := charges[0].Cost
	for i := range charges {
		c := &charges[i]
		if c.Cost != cost || c.Mode != charges[0].Mode || c.Mode != quota.Enforce && c.Mode != quota.Check || len(c.Key)+len(c.Partition) > maxKeyBytes {
			return 0
		}
		limits := c.Policy.Limits
		for k := range limits {
			if !limits[k].Algorithm.ResetsAtOnce() {
				return 0
			}
		}
	}
	return cost
}

// nameOf names the counts of charges, regardless of their limits.
func (b *Backend) nameOf(charges []quota.Charge) keyed.Name {
	n := b.names.Name(&charges[0])
	for i := range charges[1:] {
		n = n.And(b.names.Name(&charges[1+i]))
	}
	return n
}

// limitsOf names the limits of charges.
func (b *Backend) limitsOf(charges []quota.Charge) (n keyed.Name) {
	for i := range charges {
		limits := charges[i].Policy.Limits
		for k := range limits {
			window := uint64(limits[k].Window) << 1
			if limits[k].Aligned {
				window |= 1
			}
			n = n.And(keyed.Name{uint64(limits[k].Quota), window})
			if c := &limits[k].Calendar; c.Period != 0 {
				n = n.And(b.names.Numbered(c.Zone, uint64(c.Period), uint64(c.Day)))
			}
		}
		n[0]++ // marks the end of a policy
	}
	return n
}

// namesOf names the counts of each of charges.
func (b *Backend) namesOf(charges []quota.Charge) []keyed.Name {
	names := make([]keyed.Name, len(charges))
	for i := range charges {
		names[i] = b.names.Name(&charges[i])
	}
	return names
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

// withCost returns r with each charge at that cost.
func withCost(r *driver.Request, cost int64) driver.Request {
	charges := slices.Clone(r.Charges())
	for i := range charges {
		charges[i].Cost = cost
	}
	return r.Replace(charges...)
}

// free returns how many units fit into all limits after d.
func free(d *driver.Decision) int64 {
	least, i, results := int64(quota.MaxQuota), 0, d.Results()
	for _, c := range d.Charges() {
		for k := range c.Policy.Limits {
			least = min(least, results[i].Remaining(&c.Policy.Limits[k]))
			i++
		}
	}
	return least
}

// capacity returns how many units fit into all limits of charges while they are unused.
func capacity(charges []quota.Charge) int64 {
	least := int64(quota.MaxQuota)
	for i := range charges {
		limits := charges[i].Policy.Limits
		for k := range limits {
			least = min(least, limits[k].Quota)
		}
	}
	return least
}

// sameWindows reports whether two allowed takes were charged to the same windows.
func sameWindows(a, b *driver.Decision) bool {
	return slices.EqualFunc(a.Results(), b.Results(), func(a, b driver.Result) bool { return a.Mark == b.Mark })
}

// sameResets reports whether the windows of two answers end at the same instants.
func sameResets(a, b *driver.Decision) bool {
	return slices.EqualFunc(a.Results(), b.Results(), func(a, b driver.Result) bool { return a.ResetAt == b.ResetAt })
}

// addHeld makes d, a peek, report held units of l's windows as not used.
func addHeld(d, l *driver.Decision, held int64) {
	i, results := 0, d.Results()
	for _, c := range d.Charges() {
		for k := range c.Policy.Limits {
			result := &results[i]
			if result.ResetAt == l.Results()[i].ResetAt {
				result.Used = max(result.Used-held, 0) // another process may have reset the count
			}
			if result.RetryAt != 0 && result.Used+c.Cost <= c.Policy.Limits[k].Capacity() {
				result.RetryAt = 0
			}
			i++
		}
	}
	d.Grant()
}

// extra returns how much more than charged st costs, and whether the difference is the same
// for all charges.
func extra(st *driver.Settlement) (units int64, even bool) {
	charges := st.Charged.Charges()
	for i := range charges {
		m := st.Costs[i] - charges[i].Cost
		if i > 0 && m != units {
			return 0, false
		}
		units = m
	}
	return units, true
}

// demand counts the units that a key asks for, including refused ones.
type demand struct {
	second    int64 // of cur
	cur, prev int64
}

func (d *demand) add(cost, now int64) {
	d.roll(now)
	d.cur += cost
}

func (d *demand) roll(now int64) {
	second := now / 1000
	switch {
	case second == d.second+1:
		d.second, d.prev, d.cur = second, d.cur, 0
	case second > d.second+1 || second < d.second-1: // or the clock was set back
		d.second, d.prev, d.cur = second, 0, 0
	}
}

// perSecond estimates the units asked for in the second before now.
func (d *demand) perSecond(now int64) int64 {
	d.roll(now)
	return d.cur + d.prev*(1000-now%1000)/1000
}
