package fallback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// remember notes the backend's answer about the counts that local decisions would use.
func (b *Backend) remember(d *driver.Decision) {
	charges := d.Charges()
	if !b.local || len(charges) == 0 || d.Degraded {
		return
	}
	choice, _ := b.choiceOf(charges)
	if choice == Open {
		return
	}
	r := d.Request
	s := b.table.stripeOf(charges)
	s.mu.Lock()
	defer s.unlock()
	for i := range charges {
		c := &charges[i]
		if choice == Closed && b.of(c.Policy.Name) != Local {
			continue
		}
		n := b.table.names.Name(c)
		found := s.Get(n)
		if found == nil {
			found = s.add(&b.table, n, c, r.Now)
		}
		if found != nil && found.outage == nil {
			found.say(c.Policy.Limits, r.Now, d.ResultsOf(i))
		}
	}
}

// take takes locally during o. Its charges are handed over after o, unless the backend
// may have made them.
func (b *Backend) take(r *driver.Request, o *outage, journal bool) (driver.Decision, error) {
	charges := r.Charges()
	s := b.table.stripeOf(charges)
	s.mu.Lock()
	defer s.unlock()
	if journal && o.done.Load() {
		return driver.Decision{}, errOver // units held for it would not be handed over
	}
	counts := make([]*count, len(charges))
	for i := range charges {
		counts[i] = b.countOf(s, charges, i, r.Now)
		counts[i].busy = true // it must not make room for the next
	}
	defer func() {
		for _, c := range counts {
			c.busy = false
		}
	}()
	d, err := b.evaluate(r, counts)
	if err != nil {
		return d, err
	}
	if d.Allowed {
		for i := range charges {
			b.charge(counts[i], &d.Charges()[i], o, journal, r.Now, d.ResultsOf(i))
		}
	}
	report(&d, counts, b.processes)
	for i := range d.Results() {
		if !journal {
			d.Results()[i].Mark.Note |= noteUnknown
		}
	}
	return d, nil
}

// charge charges c, which has room, to found, its count.
func (b *Backend) charge(found *count, c *quota.Charge, o *outage, journal bool, now int64, results []driver.Result) {
	found.state.Charge(sharesOf(c.Policy.Limits, b.processes), c.Cost, now, results)
	found.state.Coarsen(maxLog)
	if c.Mode == quota.Record {
		for i := range results {
			results[i].StartAt = 0 // the caller does not wait
		}
	}
	switch {
	case c.Cost == 0:
	case found.pooled:
		b.stats.Change(func(s *Stats) { s.Lost += c.Cost })
	case !journal:
		found.spend(c.Policy.Limits, c.Cost, b.processes, now)
	default:
		b.hold(found, c, o)
		found.journal(c.Policy.Limits, c.Cost, now, results)
	}
}

// peek returns the decision that a local take would make.
func (b *Backend) peek(r *driver.Request) (driver.Decision, error) {
	charges := r.Charges()
	s := b.table.stripeOf(charges)
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make([]*count, len(charges))
	for i := range charges {
		if counts[i] = s.Get(b.table.names.Name(&charges[i])); counts[i] == nil {
			counts[i] = new(count)
		}
	}
	d, err := b.evaluate(r, counts)
	if err == nil {
		report(&d, counts, b.processes)
	}
	return d, err
}

// countOf returns the count of charge i, which may be a pooled count.
func (b *Backend) countOf(s *stripe, charges []quota.Charge, i int, now int64) *count {
	c := &charges[i]
	n := b.table.names.Name(c)
	if found := s.Get(n); found != nil {
		return found
	}
	if added := s.add(&b.table, n, c, now); added != nil {
		return added
	}
	b.stats.Change(func(s *Stats) { s.Pooled++ })
	return s.pool(&b.table, c, i, n)
}

// evaluate returns the decision about r by the shares. It fails if a charge fits no
// share, but would fit the quota.
func (b *Backend) evaluate(r *driver.Request, counts []*count) (driver.Decision, error) {
	d := driver.NewDecision(*r)
	d.Degraded = true
	charges := r.Charges()
	for i := range charges {
		c, results := charges[i], d.ResultsOf(i)
		state := counts[i].stateAt(c.Policy.Limits, b.processes, r.Now)
		shares, asks := sharesOf(c.Policy.Limits, b.processes), c.Mode.Asks(c.Cost)
		state.Evaluate(shares, asks, r.Now, results)
		for j := range results {
			if results[j].RetryAt == driver.NeverFits && asks <= c.Policy.Limits[j].Capacity() {
				return driver.Decision{}, errTooLarge
			}
			if c.Mode == quota.AtMost && !c.Policy.Limits[j].Algorithm.Holds() {
				c.Cost = min(c.Cost, results[j].Remaining(&shares[j]))
			}
		}
		d.SetCost(i, c.Cost)
	}
	if d.Grant(); !d.Allowed {
		d.Request = *r
	}
	return d, nil
}

// Bits of driver.Mark.Note.
const (
	notePooled  = 1 << iota // the count that was charged is pooled
	noteUnknown             // the charge replaces a charge with an unknown outcome
)

// report changes the results of d from shares to limits: a limit has as many remaining units
// as its share. It notes the use of the counts for the table.
func report(d *driver.Decision, counts []*count, processes int64) {
	charges := d.Charges()
	for i := range charges {
		c := counts[i]
		c.used, c.until = 0, 0
		results := d.ResultsOf(i)
		for j := range results {
			l, r := &charges[i].Policy.Limits[j], &results[j]
			s := share(l, processes)
			ofShare, capacity := s.Capacity(), l.Capacity()
			c.note(r.Used, ofShare, r.ResetAt)
			if r.RetryAt != 0 {
				c.note(ofShare, ofShare, r.ResetAt) // a key that is refused is not forgotten
			}
			r.Used = max(capacity-max(ofShare-r.Used, 0), 0)
			if c.pooled {
				r.Mark.Note |= notePooled
			}
		}
	}
}

// sharesOf returns the shares of limits.
func sharesOf(limits []quota.Limit, processes int64) []quota.Limit {
	shares := make([]quota.Limit, len(limits))
	for i := range limits {
		shares[i] = share(&limits[i], processes)
	}
	return shares
}

// hold notes that found, the count of c, must be handed over after o.
func (b *Backend) hold(found *count, c *quota.Charge, o *outage) {
	if found.outage != nil {
		found.outage = o
		return
	}
	b.held.Add(1)
	found.outage = o
	found.charge = keyed.Clone([]quota.Charge{*c})[0]
	found.charge.Cost, found.charge.Mode = 0, quota.Enforce
}

// settled notes that c has nothing to hand over.
func (b *Backend) settled(c *count) {
	if c.outage != nil {
		c.outage, c.charge, c.pending = nil, quota.Charge{}, units{}
		b.held.Add(-1)
	}
}

// forgetHere forgets the local counts of r, after replays of them in progress.
func (b *Backend) forgetHere(ctx context.Context, r *driver.Request) error {
	charges := r.Charges()
	s := b.table.stripeOf(charges)
	for i := range charges {
		c, inTime := s.whenReplayed(ctx, r.ServerTime, b.table.names.Name(&charges[i]))
		if inTime && c != nil {
			c.reset(r.Now)
			b.settled(c)
		}
		s.mu.Unlock()
		if !inTime {
			return fmt.Errorf("fallback: %w by a reset, which waited for a count to be handed over: %w", driver.ErrNotSent, cmp.Or(ctx.Err(), context.DeadlineExceeded))
		}
	}
	return nil
}

// settle settles a decision that was made here.
func (b *Backend) settle(ctx context.Context, s *driver.Settlement) (driver.Decision, error) {
	if err := ctx.Err(); err != nil {
		return driver.Decision{}, err
	}
	d, missing := b.settleHere(s)
	if len(missing) == 0 {
		return d, nil
	}
	costs := make([]int64, len(missing))
	for i := range missing {
		costs[i], missing[i].Cost = missing[i].Cost, 0
	}
	if _, err := b.wrapped.Settle(ctx, untaken(driver.NewRequest(s.Now, missing...), costs, s.ServerTime)); err != nil {
		return d, inPart{err}
	}
	return d, nil
}

// inPart is the error of a settlement that was made in the local counts but not by the
// backend, because of err. Callers must not retry it, even if err says that nothing was sent.
type inPart struct{ err error }

func (e inPart) Error() string { return "fallback: settled in part: " + e.err.Error() }

func (e inPart) Is(target error) bool {
	return target == driver.ErrUnavailable || target != driver.ErrNotSent && errors.Is(e.err, target)
}

func (e inPart) As(target any) bool { return errors.As(e.err, target) }

// settleHere settles s with the local counts. It returns the additional costs to charge to
// the backend, of charges that were handed over, or never will be.
func (b *Backend) settleHere(s *driver.Settlement) (d driver.Decision, missing []quota.Charge) {
	r := s.Charged.Request
	takenAt := r.Now
	r.Now = s.Now
	d = driver.NewDecision(r)
	d.Allowed, d.Degraded = true, true
	charges := r.Charges()
	if len(charges) == 0 {
		return d, nil // allowed by Open
	}
	stripe := b.table.stripeOf(charges)
	stripe.mu.Lock()
	defer stripe.mu.Unlock()
	counts := make([]*count, len(charges))
	for i := range charges {
		c, before := &charges[i], s.Charged.ResultsOf(i)
		n := b.table.names.Name(c)
		if before[0].Mark.Note&notePooled != 0 {
			n = b.table.pooledName(c, i, n)
		}
		found := stripe.Get(n)
		if found == nil {
			found = new(count)
		}
		counts[i] = found
		found.settle(c, s.Costs[i], takenAt, s.Now, b.processes, before, d.ResultsOf(i))
		if added := s.Costs[i] - c.Cost; added > 0 && found.outage == nil && !found.pooled {
			missing = append(missing, quota.Charge{Policy: c.Policy, Key: c.Key, Partition: c.Partition, Cost: added})
		}
	}
	report(&d, counts, b.processes)
	results := d.Results()
	for i := range results {
		results[i].RetryAt = 0 // nothing was asked for, so nothing was refused
	}
	return d, missing
}

// settle replaces the cost of charge, which was taken here with the results before.
func (c *count) settle(charge *quota.Charge, cost, takenAt, now, processes int64, before, results []driver.Result) {
	shares := sharesOf(charge.Policy.Limits, processes)
	if c.state == nil { // the backend has answered since
		c.stateAt(charge.Policy.Limits, processes, now).Evaluate(shares, 0, now, results)
		return
	}
	marks := make([]driver.Mark, len(before))
	for j := range before {
		marks[j] = before[j].Mark
	}
	c.state.Settle(shares, algorithm.Settlement{TakenAt: takenAt, Marks: marks, Charged: charge.Cost, Cost: cost}, now, results)
	switch added := cost - charge.Cost; {
	case c.outage != nil && added > 0:
		c.journal(charge.Policy.Limits, added, now, results)
	case c.outage != nil && before[0].Mark.Note&noteUnknown == 0 && !c.state.Forgot(&before[0].Mark):
		c.forgive(refund{-added, takenAt})
	}
}

// untaken returns the settlement of a decision that was never taken: it charges costs to the
// counts of r, even beyond the limits. The costs in r are 0.
func untaken(r driver.Request, costs []int64, serverTime time.Duration) driver.Settlement {
	d := driver.NewDecision(r)
	d.Allowed = true
	return driver.Settlement{Now: r.Now, Charged: d, Costs: costs, ServerTime: serverTime}
}
