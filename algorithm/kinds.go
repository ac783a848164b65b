package algorithm

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// kind says how a record counts. Kinds are stored, as a record's first byte: at most 15,
// and not 8, 9 or 10, with which no record begins.
type kind uint8

// kinds has every kind, and nothing else lists them: an algorithm is a file with
// its counter, and a line here. Package lua has the same table, by the same numbers.
var kinds = [...]struct {
	algorithm quota.Algorithm
	aligned   bool // the Limit is
	counter   counter

	queue bool // charges have starts
	log   bool // entries are in a ring
}{
	1: {algorithm: quota.FixedWindow, counter: fixedWindow{}},
	2: {algorithm: quota.FixedWindow, aligned: true, counter: fixedWindow{aligned: true}},
	3: {algorithm: quota.SlidingWindow, counter: slidingWindow{}},
	4: {algorithm: quota.SlidingLog, counter: slidingLog{}, log: true},
	5: {algorithm: quota.TokenBucket, counter: bucket{}},
	6: {algorithm: quota.LeakyBucket, counter: bucket{queue: true}, queue: true},
}

// counter is how records of a kind count. Calls through it put what pointers
// point to on the heap, so they get the records of a state, not copies.
type counter interface {
	// used returns what counts at now, rounded up.
	used(r *record, l limit, now int64) int64

	// resetAt returns the instant from which nothing counts; now if nothing does.
	resetAt(r *record, now int64) int64

	// retryAt returns the first instant at which cost fits, given that it does
	// not fit now and is within the capacity.
	retryAt(r *record, l limit, cost, now int64) int64

	// charge adds cost, room or no room.
	charge(r *record, l limit, cost, now int64) charged

	// lastCharge returns what charge returned when it added cost, if nothing was
	// charged since.
	lastCharge(r *record, cost int64) charged

	// giveBack returns what c was charged too much, as far as that still counts,
	// and reports whether the window or place that c's mark names is there.
	giveBack(r *record, l limit, c settled, now int64) bool

	// adopt makes r, a record of the same algorithm under another window or
	// quota, count under l, at no instant more than before. See docs/algorithms.md.
	adopt(r *record, l limit)

	// join adds what another policy was charged to r, which is live. own are the
	// records of that policy, charged already.
	join(r *record, own []record, cost, now int64)

	// giveBackJoined returns what c, a charge of another policy, was charged too
	// much, as far as r is sure to count it.
	giveBackJoined(r *record, c settled, now int64)

	// append appends the stored form of r, but for kind and window.
	append(b []byte, r *record) []byte

	// size returns the length of that form.
	size(r *record) int

	// parse reads that form into r, and returns p behind it; p has failed if it is
	// none. It is passed by value because a pointer to it would be on the heap.
	parse(p parser, r *record) parser

	// lifetime returns for how many ms a charge counts at most, if no limit is in
	// debt.
	lifetime(l limit) float64
}

// charged is what a charge is reported with.
type charged struct {
	mark    driver.Mark
	startAt int64 // of a queue, else 0
}

// settled is a charge whose real cost is known, and is no more than was charged.
type settled struct {
	mark          driver.Mark
	takenAt       int64
	charged, cost int64
}

// known reports whether k is in the table.
func (k kind) known() bool { return int(k) < len(kinds) && kinds[k].counter != nil }

// counter returns how records of that kind count. The kind must be known.
func (k kind) counter() counter { return kinds[k].counter }

// adopts reports whether a record of kind other can continue as one of kind k.
func (k kind) adopts(other kind) bool { return kinds[k].algorithm == kinds[other].algorithm }

// kindsByAlgorithm has the kinds of an algorithm's limits: not aligned, aligned.
var kindsByAlgorithm = func() (all [256][2]kind) {
	for k := range kinds {
		if kinds[k].counter == nil {
			continue
		}
		aligned := 0
		if kinds[k].aligned {
			aligned = 1
		}
		all[kinds[k].algorithm][aligned] = kind(k)
	}
	return all
}()

// Kind returns the number of l's kind, in states and in arguments of Redis scripts.
func Kind(l *quota.Limit) byte { return byte(kindOf(l)) }

// kindOf returns the kind of records under l. It panics if there is none:
// [quota.Policy.Validate] lets no such limit through.
func kindOf(l *quota.Limit) kind {
	aligned := 0
	if l.Aligned {
		aligned = 1
	}
	k := kindsByAlgorithm[l.Algorithm][aligned]
	if k == 0 {
		panic(fmt.Sprintf("algorithm: nothing counts a limit of %v", *l))
	}
	return k
}

// Lifetime returns how long a charge under l counts at most, in whole milliseconds, if
// l is not in debt and its policy does not change.
func Lifetime(l quota.Limit) time.Duration {
	n := limitOf(&l)
	return time.Duration(math.Ceil(min(n.kind.counter().lifetime(n), maxLifetime))) * time.Millisecond
}

// maxLifetime, in ms, is more than any limit needs: two windows, or the time that
// a burst needs to drain.
const maxLifetime = float64(2 * quota.MaxWindow / time.Millisecond)
