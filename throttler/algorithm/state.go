package algorithm

import (
	"iter"
	"slices"

	"github.com/weir-go/weir/internal/exact"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// State is the state of one (policy, key): a record for each limit that was charged, and a
// trace of its last reset. The zero value is the state of a key that was never seen. A State
// is changed in place by Charge, Settle and Reset and must not be copied across them.
type State struct {
	records []record
	last    reset
}

// Evaluate writes a result for each of limits, charging nothing, and reports
// whether cost fits them all. results must be as long as limits.
func (s *State) Evaluate(limits []quota.Limit, cost, now int64, results []driver.Result) bool {
	fits := true
	for i := range limits {
		l := limitOf(&limits[i])
		r, cost := s.recordFor(l), l.kind.units(cost)
		results[i] = driver.Result{ResetAt: now}
		if r != nil {
			results[i] = resultOf(r, l, now)
		}
		if cost > l.capacity-results[i].Used {
			results[i].RetryAt = driver.NeverFits
			if cost <= l.capacity {
				results[i].RetryAt = l.kind.counter().retryAt(r, l, cost, now)
			}
		}
	}
	s.hold(limits, cost, now, results)
	for i := range results {
		fits = fits && results[i].RetryAt == 0
	}
	return fits
}

// hold raises results to the counts of other policies' records. Each such record counts
// against the limit nearest to it. The charges in a shorter record are in the limit's, too. A
// longer one contains charges that the limit has forgotten, and counts at the limit's rate.
func (s *State) hold(limits []quota.Limit, cost, now int64, results []driver.Result) {
	if len(s.records) <= len(limits) && s.matching(limits) {
		return
	}
	for r, i := range s.foreignRecords(limits, now) {
		if r.kind == pauseKind {
			r.refuse(limits, cost, results)
			continue
		}
		if i < 0 || r.quota > 0 { // a bucket counts all charges since it was empty
			continue
		}
		l, result, counter := limitOf(&limits[i]), &results[i], r.kind.counter()
		held := l
		held.capacity, _ = exact.MulDiv(l.capacity, max(r.window, l.window), l.window)
		used := counter.used(r, held, now) - (held.capacity - l.capacity)
		if used <= 0 {
			continue
		}
		ends := int64(maxInstant)
		if r.endsAt != 0 {
			ends = r.endsAt
		}
		if result.NextAt == 0 && result.Used >= l.capacity {
			result.NextAt = result.ResetAt
		}
		if used >= l.capacity {
			result.NextAt = max(result.NextAt, min(counter.retryAt(r, held, 1, now), ends))
		}
		result.Used = max(result.Used, used)
		result.ResetAt = max(result.ResetAt, min(counter.retryAt(r, held, l.capacity, now), ends))
		if cost > l.capacity-used && cost <= l.capacity {
			result.RetryAt = max(result.RetryAt, min(counter.retryAt(r, held, cost, now), ends))
		}
	}
	for i := range limits {
		leaveOutNext(&limits[i], &results[i])
	}
}

// leaveOutNext removes a FixedWindow's NextAt if it equals the ResetAt, as it does without
// records of other policies.
func leaveOutNext(l *quota.Limit, result *driver.Result) {
	if l.Algorithm == quota.FixedWindow && result.NextAt == result.ResetAt {
		result.NextAt = 0
	}
}

func resultOf(r *record, l limit, now int64) driver.Result {
	counter := l.kind.counter()
	result := driver.Result{Used: counter.used(r, l, now), ResetAt: counter.resetAt(r, now)}
	if result.Used >= l.capacity && kinds[l.kind].algorithm != quota.FixedWindow {
		result.NextAt = counter.retryAt(r, l, 1, now)
	}
	return result
}

// Charge adds cost to every limit, room or no room: Evaluate first. Live records of other
// policies are charged as well. A cost of 0 changes nothing.
func (s *State) Charge(limits []quota.Limit, cost, now int64, results []driver.Result) {
	if cost == 0 {
		s.Evaluate(limits, 0, now, results)
		for i := range results {
			results[i].RetryAt = 0
		}
		return
	}
	s.charge(limits, cost, now, results, false)
}

// charge is Charge for a cost above 0. A settlement's charge holds no further unit.
func (s *State) charge(limits []quota.Limit, cost, now int64, results []driver.Result, settles bool) {
	s.arrange(limits, now)
	for i := range limits {
		l := limitOf(&limits[i])
		r := &s.records[i]
		r.endsAt = 0
		if settles && kinds[l.kind].holds {
			results[i] = resultOf(r, l, now)
			continue
		}
		c := l.kind.counter().charge(r, l, l.kind.units(cost), now)
		results[i] = resultOf(r, l, now)
		results[i].StartAt, results[i].Mark = c.startAt, c.mark
		results[i].Mark.Generation = s.last.generation
	}
	current, foreign := s.records[:len(limits)], s.records[len(limits):]
	for i := range foreign {
		r := &foreign[i]
		if r.endsAt == 0 {
			r.endsAt = r.resetAt(now)
		}
		if !settles || !kinds[r.kind].holds {
			r.kind.counter().join(r, current, r.kind.units(cost), now)
		}
	}
	s.hold(limits, 0, now, results)
	for i := range results {
		results[i].RetryAt = 0 // charged, room or no room
	}
}

// Settlement is the final cost of a charge.
type Settlement struct {
	TakenAt int64         // when it was charged
	Marks   []driver.Mark // of the charge, one for each limit
	Charged int64
	Cost    int64
}

// Settle replaces the cost that was charged by the real one. A lower cost refunds the
// difference to the windows or places that the marks name, as far as it still counts; a higher
// one charges the difference now, room or no room. Held units are released.
func (s *State) Settle(limits []quota.Limit, st Settlement, now int64, results []driver.Result) {
	s.release(limits, st.Marks, now)
	switch {
	case st.Cost > st.Charged && slices.ContainsFunc(limits, func(l quota.Limit) bool { return !l.Algorithm.Holds() }):
		s.charge(limits, st.Cost-st.Charged, now, results, true)
		return
	case st.Cost < st.Charged && s.counts(limits, st.Marks):
		s.giveBack(limits, st, now)
	}
	s.Evaluate(limits, 0, now, results)
	for i := range results {
		results[i].RetryAt = 0 // nothing was asked for, so nothing was refused
	}
}

// counts reports whether the units of the charge with those marks, except units in flight, were
// charged since the last reset. The mark of a limit in flight doesn't say so: a renewal replaces it.
func (s *State) counts(limits []quota.Limit, marks []driver.Mark) bool {
	for i := range limits {
		if !limits[i].Algorithm.Holds() {
			return s.last.precedes(&marks[i])
		}
	}
	return s.last.generation == 0
}

// giveBack refunds the units that st was charged too much.
func (s *State) giveBack(limits []quota.Limit, st Settlement, now int64) {
	var found [quota.MaxLimits]bool
	for i := range limits {
		l := limitOf(&limits[i])
		if r := s.recordOf(l); r != nil && !kinds[l.kind].holds {
			found[i] = l.kind.counter().giveBack(r, l, settled{st.Marks[i], st.TakenAt, st.Charged, st.Cost}, now)
		}
	}
	for i := range s.records {
		r := &s.records[i]
		if n := nearestLimit(r, limits); n == isOwn || n >= 0 && !found[n] || !r.live(now) || kinds[r.kind].holds {
			continue // refunded, released, or without units; or its limit's window is over
		}
		r.kind.counter().giveBackJoined(r, settled{takenAt: st.TakenAt, charged: st.Charged, cost: st.Cost}, now)
	}
}

// Clone returns a copy of s that shares nothing with it.
func (s *State) Clone() State {
	c := State{records: slices.Clone(s.records), last: s.last}
	for i := range c.records {
		c.records[i].log = slices.Clone(c.records[i].log)
	}
	return c
}

// ResetAt returns when s no longer counts any units and is no longer needed, at least now.
func (s *State) ResetAt(now int64) int64 {
	end := max(now, s.last.until)
	for i := range s.records {
		end = max(end, s.records[i].resetAt(now))
	}
	return end
}

// Life returns for how many ms s is needed: until ResetAt, unless a process with a clock far
// ahead of now wrote s. Then it is at most two windows or, for a bucket, the time that the
// bucket had to drain when last charged.
func (s *State) Life(now int64) int64 {
	life := max(s.last.until-now, 0)
	for i := range s.records {
		life = max(life, s.records[i].life(now))
	}
	return life
}

// owns reports whether r is l's own record: by kind and, unless its units are held, by window.
func (l *limit) owns(r *record) bool {
	return r.kind == l.kind && (r.window == l.window || kinds[r.kind].holds)
}

// recordOf returns l's own record, or nil.
func (s *State) recordOf(l limit) *record {
	for i := range s.records {
		if r := &s.records[i]; l.owns(r) {
			return r
		}
	}
	return nil
}

// recordFor returns the record that counts under l, or nil: l's own or, failing that, the one of
// l's algorithm with the nearest window. If its kind, window or quota differs, it is a copy
// adopted by l.
func (s *State) recordFor(l limit) *record {
	r := s.recordOf(l)
	if r != nil && r.countsFor(l) {
		return r
	}
	if r == nil {
		for i := range s.records {
			o := &s.records[i]
			if l.kind.adopts(o.kind) && (r == nil || nearer(o.window, r.window, l.window)) {
				r = o
			}
		}
	}
	if r == nil {
		return nil
	}
	return r.adoptedBy(l)
}

const (
	isOwn  = -1
	noneOf = -2
)

// nearestLimit returns the index of the limit with r's algorithm and the window nearest to
// r's, isOwn if r is a limit's own record, or noneOf if no limit has r's algorithm.
func nearestLimit(r *record, limits []quota.Limit) int {
	nearest := noneOf
	for i := range limits {
		l := limitOf(&limits[i])
		if l.owns(r) {
			return isOwn
		}
		if l.kind.adopts(r.kind) && (nearest == noneOf || nearer(l.window, limitOf(&limits[nearest]).window, r.window)) {
			nearest = i
		}
	}
	return nearest
}

// arrange puts the limits' records first, in their order, and adds missing ones. Live records
// of no limit follow: another process may still run their policy. A record that only this
// policy keeps alive ends at its endsAt.
func (s *State) arrange(limits []quota.Limit, now int64) {
	if s.matching(limits) {
		return
	}
	records := make([]record, 0, len(limits))
	for i := range limits {
		l := limitOf(&limits[i])
		if r := s.recordFor(l); r != nil {
			records = append(records, *r)
		} else {
			records = append(records, record{kind: l.kind, window: l.window})
		}
	}
	for r := range s.foreignRecords(limits, now) {
		records = append(records, *r)
	}
	s.records = records
}

// foreignRecords yields the live records that are no limit's own, at most as many as a state keeps,
// each with the index of the nearest limit, or noneOf.
func (s *State) foreignRecords(limits []quota.Limit, now int64) iter.Seq2[*record, int] {
	return func(yield func(*record, int) bool) {
		n := len(limits)
		for i := range s.records {
			r := &s.records[i]
			nearest := nearestLimit(r, limits)
			dead := r.endsAt != 0 && r.endsAt <= now
			if nearest == isOwn || dead || !r.live(now) || n == maxRecords {
				continue
			}
			if n++; !yield(r, nearest) {
				return
			}
		}
	}
}

// matching reports whether s contains the limits' own records, in their order, and no others.
func (s *State) matching(limits []quota.Limit) bool {
	if len(s.records) != len(limits) {
		return false
	}
	for i := range limits {
		if !s.records[i].countsFor(limitOf(&limits[i])) {
			return false
		}
	}
	return true
}
