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
		results[i] = Result{Used: r.used(l, now), ResetAt: r.resetAt(now)}
		if cost > l.capacity-results[i].Used {
			results[i].RetryAt = r.retryAt(l, cost, now)
			fits = false
		}
	}
	return fits
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
		r.adopt(l, now)
		var startAt int64
		if l.kind == leakyBucket {
			startAt = r.startAt(now)
		}
		mark := r.charge(l, cost, now)
		results[i] = Result{Used: r.used(l, now), ResetAt: r.resetAt(now), StartAt: startAt, Mark: mark}
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
			r.giveBack(l, marks[i], charged-cost, now)
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
	if len(s.records) == 1 && len(limits) == 1 {
		if r := &s.records[0]; r.kind == kindOf(&limits[0]) && r.window == limits[0].Window.Milliseconds() {
			return place
		}
	}
	var owned uint64 // a bit for each record
	for i := range limits {
		place[i] = -1
		for j := range s.records {
			if r := &s.records[j]; r.kind == kindOf(&limits[i]) && r.window == limits[i].Window.Milliseconds() {
				place[i] = int8(j)
				owned |= 1 << j
			}
		}
	}
	for i := range limits {
		for j := range s.records {
			if r := &s.records[j]; place[i] < 0 && owned>>j&1 == 0 && sameAlgorithm(r.kind, kindOf(&limits[i])) && r.live(now) {
				place[i] = int8(j)
				owned |= 1 << j
			}
		}
	}
	return place
}

// at returns a copy of the record in that place, as it goes on under l; a new
// one if place is -1.
func (s *State) at(place int8, l limit, now int64) record {
	if place < 0 {
		return record{kind: l.kind, window: l.window}
	}
	r := s.records[place]
	r.adopt(l, now)
	return r
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
		records = append(records, s.at(place[i], limitOf(&limits[i]), now))
	}
	for j := range s.records {
		if !slices.Contains(place[:len(limits)], int8(j)) && s.records[j].live(now) && len(records) < maxRecords {
			records = append(records, s.records[j])
		}
	}
	s.records = records
}

// maxRecords bounds a state: the limits of one policy, and as many left over.
const maxRecords = 2 * throttler.MaxLimits

func (s *State) arranged(place []int8, limits []throttler.Limit) bool {
	if len(s.records) != len(limits) {
		return false
	}
	for i := range place {
		r := &s.records[i]
		if int(place[i]) != i || r.kind != kindOf(&limits[i]) || r.window != limits[i].Window.Milliseconds() {
			return false
		}
	}
	return true
}
