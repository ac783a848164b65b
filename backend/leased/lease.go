package leased

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// A lease is what this process knows of one key under one or several policies, and
// the units that it holds for it. The shard's lock guards it.
type lease struct {
	name   name
	policy *quota.Policy // of its only charge, else nil

	// held units may be spent from since until the end of the first of d's windows. d is
	// the take that leased the last of them.
	held         int64
	since, until int64 // ms
	plain        bool  // d has one limit, and the mark that Decision.SetWindow makes
	demand       demand
	lastAsk      int64    // ms
	movedAt      int64    // ms, to the front of the lists
	inAll        links    // of all leases of the shard
	inHeld       links    // of those that hold units
	renewal      *renewal // not nil while it is being made
	free         int64    // units that no process held when the other backend was last asked

	// refusal answers takes of at least refusedCost before refusedUntil.
	refusedUntil int64
	refusedCost  int64
	again        int64 // ms, of the last refusal
	refusal      driver.Decision

	d driver.Decision
}

// renewal is a take of the other backend that others wait for.
type renewal struct {
	waiters int // guarded by the shard's lock
	done    chan struct{}

	// Set before done is closed.
	err       error
	abandoned bool // the context of the take that made it has ended
}

// failed reports whether those that wait fail with it: the other backend does not
// answer. They may have more time than the take that made it.
func (r *renewal) failed() bool {
	return errors.Is(r.err, driver.ErrUnavailable) && !r.abandoned
}

// canSpend reports whether to answer r from the lease. The last unit is not spent
// before the next lease has been asked for, unless there is none: the client would
// read that nothing remains.
func (l *lease) canSpend(now, cost int64) bool {
	if l.held < cost || now < l.since {
		return false
	}
	return l.held > cost || now < l.refusedUntil
}

// spend spends cost of what is held, fewer than nothing for a settlement that returns
// units, and returns the decision about r.
func (l *lease) spend(r *driver.Request, cost int64) driver.Decision {
	l.held -= cost
	d := driver.NewDecision(*r)
	d.Allowed = true
	results := d.Results()
	copy(results, l.d.Results())
	i := 0
	for _, c := range d.Charges() {
		for k := range c.Policy.Limits {
			results[i].Used = c.Policy.Limits[k].Capacity() - l.held
			i++
		}
	}
	return d
}

// answer returns the decision about r, a take of cost from d, which has just leased
// more. What is held counts as not used.
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

// grant adds the units of d, an allowed take.
func (l *lease) grant(d *driver.Decision) {
	l.held += d.Charges()[0].Cost
	l.d = owned(d)
	l.free = free(d)
	l.until = d.Results()[0].ResetAt
	for _, result := range d.Results() {
		l.until = min(l.until, result.ResetAt)
	}
	l.since = d.Request.Now
	l.plain = len(d.Results()) == 1 && d.Results()[0].Mark == driver.Mark{At: l.until}
	l.refusedUntil = 0
}

// owned returns d with strings of its own: a caller's key may be a part of a long one.
func owned(d *driver.Decision) driver.Decision {
	charges := slices.Clone(d.Charges())
	for i := range charges {
		c := &charges[i]
		samePartition := c.Partition == c.Key
		if c.Key = strings.Clone(c.Key); samePartition {
			c.Partition = c.Key
		} else {
			c.Partition = strings.Clone(c.Partition)
		}
	}
	return d.About(driver.NewRequest(d.Request.Now, charges...))
}

// refuse notes d, a take of cost that was refused. It is repeated for at least again ms.
func (l *lease) refuse(d *driver.Decision, cost, again int64) {
	refused := d.Request
	if before := l.refusal.Request; l.refusedUntil > 0 && refused.Now < before.Now+4*l.again {
		again = min(2*l.again, 10*again)
	}
	until := refused.Now + again
	for _, result := range d.Results() {
		if result.ResetAt > refused.Now { // else nothing counts, and it is the instant of the answer
			until = min(until, result.ResetAt)
		}
	}
	l.refusal, l.refusedCost, l.refusedUntil, l.again = owned(d), cost, until, again
	l.free = free(d)
}

// refuses reports whether r, of that cost, is refused from memory.
func (l *lease) refuses(r *driver.Request, cost int64) bool {
	refused := l.refusal.Request
	return cost >= l.refusedCost && l.refusedCost > 0 && r.Now >= refused.Now && r.Now < l.refusedUntil && l.held < cost &&
		sameCosts(refused.Charges(), r.Charges())
}

// refuseAgain returns the last refusal as the decision about r.
func (l *lease) refuseAgain(r *driver.Request) driver.Decision {
	refused := l.refusal.Request
	d := driver.NewDecision(*r)
	results := d.Results()
	copy(results, l.refusal.Results())
	for i := range results {
		if results[i].ResetAt <= refused.Now {
			results[i].ResetAt = r.Now
		}
	}
	return d
}

func sameCosts(a, b []quota.Charge) bool {
	return slices.EqualFunc(a, b, func(a, b quota.Charge) bool { return a.Cost == b.Cost })
}

// live reports whether a window has not ended that l holds units of.
func (l *lease) live(now int64) bool {
	return slices.ContainsFunc(l.d.Results(), func(r driver.Result) bool { return r.ResetAt > now })
}

// drop forgets what l holds, and returns the settlement that gives it back.
func (l *lease) drop(now int64) driver.Settlement {
	r := l.d.Request
	st := driver.Settlement{Now: now, Charged: l.d.About(withCost(&r, l.held)), Costs: make([]int64, len(r.Charges()))}
	l.held = 0
	return st
}

// leasable returns the cost of charges, or 0 if they cannot be leased: all must have
// the same cost, and fixed windows alone.
func leasable(charges []quota.Charge) int64 {
	if len(charges) == 0 {
		return 0
	}
	cost := charges[0].Cost
	for i := range charges {
		if charges[i].Cost != cost {
			return 0
		}
		limits := charges[i].Policy.Limits
		for k := range limits {
			if limits[k].Algorithm != quota.FixedWindow {
				return 0
			}
		}
	}
	return cost
}

// name names the counts of a take.
type name struct{ policy, key, partition string }

// nameOf returns the name of charges. Several are named, with their limits, by one key.
func nameOf(charges []quota.Charge) name {
	if len(charges) > 1 {
		return name{key: string(appendNames(nil, charges))}
	}
	c := &charges[0]
	n := name{policy: c.Policy.Name, key: c.Key}
	if c.Partition != c.Key {
		n.partition = c.Partition
	}
	return n
}

// clone returns n with strings of its own: a caller's may be parts of long ones.
func (n *name) clone() name {
	return name{strings.Clone(n.policy), strings.Clone(n.key), strings.Clone(n.partition)}
}

// isOf reports whether l, found by the name of charges, counts under their limits.
func (l *lease) isOf(charges []quota.Charge) bool {
	if len(charges) > 1 {
		return true // the name has them
	}
	p := charges[0].Policy
	return l.policy == p || l.policy != nil && slices.Equal(l.policy.Limits, p.Limits)
}

// appendNames appends what names the counts of charges, and their limits.
func appendNames(b []byte, charges []quota.Charge) []byte {
	for i := range charges {
		c := &charges[i]
		b = appendString(b, c.Policy.Name)
		b = appendString(b, c.Key)
		b = appendString(b, c.Partition)
		b = append(b, byte(len(c.Policy.Limits)))
		for k := range c.Policy.Limits {
			l := &c.Policy.Limits[k]
			window := uint64(l.Window) << 1
			if l.Aligned {
				window |= 1
			}
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(l.Quota)), window)
		}
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// withCost returns r with each charge at that cost.
func withCost(r *driver.Request, cost int64) driver.Request {
	charges := slices.Clone(r.Charges())
	for i := range charges {
		charges[i].Cost = cost
	}
	return driver.NewRequest(r.Now, charges...)
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

// capacity returns how many units fit into all limits of charges that are not used.
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

// addHeld makes d, a peek, report held units of l's windows as not used.
func addHeld(d, l *driver.Decision, held int64) {
	i, results := 0, d.Results()
	d.Allowed = true
	for _, c := range d.Charges() {
		for k := range c.Policy.Limits {
			result := &results[i]
			if result.ResetAt == l.Results()[i].ResetAt {
				result.Used -= held
			}
			if result.RetryAt != 0 && result.Used+c.Cost <= c.Policy.Limits[k].Capacity() {
				result.RetryAt = 0
			}
			d.Allowed = d.Allowed && result.RetryAt == 0
			i++
		}
	}
}

// extra returns how much more than charged st costs, and whether that is the same for
// all charges.
func extra(st *driver.Settlement) (more int64, even bool) {
	charges := st.Charged.Charges()
	for i := range charges {
		m := st.Costs[i] - charges[i].Cost
		if i > 0 && m != more {
			return 0, false
		}
		more = m
	}
	return more, true
}

// demand counts the units that a key asks for, refused ones too.
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
