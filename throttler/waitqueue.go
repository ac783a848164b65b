package throttler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/clock"
)

// waitQueues contains the calls of Wait that have not returned.
type waitQueues struct {
	clock clock.Clock
	calls atomic.Int64
	mu    sync.Mutex
	named map[string]*waitQueue
}

// waitQueue contains the calls about the same counts. One at a time has its turn, and asks the
// backend.
type waitQueue struct {
	name    string
	calls   int     // number of calls that have not returned
	turn    *call   // the call that has its turn, or nil
	waiting []*call // for a turn, in order

	// From the last answer, for the calls behind it.
	next    time.Time     // when to ask: before, the answer would be no
	ahead   bool          // next is askAhead before a start, not when there is room: a refund makes it no earlier
	refused []Charge      // the charges that the answer refuses, or nil: other charges may fit earlier
	terms   terms         // the terms of the answer
	start   time.Time     // the earliest start of the first waiting call
	step    time.Duration // from one waiting call's start to the next

	paused time.Time // no call starts before, even if it has an earlier start

	woken chan struct{} // closed by a reset, which ends a pause and makes room, by a refund, and by other limits
}

// call is a call of Wait.
type call struct {
	*waitQueue
	ctx     context.Context
	charges []Charge

	called chan struct{} // closed when it is its turn, or one of these is set:
	answer *answer       // allows it
	err    error
	leader *call // shares its answer, and is called when it leaves
}

// askAhead is how long before a start the next call asks for its own. A start taken far ahead
// is lost when the process ends and, in the middle of a queue, when a context does.
const askAhead = 100 * time.Millisecond

// enter adds a call to the queue of its charges. It fails if ctx ends before it can start.
func (all *waitQueues) enter(ctx context.Context, charges []Charge) (*call, error) {
	name := nameOf(charges)
	all.mu.Lock()
	defer all.mu.Unlock()
	q := all.named[name]
	if q == nil {
		q = &waitQueue{name: name, woken: make(chan struct{})}
	}
	if q.holdsFor(charges) {
		if err := tooEarly(ctx, all.clock, q.startOf(len(q.waiting))); err != nil {
			return nil, err
		}
	}
	c := &call{waitQueue: q, ctx: ctx, charges: charges, called: make(chan struct{})}
	all.named[name], q.waiting = q, append(q.waiting, c)
	q.calls++
	all.calls.Add(1)
	q.call()
	return c, nil
}

// leave removes c, which is about to return.
func (q *waitQueues) leave(c *call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c.pass()
	if c.leader != nil {
		close(c.leader.called)
	}
	q.calls.Add(-1)
	if c.calls--; c.calls == 0 {
		delete(q.named, c.name)
	}
}

// giveUp ends c because its context is done, unless it has its answer.
func (q *waitQueues) giveUp(c *call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.waiting = slices.DeleteFunc(c.waiting, func(o *call) bool { return o == c }); c.answer == nil && c.err == nil {
		c.err = fmt.Errorf("throttler: the wait ended: %w", c.ctx.Err())
	}
}

// call gives the first waiting call its turn, unless another call has it.
func (q *waitQueue) call() {
	if q.turn == nil && len(q.waiting) > 0 {
		q.turn, q.waiting = q.waiting[0], q.waiting[1:]
		close(q.turn.called)
	}
}

// pass ends c's turn.
func (c *call) pass() {
	if c.turn == c {
		c.turn = nil
		c.call()
	}
}

// alike returns how many calls, c and the next ones behind it, have the same charges.
func (q *waitQueues) alike(c *call) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := slices.IndexFunc(c.waiting, func(o *call) bool { return !slices.Equal(o.charges, c.charges) })
	if n < 0 {
		n = len(c.waiting)
	}
	return 1 + n
}

// share gives a to c and to the calls behind it that a allows, too, and ends c's turn. It
// returns how many of the calls that a allows remain, because calls have given up.
func (q *waitQueues) share(c *call, a *answer, woken <-chan struct{}) (remaining int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c.answer = a
	last := c
	for remaining = a.calls - 1; remaining > 0 && len(c.waiting) > 0 && slices.Equal(c.waiting[0].charges, c.charges); remaining-- {
		o := *a
		o.Decision = o.again()
		last.leader = c.waiting[0]
		last, c.waiting = c.waiting[0], c.waiting[1:]
		last.answer = &o
	}
	q.note(c, a, woken)
	c.pass()
	return remaining
}

// expect updates c's queue from a, a refusal, for the calls behind c.
func (q *waitQueues) expect(c *call, a *answer, woken <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.note(c, a, woken)
}

// note updates c's queue from a, for the calls behind c, unless woken, which next returned, is
// closed: a may be from before that. Calls that can't start in time fail.
func (all *waitQueues) note(c *call, a *answer, woken <-chan struct{}) {
	q := c.waitQueue
	if q.woken != woken {
		return
	}
	q.next, q.ahead, q.terms, q.start, q.step = a.next, a.ahead, a.terms, a.behind, a.step
	if q.refused = nil; !a.Allowed {
		q.refused = slices.Clone(c.charges) // the caller may change them once it has returned
	}
	inTime := q.waiting[:0]
	for _, c := range q.waiting {
		if q.holdsFor(c.charges) {
			c.err = tooEarly(c.ctx, all.clock, q.startOf(len(inTime)))
		}
		if c.err != nil {
			close(c.called)
		} else {
			inTime = append(inTime, c)
		}
	}
	clear(q.waiting[len(inTime):])
	q.waiting = inTime
}

// pause lets no call about charges start before until, even if it has an earlier start.
func (q *waitQueues) pause(charges []Charge, until time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q := q.named[nameOf(charges)]; q != nil {
		q.paused = later(q.paused, until)
	}
}

// reset wakes the calls about charges, and ends their pause.
func (q *waitQueues) reset(charges []Charge) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q := q.named[nameOf(charges)]; q != nil {
		q.wake()
		q.paused = time.Time{}
	}
}

// refunded wakes the calls about charges that wait for room, because a refund may have made
// some.
func (q *waitQueues) refunded(charges []Charge) {
	if q.calls.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q := q.named[nameOf(charges)]; q != nil && !q.ahead {
		q.wake()
	}
}

// outdated reports whether the last answer about charges was under other terms than current, or the
// terms could not be resolved, with err. If so, waiting calls ask at once.
func (all *waitQueues) outdated(charges []Charge, current terms, err error) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	q := all.named[nameOf(charges)]
	if q == nil || err == nil && q.terms.are(current) {
		return false
	}
	q.wake()
	return true
}

// wake makes the calls of q ask at once.
func (q *waitQueue) wake() {
	close(q.woken)
	q.woken, q.next, q.start = make(chan struct{}), time.Time{}, time.Time{}
}

// pausedUntil returns when the pause of c's queue ends, or zero if there is no pause, and a
// channel that is closed if the pause ends earlier.
func (q *waitQueues) pausedUntil(c *call) (until time.Time, woken <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.paused.After(q.clock.Now()) {
		return c.paused, c.woken
	}
	return time.Time{}, nil
}

// holdsFor reports whether the last answer says when charges fit.
func (q *waitQueue) holdsFor(charges []Charge) bool {
	return q.refused == nil || slices.Equal(q.refused, charges)
}

// startOf returns the earliest start of waiting call i.
func (q *waitQueue) startOf(i int) time.Time { return q.start.Add(time.Duration(i) * q.step) }

// next returns when c should ask in its turn, and a channel that is closed if it can ask now.
func (q *waitQueues) next(c *call) (start time.Time, woken <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !c.holdsFor(c.charges) {
		return time.Time{}, c.woken
	}
	return c.next, c.woken
}

// nameOf names the counts of charges.
func nameOf(charges []Charge) string {
	var b []byte
	for _, c := range charges {
		name := ""
		if c.Policy != nil {
			name = c.Policy.Name
		}
		b = fmt.Appendf(b, "%q %q %q\n", name, c.Key, cmp.Or(c.Partition, c.Key))
	}
	return string(b)
}
