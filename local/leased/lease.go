package leased

import (
	"errors"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
)

// A lease is the state of one key under one or several policies. The stripe's lock guards it.
//
// The invariant: the other backend counts the held units as used, in the windows of granted, and
// no process has spent them or given them back. So spending one here, from since until the first
// of these windows ends, needs no call and exceeds no quota. Units are added by [Backend.learn]:
// those that a take charged, and those that it shows an earlier take without an answer to have
// charged. [lease.spend] takes units for an answer, or returns a refund's. [lease.refund] takes
// them all, with the settlement that gives them back.
//
// By the state that a take finds, [lease.next] chooses its step:
//
//	more units than it costs    spend: it is answered from them
//	its cost was refused last   askAlone: it asks the other backend, and leases nothing
//	a renewal in progress       wait: it waits for the end of the renewal
//	a key that is not busy      askAlone
//	otherwise                   renew: it takes a lease
type lease struct {
	keyed.Entry
	names  []keyed.Name // the counts of each charge, if there are several
	limits keyed.Name   // the limits of all charges of the last take

	held     int64           // units
	granted  driver.Decision // the last take that leased units
	since    int64           // the time of granted, in ms
	firstEnd int64           // when the first of granted's windows ends, in ms; 0 without granted

	demand  demand
	lastAsk int64    // ms
	renewal *renewal // the renewal in progress, or nil

	// Of the other backend's last answer.
	free        int64 // units that no process held
	refusedCost int64 // the cost of the take, if it refused it; otherwise 0

	tally tally
}

// step is what a take does next.
type step int

const (
	spend    step = iota // answer from the held units
	wait                 // for the renewal in progress
	askAlone             // ask the other backend about itself alone
	renew                // take a lease
)

// next returns the next step of a take of cost at now. The last unit is not spent before the
// next lease has been asked for: the client would read that nothing remains. While units are
// lost, only a renewal finds them.
func (l *lease) next(now, cost, busy int64) step {
	refused := l.refusedCost > 0 && cost >= l.refusedCost
	switch {
	case l.held > cost && now >= l.since: // Take has dropped the units of windows that have ended
		return spend
	case l.held < cost && refused && (l.renewal != nil || l.tally.lost == 0):
		return askAlone
	case l.renewal != nil:
		return wait
	case l.held < cost && !refused && l.tally.lost == 0 && l.demand.perSecond(now) < busy:
		return askAlone
	}
	return renew
}

// suffices reports whether l holds enough for a take of cost after a renewal that leased
// nothing.
func (l *lease) suffices(now, cost int64) bool { return l.held >= cost && !l.ended(now) }

// ended reports whether the first of l's windows has ended.
func (l *lease) ended(now int64) bool { return now >= l.firstEnd }

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

// spend spends cost of the held units, or returns units if cost is negative, as for a
// settlement. It returns the decision about r. The limit that binds is the one that binds
// in the other backend's answers.
func (l *lease) spend(r *driver.Request, cost int64) driver.Decision {
	l.held -= cost
	d := driver.NewDecision(*r)
	d.Allowed = true
	results := d.Results()
	copy(results, l.granted.Results())
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
	if l.free, l.refusedCost = free(d), 0; !d.Allowed {
		l.refusedCost = d.Charges()[0].Cost
	}
	if sameResets(&l.granted, d) {
		for i := range d.Results() {
			l.granted.Results()[i].Used = d.Results()[i].Used
		}
	}
}

// grant adds the units of d, an allowed take. They are charged to the windows of all limits, so
// they may be spent until the first of these windows ends.
func (l *lease) grant(d *driver.Decision) {
	l.held += d.Charges()[0].Cost
	l.granted = d.About(driver.NewRequest(d.Request.Now, keyed.Clone(d.Charges())...))
	l.firstEnd = d.Results()[0].ResetAt
	for _, result := range d.Results() {
		l.firstEnd = min(l.firstEnd, result.ResetAt)
	}
	l.since = d.Request.Now
}

// refund forgets l's held units, and returns the settlement that refunds them. It copies the
// results, which later takes change while the settlement is made without the lock.
func (l *lease) refund() driver.Settlement {
	r := l.granted.Request
	charged := driver.NewDecision(withCost(&r, l.held))
	charged.Allowed = true
	copy(charged.Results(), l.granted.Results())
	st := driver.Settlement{Charged: charged, Costs: make([]int64, len(r.Charges()))}
	l.held = 0
	return st
}
