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

// lines has the calls of Wait that have not returned.
type lines struct {
	clock clock.Clock
	calls atomic.Int64
	mu    sync.Mutex
	named map[string]*line
}

// line is the calls about the same counts. One at a time has its turn, and asks the backend.
type line struct {
	name  string
	calls int     // that have not returned
	turn  *call   // whose turn it is, or nil
	queue []*call // those that wait for a turn, in order

	// What the last answer says of the calls that it is not for.
	next  time.Time     // when to ask: before that, the answer would be no
	ahead bool          // next waits for a start that was given out, not for room: a refund changes nothing
	under terms         // the limits that this holds for
	start time.Time     // the first of the queue starts then at the earliest,
	step  time.Duration // and each other so much later than the one in front of it

	paused time.Time // before which none starts, also of those that have a start

	woken chan struct{} // closed by a reset, which ends a pause and makes room, by a refund, and by other limits
}

// call is a call of Wait.
type call struct {
	*line
	ctx     context.Context
	charges []Charge

	called chan struct{} // closed when it is its turn, or it has one of:
	answer *answer       // that allows it
	err    error
	behind *call // that shares its answer, and is called when it leaves
}

// askAhead is how long before a start the next call asks for its own. What is taken far ahead
// is lost with a process and, in the middle of a queue, when a context ends.
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
	if err := tooEarly(ctx, all.clock, l.startOf(len(l.queue))); err != nil {
		return nil, err
	}
	c := &call{line: l, ctx: ctx, charges: charges, called: make(chan struct{})}
	all.named[name], l.queue = l, append(l.queue, c)
	l.calls++
	all.calls.Add(1)
	l.call()
	return c, nil
}

// leave removes c, which returns.
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

// giveUp ends c, whose context is over, unless it has its answer.
func (all *lines) giveUp(c *call) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if c.queue = slices.DeleteFunc(c.queue, func(o *call) bool { return o == c }); c.answer == nil && c.err == nil {
		c.err = fmt.Errorf("throttler: the wait ended: %w", c.ctx.Err())
	}
}

// call gives the first of the queue its turn, if it is no other's.
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

// alike returns how many calls, c and those behind it, have the same charges.
func (all *lines) alike(c *call) int {
	all.mu.Lock()
	defer all.mu.Unlock()
	n := slices.IndexFunc(c.queue, func(o *call) bool { return !slices.Equal(o.charges, c.charges) })
	if n < 0 {
		n = len(c.queue)
	}
	return 1 + n
}

// share gives a, of which c's turn ends, to c and to those behind it that it allows, too.
// It returns how many of these have left.
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

// expect notes what a says of the calls behind c.
func (all *lines) expect(c *call, a *answer, woken <-chan struct{}) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.note(c, a, woken)
}

// note notes what a says of the calls behind c, unless woken, which next returned, is closed: a may
// be from before that. Calls that cannot start in time fail.
func (all *lines) note(c *call, a *answer, woken <-chan struct{}) {
	l := c.line
	if l.woken != woken {
		return
	}
	l.next, l.ahead, l.under, l.start, l.step = a.next, a.ahead, a.under, a.behind, a.step
	inTime := l.queue[:0]
	for _, c := range l.queue {
		if c.err = tooEarly(c.ctx, all.clock, l.startOf(len(inTime))); c.err != nil {
			close(c.called)
		} else {
			inTime = append(inTime, c)
		}
	}
	clear(l.queue[len(inTime):])
	l.queue = inTime
}

// pause notes that nothing about charges starts before until.
func (all *lines) pause(charges []Charge, until time.Time) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if l := all.named[nameOf(charges)]; l != nil {
		l.paused = later(l.paused, until)
	}
}

// reset notes that the counts of charges have nothing.
func (all *lines) reset(charges []Charge) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if l := all.named[nameOf(charges)]; l != nil {
		l.wake()
		l.paused = time.Time{}
	}
}

// refunded notes that charges have given back what they took: there may be room for calls that
// wait for it.
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

// outdated reports whether the last answer about charges was under other terms, or is if err
// is not nil. If so, calls that wait ask at once.
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

// wake has the calls of l ask at once.
func (l *line) wake() {
	close(l.woken)
	l.woken, l.next, l.start = make(chan struct{}), time.Time{}, time.Time{}
}

// pausedUntil returns until when c's line is paused, zero if it is not, and a channel that is
// closed if the pause ends before.
func (all *lines) pausedUntil(c *call) (until time.Time, woken <-chan struct{}) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if c.paused.After(all.clock.Now()) {
		return c.paused, c.woken
	}
	return time.Time{}, nil
}

// startOf returns when call i of the queue starts, at the earliest.
func (l *line) startOf(i int) time.Time { return l.start.Add(time.Duration(i) * l.step) }

// next returns when c is to ask in its turn, and a channel that is closed if it can ask now.
func (all *lines) next(c *call) (at time.Time, woken <-chan struct{}) {
	all.mu.Lock()
	defer all.mu.Unlock()
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
