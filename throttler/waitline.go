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

// lines contains the calls of Wait that have not returned.
type lines struct {
	clock clock.Clock
	calls atomic.Int64
	mu    sync.Mutex
	named map[string]*line
}

// line contains the calls about the same counts. One at a time has its turn, and asks the
// backend.
type line struct {
	name  string
	calls int     // number of calls that have not returned
	turn  *call   // the call that has its turn, or nil
	queue []*call // calls that wait for a turn, in order

	// From the last answer, for the calls behind it.
	next  time.Time     // when to ask: before, the answer would be no
	ahead bool          // next waits for a start that is taken, not for room: a refund changes nothing
	of    []Charge      // the charges that the answer refuses, or nil: other charges may fit earlier
	under terms         // the terms of the answer
	start time.Time     // the earliest start of the first call in the queue
	step  time.Duration // from one start in the queue to the next

	paused time.Time // no call starts before, even if it has an earlier start

	woken chan struct{} // closed by a reset, which ends a pause and makes room, by a refund, and by other limits
}

// call is a call of Wait.
type call struct {
	*line
	ctx     context.Context
	charges []Charge

	called chan struct{} // closed when it is its turn, or one of these is set:
	answer *answer       // allows it
	err    error
	behind *call // shares its answer, and is called when it leaves
}

// askAhead is how long before a start the next call asks for its own. A start taken far ahead
// is lost when the process ends and, in the middle of a queue, when a context does.
const askAhead = 100 * time.Millisecond

// enter adds a call to the line of its charges. It fails if ctx ends before it can start.
func (all *lines) enter(ctx context.Context, charges []Charge) (*call, error) {
	name := nameOf(charges)
	all.mu.Lock()
	defer all.mu.Unlock()
	l := all.named[name]
	if l == nil {
		l = &line{name: name, woken: make(chan struct{})}
	}
	if l.holdsFor(charges) {
		if err := tooEarly(ctx, all.clock, l.startOf(len(l.queue))); err != nil {
			return nil, err
		}
	}
	c := &call{line: l, ctx: ctx, charges: charges, called: make(chan struct{})}
	all.named[name], l.queue = l, append(l.queue, c)
	l.calls++
	all.calls.Add(1)
	l.call()
	return c, nil
}

// leave removes c, which is about to return.
func (all *lines) leave(c *call) {
	all.mu.Lock()
	defer all.mu.Unlock()
	c.pass()
	if c.behind != nil {
		close(c.behind.called)
	}
	all.calls.Add(-1)
	if c.calls--; c.calls == 0 {
		delete(all.named, c.name)
	}
}

// giveUp ends c because its context is done, unless it has its answer.
func (all *lines) giveUp(c *call) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if c.queue = slices.DeleteFunc(c.queue, func(o *call) bool { return o == c }); c.answer == nil && c.err == nil {
		c.err = fmt.Errorf("throttler: the wait ended: %w", c.ctx.Err())
	}
}

// call gives the first call in the queue its turn, unless another call has it.
func (l *line) call() {
	if l.turn == nil && len(l.queue) > 0 {
		l.turn, l.queue = l.queue[0], l.queue[1:]
		close(l.turn.called)
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
func (all *lines) alike(c *call) int {
	all.mu.Lock()
	defer all.mu.Unlock()
	n := slices.IndexFunc(c.queue, func(o *call) bool { return !slices.Equal(o.charges, c.charges) })
	if n < 0 {
		n = len(c.queue)
	}
	return 1 + n
}

// share gives a to c and to the calls behind it that a allows, too, and ends c's turn. It
// returns how many of the calls that a allows are left over, because calls have given up.
func (all *lines) share(c *call, a *answer, woken <-chan struct{}) (left int) {
	all.mu.Lock()
	defer all.mu.Unlock()
	c.answer = a
	last := c
	for left = a.calls - 1; left > 0 && len(c.queue) > 0 && slices.Equal(c.queue[0].charges, c.charges); left-- {
		o := *a
		o.Decision = o.again()
		last.behind = c.queue[0]
		last, c.queue = c.queue[0], c.queue[1:]
		last.answer = &o
	}
	all.note(c, a, woken)
	c.pass()
	return left
}

// expect updates c's line from a, a refusal, for the calls behind c.
func (all *lines) expect(c *call, a *answer, woken <-chan struct{}) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.note(c, a, woken)
}

// note updates c's line from a, for the calls behind c, unless woken, which next returned, is
// closed: a may be from before that. Calls that can't start in time fail.
func (all *lines) note(c *call, a *answer, woken <-chan struct{}) {
	l := c.line
	if l.woken != woken {
		return
	}
	l.next, l.ahead, l.under, l.start, l.step = a.next, a.ahead, a.under, a.behind, a.step
	if l.of = nil; !a.Allowed {
		l.of = slices.Clone(c.charges) // the caller may change them once it has returned
	}
	inTime := l.queue[:0]
	for _, c := range l.queue {
		if l.holdsFor(c.charges) {
			c.err = tooEarly(c.ctx, all.clock, l.startOf(len(inTime)))
		}
		if c.err != nil {
			close(c.called)
		} else {
			inTime = append(inTime, c)
		}
	}
	clear(l.queue[len(inTime):])
	l.queue = inTime
}

// pause lets no call about charges start before until, even if it has an earlier start.
func (all *lines) pause(charges []Charge, until time.Time) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if l := all.named[nameOf(charges)]; l != nil {
		l.paused = later(l.paused, until)
	}
}

// reset wakes the calls about charges, and ends their pause.
func (all *lines) reset(charges []Charge) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if l := all.named[nameOf(charges)]; l != nil {
		l.wake()
		l.paused = time.Time{}
	}
}

// refunded wakes the calls about charges that wait for room, because a refund may have made
// some.
func (all *lines) refunded(charges []Charge) {
	if all.calls.Load() == 0 {
		return
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if l := all.named[nameOf(charges)]; l != nil && !l.ahead {
		l.wake()
	}
}

// outdated reports whether the last answer about charges was under other terms than is, or the
// terms could not be resolved, with err. If so, waiting calls ask at once.
func (all *lines) outdated(charges []Charge, is terms, err error) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	l := all.named[nameOf(charges)]
	if l == nil || err == nil && l.under.are(is) {
		return false
	}
	l.wake()
	return true
}

// wake makes the calls of l ask at once.
func (l *line) wake() {
	close(l.woken)
	l.woken, l.next, l.start = make(chan struct{}), time.Time{}, time.Time{}
}

// pausedUntil returns when the pause of c's line ends, or zero if there is no pause, and a
// channel that is closed if the pause ends earlier.
func (all *lines) pausedUntil(c *call) (until time.Time, woken <-chan struct{}) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if c.paused.After(all.clock.Now()) {
		return c.paused, c.woken
	}
	return time.Time{}, nil
}

// holdsFor reports whether the last answer says when charges fit.
func (l *line) holdsFor(charges []Charge) bool { return l.of == nil || slices.Equal(l.of, charges) }

// startOf returns the earliest start of call i of the queue.
func (l *line) startOf(i int) time.Time { return l.start.Add(time.Duration(i) * l.step) }

// next returns when c should ask in its turn, and a channel that is closed if it can ask now.
func (all *lines) next(c *call) (at time.Time, woken <-chan struct{}) {
	all.mu.Lock()
	defer all.mu.Unlock()
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
