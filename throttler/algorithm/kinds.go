package algorithm

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// kind says how a record counts. Kinds are stored as a record's first byte. They are at most
// 15, and not 8 to 11: no record begins with these.
type kind uint8

// kinds is the only list of kinds: an algorithm is a file with its counter, and a line here.
// Package lua has the same table, by the same numbers.
var kinds = [...]struct {
	algorithm quota.Algorithm
	aligned   bool // the Limit is
	calendar  bool // the Limit has one
	counter   counter
	bytes     int     // stored size of a record without kind, window and log entries
	windows   float64 // how many windows a charge counts at most; 0 if until a burst has drained

	queue bool // charges have starts
	log   bool // entries are in a ring
	holds bool // a unit is held until it is settled
}{
	1:  {algorithm: quota.FixedWindow, counter: fixedWindow{}, bytes: instantBytes + countBytes, windows: 1},
	2:  {algorithm: quota.FixedWindow, aligned: true, counter: fixedWindow{aligned: true}, bytes: instantBytes + countBytes, windows: 1},
	3:  {algorithm: quota.SlidingWindow, counter: slidingWindow{}, bytes: instantBytes + 2*countBytes, windows: 2},
	4:  {algorithm: quota.SlidingLog, counter: slidingLog{}, bytes: entriesBytes + countBytes + 2*slotBytes, windows: 1, log: true},
	5:  {algorithm: quota.TokenBucket, counter: bucket{}, bytes: 2*instantBytes + 3*countBytes},
	6:  {algorithm: quota.LeakyBucket, counter: bucket{queue: true}, bytes: 3*instantBytes + 5*countBytes, queue: true},
	15: {algorithm: noAlgorithm, counter: pause{}, bytes: instantBytes + countBytes},
	7:  {algorithm: quota.FixedWindow, calendar: true, counter: fixedWindow{}, bytes: instantBytes + countBytes, windows: 2}, // of a calendar's shortest window
	12: {algorithm: quota.InFlight, counter: inFlight{}, bytes: entriesBytes + countBytes + 2*slotBytes, windows: 1, log: true, holds: true},
}

// counter is how records of a kind count. Values passed to it by pointer escape to the heap,
// so callers pass the records of a state, not copies.
type counter interface {
	// used returns how many units count at now, rounded up.
	used(r *record, l limit, now int64) int64

	// resetAt returns when the last unit stops counting, at least now.
	resetAt(r *record, now int64) int64

	// retryAt returns the first instant at which cost fits, given that it does
	// not fit now and is within the capacity.
	retryAt(r *record, l limit, cost, now int64) int64

	// charge adds cost, room or no room.
	charge(r *record, l limit, cost, now int64) charged

	// lastCharge returns the result of the charge call that added cost, if it was the last.
	lastCharge(r *record, cost int64) charged

	// giveBack refunds the units that c was charged too much, as far as they still count, and
	// reports whether the window or place that c's mark names is there.
	giveBack(r *record, l limit, c settled, now int64) bool

	// adopt makes r, a record of the same algorithm under another window or
	// quota, count under l, at no instant more than before. See docs/start/algorithms.md.
	adopt(r *record, l limit)

	// join adds cost, charged by another policy, to r, which is live. current are the records of
	// that policy, already charged.
	join(r *record, current []record, cost, now int64)

	// giveBackJoined refunds the units that c, a charge of another policy, was charged too
	// much, as far as r is sure to count them.
	giveBackJoined(r *record, c settled, now int64)

	// append appends the stored form of r without kind and window.
	append(b []byte, r *record) []byte

	// parse reads that form into r, and returns p after it; p has failed if the form is
	// malformed. It is passed by value because a pointer to it would escape to the heap.
	parse(p parser, r *record) parser
}

// charged is the mark and the start of a charge.
type charged struct {
	mark    driver.Mark
	startAt int64 // of a queue, otherwise 0
}

// settled is a charge with its real cost, which is at most the cost charged.
type settled struct {
	mark          driver.Mark
	takenAt       int64
	charged, cost int64
}

// exists reports whether k is in the table.
func (k kind) exists() bool { return int(k) < len(kinds) && kinds[k].counter != nil }

// counter returns how records of that kind count. The kind must be known.
func (k kind) counter() counter { return kinds[k].counter }

// units returns how many units a charge of cost takes in a record of kind k.
func (k kind) units(cost int64) int64 {
	if kinds[k].holds {
		return min(cost, 1)
	}
	return cost
}

// adopts reports whether a record of kind older can continue as one of kind k.
func (k kind) adopts(older kind) bool { return kinds[k].algorithm == kinds[older].algorithm }

// kindsOf contains the kinds of limits that are not aligned, then of aligned ones, by algorithm.
var kindsOf = func() (table [2][256]kind) {
	for k := range kinds {
		if kinds[k].counter != nil && !kinds[k].calendar && kinds[k].algorithm != noAlgorithm {
			table[index(kinds[k].aligned)][kinds[k].algorithm] = kind(k)
		}
	}
	return table
}()

// pauseKind is the kind of a pause's record. No limit has that kind.
const (
	pauseKind   kind            = 15
	noAlgorithm quota.Algorithm = 255
)

// calendarKind is the kind of limits with a Calendar, whichever it is: a limit with a changed
// billing day keeps its count, which still ends when the old window ends.
const calendarKind kind = 7

func index(aligned bool) int {
	if aligned {
		return 1
	}
	return 0
}

// kindOf returns the kind of records under l. It panics if l has no kind:
// [quota.Policy.Validate] rejects such limits.
func kindOf(l *quota.Limit) kind {
	if l.Calendar.Period != 0 {
		return calendarKind
	}
	k := kindsOf[index(l.Aligned)][l.Algorithm]
	if k == 0 {
		panic(fmt.Sprintf("algorithm: nothing counts a limit of %v", *l))
	}
	return k
}

// Lifetime returns how long a charge under l counts at most, in whole milliseconds, if
// l is not in debt and its policy does not change.
func Lifetime(l quota.Limit) time.Duration {
	n := limitOf(&l)
	ms := kinds[n.kind].windows * float64(n.window)
	if ms == 0 {
		ms = float64(n.window) * float64(n.capacity) / float64(n.quota)
	}
	return time.Duration(math.Ceil(min(ms, maxLifetime))) * time.Millisecond
}

// maxLifetime, in ms, is more than any limit needs: two windows, or the time that
// a burst needs to drain.
const maxLifetime = float64(2 * quota.MaxWindow / time.Millisecond)
