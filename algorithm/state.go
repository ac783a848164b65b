package algorithm

import (
	"slices"

	"github.com/weir-go/weir/throttler"
)

// State is what one (policy, key) keeps: a record for each limit that was
// charged. The zero value is a key that was never seen. A State is changed in
// place by Charge and Settle and must not be copied across them.
type State struct{ records []record }

// Result is the answer about one limit. Instants are ms since the epoch.
type Result struct {
	Used    int64
	ResetAt int64
	RetryAt int64 // 0 if the cost fits, -1 if it never can
	StartAt int64 // of a leaky bucket that was charged, else 0
	Mark    throttler.Mark
}

// Look writes a result for each of limits, charging nothing, and reports
// whether cost fits them all. results must be as long as limits.
func (s *State) Look(limits []throttler.Limit, cost, now int64, results []Result) bool {
	fits := true
	place := s.match(limits, now)
	for i := range limits {
		l := limitOf(&limits[i])
		r := s.at(place[i], l, now)
		results[i] = Result{ResetAt: now}
		if r != nil {
			results[i] = resultOf(r, l, now)
		}
		if cost > l.capacity-results[i].Used {
			fits = false
			results[i].RetryAt = never
			if cost <= l.capacity {
				results[i].RetryAt = l.kind.counter().retryAt(r, l, cost, now)
			}
		}
	}
	return fits
}

func resultOf(r *record, l limit, now int64) Result {
	counter := l.kind.counter()
	return Result{Used: counter.used(r, l, now), ResetAt: counter.resetAt(r, now)}
}

// Charge adds cost to every limit, room or no room: Look first. A cost of 0
// changes nothing.
func (s *State) Charge(limits []throttler.Limit, cost, now int64, results []Result) {
	if cost == 0 {
		s.Look(limits, 0, now, results)
		return
	}
	s.arrange(limits, now)
	for i := range limits {
		l := limitOf(&limits[i])
		r := &s.records[i]
		c := l.kind.counter().charge(r, l, cost, now)
		results[i] = resultOf(r, l, now)
		results[i].StartAt, results[i].Mark = c.startAt, c.mark
	}
}

// Settle replaces the cost that was charged under marks by the real one: less
// returns to what the marks name, as far as it still counts; more is charged
// now, room or no room.
func (s *State) Settle(limits []throttler.Limit, marks []throttler.Mark, charged, cost, now int64, results []Result) {
	if cost > charged {
		s.Charge(limits, cost-charged, now, results)
		return
	}
	place := s.match(limits, now)
	for i := range limits {
		if place[i] >= 0 {
			l := limitOf(&limits[i])
			r := &s.records[place[i]]
			r.adopt(l, now)
			l.kind.counter().giveBack(r, l, marks[i], charged-cost, now)
		}
	}
	s.Look(limits, 0, now, results)
	for i := range results {
		results[i].RetryAt = 0 // nothing was asked for, so nothing was refused
	}
}

// Clone returns a copy of s that shares nothing with it.
func (s *State) Clone() State {
	c := State{records: slices.Clone(s.records)}
	for i := range c.records {
		c.records[i].log = slices.Clone(c.records[i].log)
	}
	return c
}

// ResetAt returns the instant from which nothing of s counts; now if nothing
// does.
func (s *State) ResetAt(now int64) int64 {
	at := now
	for i := range s.records {
		at = max(at, s.records[i].resetAt(now))
	}
	return at
}

// match returns, for each of limits, the place of its record, or -1. A record
// is a limit's own by algorithm and window. A limit without one takes over the
// first live record of its algorithm that no limit of the policy owns: that is
// what a limit whose window was changed left behind.
func (s *State) match(limits []throttler.Limit, now int64) (place [throttler.MaxLimits]int8) {
	if len(s.records) == 1 && len(limits) == 1 && s.records[0].isOf(&limits[0]) {
		return place
	}
	var owned uint64 // a bit for each record
	for i := range limits {
		place[i] = -1
		for j := range s.records {
			if s.records[j].isOf(&limits[i]) {
				place[i] = int8(j)
				owned |= 1 << j
			}
		}
	}
	for i := range limits {
		k := kindOf(&limits[i])
		for j := range s.records {
			if r := &s.records[j]; place[i] < 0 && owned>>j&1 == 0 && k.adopts(r.kind) && r.live(now) {
				place[i] = int8(j)
				owned |= 1 << j
			}
		}
	}
	return place
}

// at returns the record in that place, nil if place is -1; a copy if it is to
// continue under l and is not l's own.
func (s *State) at(place int8, l limit, now int64) *record {
	if place < 0 {
		return nil
	}
	r := &s.records[place]
	if r.kind == l.kind && r.window == l.window {
		return r
	}
	adopted := new(record)
	*adopted = *r
	adopted.adopt(l, now)
	return adopted
}

// arrange puts the limits' records first, in their order, adding those that
// are missing. Records of no limit stay behind them while they live: another
// process may still run the policy that they belong to.
func (s *State) arrange(limits []throttler.Limit, now int64) {
	place := s.match(limits, now)
	if s.arranged(place[:len(limits)], limits) {
		return
	}
	records := make([]record, 0, len(limits))
	for i := range limits {
		l := limitOf(&limits[i])
		if r := s.at(place[i], l, now); r != nil {
			records = append(records, *r)
		} else {
			records = append(records, record{kind: l.kind, window: l.window})
		}
	}
	for j := range s.records {
		if !slices.Contains(place[:len(limits)], int8(j)) && s.records[j].live(now) && len(records) < maxRecords {
			records = append(records, s.records[j])
		}
	}
	s.records = records
}

func (s *State) arranged(place []int8, limits []throttler.Limit) bool {
	if len(s.records) != len(limits) {
		return false
	}
	for i := range place {
		if int(place[i]) != i || !s.records[i].isOf(&limits[i]) {
			return false
		}
	}
	return true
}
