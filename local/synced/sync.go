package synced

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/observe"
)

// Bounds of a sync.
const (
	perCall    = 250 // counters in one call: a root does nothing else for half a millisecond
	perTrip    = 16  // calls in one round trip
	minTimeout = 100 * time.Millisecond

	lastTimeout = 2 * time.Second // of the last sync of a process that ends

	// perCallTime is the additional time of a round trip for each call, on a busy root.
	perCallTime = 20 * time.Millisecond

	// lateAfter is the number of syncs without a reply after which the units of a bucket are
	// late: the bucket had time to drain while they waited. One call that is lost takes three.
	lateAfter = 4

	// goal is the part of a bucket's capacity up to which late units fill it.
	goal = 0.75
)

// aggregator is what this process knows about one root. One goroutine syncs with it.
type aggregator struct {
	server server
	group  *group
	index  int // in the group
	list   int // index in stripes' dirty

	// epoch counts the memories of the root: it lost each but the last. In each, this process
	// has a key with the number of its last addition.
	epoch   uint32
	process string
	number  float64

	calls    []call // without a reply; sent again until there is one
	queue    []*counter
	nextSync time.Time
	heard    time.Time // when the root replied last
	lost     time.Time // when this process noticed that it had lost its memory
	lateness
	resend

	silent  atomic.Bool  // it did not answer the last call
	replied atomic.Int64 // heard, in ms since the epoch; 0 before the first reply
	losses  atomic.Int64
}

// lateness is whether the units that a root lacks are late.
type lateness int

const (
	inTime  lateness = iota
	overdue          // the root did not answer for lateAfter syncs
	lateEnd          // it answers: the sync that began since has the last late units
)

// call is one call of the script.
type call struct {
	key     string
	header  []byte
	entries []byte
	about   []entry
}

// entry is one counter in a call.
type entry struct {
	c      *counter
	view   *view   // of the root: identifies the count
	part   int64   // units of this process, including this call
	units  int64   // of this call
	window float64 // at the time of the call
	reset  int64   // counter.resetAt at that time
}

// entrySize is the number of an entry's bytes: see sync.lua.
const entrySize = 38

// late returns the time without a reply after which the units of a bucket are late.
func (o *Options) late() time.Duration { return lateAfter * max(o.Sync, minTimeout) }

func (b *Backend) syncUntilClosed(a *aggregator) {
	// Processes that start together must not sync together.
	timer := time.NewTimer(rand.N(b.opts.Sync))
	defer timer.Stop()
	answers := false
	for {
		select {
		case <-b.closed.Done():
			b.syncLast(a, answers)
			return
		case <-timer.C:
		}
		began := time.Now()
		if b.prepare(a, began) {
			replies, err := b.call(b.closed, a)
			b.conclude(a, replies, err, time.Now())
			if b.closed.Err() == nil { // a call that Close ends says nothing
				answers = err == nil
			}
		}
		timer.Reset(b.pause(a, began, time.Now()))
	}
}

// syncLast makes the last sync with the root of a. A root that answered until now may be slow for
// a moment, so it is tried again for a while; another is tried once.
func (b *Backend) syncLast(a *aggregator, answers bool) {
	ctx, cancel := context.WithTimeout(context.Background(), max(2*b.opts.Sync, lastTimeout))
	defer cancel()
	for {
		if len(a.calls) == 0 || b.trip(ctx, a) { // the units of lost calls go first
			b.syncOnce(ctx, a)
		}
		if !a.silent.Load() { // counters that the root had lost, or whose reset was too early for it
			b.syncOnce(ctx, a)
		}
		if !answers || !a.silent.Load() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(minTimeout / 10):
		}
	}
}

// syncOnce makes a whole sync with the root of a, or gives up when it doesn't answer.
func (b *Backend) syncOnce(ctx context.Context, a *aggregator) {
	a.nextSync = time.Time{}
	for b.trip(ctx, a) && len(a.queue)+len(a.calls) > 0 {
	}
}

// trip makes a round trip to the root of a, and reports whether it answered.
func (b *Backend) trip(ctx context.Context, a *aggregator) bool {
	if b.prepare(a, time.Now()) {
		replies, err := b.call(ctx, a)
		b.conclude(a, replies, err, time.Now())
	}
	return !a.silent.Load()
}

// call makes the calls of a.
func (b *Backend) call(ctx context.Context, a *aggregator) ([][]byte, error) {
	start := time.Now()
	replies, err := a.server.call(ctx, a.calls)
	b.opts.Observer.Sent(observe.Sent{Backend: "synced", Shard: a.server.name(), Decisions: len(a.calls), Start: start, Duration: time.Since(start), Err: err})
	if b.closed.Err() == nil { // a call that Close ends says nothing
		b.opts.Observer.Checked(observe.Checked{Backend: "synced", Shard: a.server.name(), Server: "root", Open: err != nil, Err: err})
	}
	return replies, err
}

// prepare makes the next calls to the root of a, unless there are calls to send again. It
// reports whether there are any.
func (b *Backend) prepare(a *aggregator, clock time.Time) bool {
	if a.heard.IsZero() {
		a.heard = clock
		b.remember(a)
	}
	now := b.opts.Clock.Now().UnixMilli()
	if a.lateness == inTime && a.silent.Load() && clock.Sub(a.heard) > b.opts.late() {
		a.lateness = overdue
		b.makeLate(a, now)
	}
	switch {
	case len(a.calls) > 0:
	case !clock.Before(a.nextSync):
		a.nextSync = clock.Add(b.opts.Sync)
		if a.lateness == overdue {
			a.lateness = lateEnd
		}
		b.takeDirty(a, now)
		b.add(a, now)
	case len(a.queue) > 0:
		b.add(a, now)
	default:
		b.writeResend(a, clock, now)
	}
	for i := range a.calls { // made before, perhaps
		copy(a.calls[i].header[8:], appendDouble(nil, float64(now)))
	}
	return len(a.calls) > 0
}

// conclude processes the root's replies to the calls of a. They are in order, up to the first
// call without one; err says why there are not more.
func (b *Backend) conclude(a *aggregator, replies [][]byte, err error, clock time.Time) {
	now := b.opts.Clock.Now().UnixMilli()
	if failed := err != nil; a.silent.Swap(failed) != failed && a.group.changed(failed, now) && b.closed.Err() == nil {
		b.opts.Observer.Warned(observe.Warned{
			Text: "no root answers: this process decides alone, by the others' last known share of each synced quota",
			Hint: "check the servers in roots, and the network to them; counts continue by themselves when one answers",
		})
	}
	if err != nil {
		b.stats.failed.Add(1)
	} else {
		b.stats.syncs.Add(1)
	}
	for _, reply := range replies {
		a.heard = clock
		a.replied.Store(clock.UnixMilli())
		if c := &a.calls[0]; !b.learn(a, c, reply, now) {
			b.refused(a, reply, clock)
			return
		}
		a.calls = a.calls[1:]
	}
	if len(a.calls) > 0 {
		return
	}
	a.calls = nil
	if a.lateness == lateEnd && len(a.queue) == 0 {
		a.lateness = inTime
	}
}

// pause returns how long to wait for the next round trip, after one that began and ended at
// these times.
func (b *Backend) pause(a *aggregator, began, end time.Time) time.Duration {
	sync := b.opts.Sync
	switch untilDue := a.nextSync.Sub(end); {
	case a.silent.Load():
		return max(sync-end.Sub(began), sync/10)
	case len(a.calls)+len(a.queue) > 0 && untilDue > sync/2: // the rest of the time is for others
		return 0
	case a.resends() && len(a.queue) == 0:
		return max(min(untilDue, a.next.Sub(end)), 0)
	default:
		return max(untilDue, sync/10)
	}
}

// remember begins an epoch of the root of a.
func (b *Backend) remember(a *aggregator) {
	a.epoch++
	a.process, a.number, a.calls = b.opts.Prefix+"p:"+strconv.FormatUint(rand.Uint64(), 36), 0, nil
}

// refused processes a reply other than 'o' to the first call of a.
func (b *Backend) refused(a *aggregator, reply []byte, clock time.Time) {
	if a.calls[0].isResend() && len(reply) == 1 && (reply[0] == 'b' || reply[0] == 's') {
		b.postpone(a, reply[0] == 's', clock)
		return
	}
	// It lost the numbers of this process, or is not a root.
	for i := range a.calls {
		for k := range a.calls[i].about {
			s, c := b.stripeFor(a.calls[i].about[k].c), a.calls[i].about[k].c
			s.mu.Lock()
			s.markDirty(c, a.index)
			s.mu.Unlock()
		}
	}
	b.remember(a)
	if clock.Sub(a.lost) > b.opts.Sync { // otherwise it may lose it again and again
		a.nextSync = clock
	}
	a.lost = clock
	b.beginResend(a, clock)
	a.losses.Add(1)
}

// takeDirty begins a sync with the root of a: it moves the counters in its lists to its queue,
// and those with little room to the front.
func (b *Backend) takeDirty(a *aggregator, now int64) {
	var first, roomy []*counter
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		dirty := s.dirty[a.list]
		s.dirty[a.list] = nil
		s.mu.Unlock()
		for begin := 0; begin < len(dirty); begin += keyed.AtOnce {
			s.mu.Lock()
			for _, c := range dirty[begin:min(begin+keyed.AtOnce, len(dirty))] {
				if c.isContested(now) {
					first = append(first, c)
				} else {
					roomy = append(roomy, c)
				}
			}
			s.mu.Unlock()
		}
	}
	a.queue = append(append(first, a.queue...), roomy...)
}

// add makes the calls that add the units that the root of a lacks to the counters in its queue,
// as many as fit into a round trip. There is at least one, which shows whether the root has
// lost its memory.
func (b *Backend) add(a *aggregator, now int64) {
	w := newWriter(b, a, a.process, now)
	w.begin()
	sent := 0
	for sent < len(a.queue) && !w.isFull(perTrip) {
		c := a.queue[sent]
		s := b.stripeFor(c)
		s.mu.Lock()
		for n := 0; n < keyed.AtOnce && sent < len(a.queue) && int(a.queue[sent].stripe) == s.index && !w.isFull(perTrip); n++ {
			c = a.queue[sent]
			w.write(c)
			c.dirty &^= 1 << a.index
			a.queue[sent] = nil
			sent++
		}
		s.mu.Unlock()
	}
	if a.queue = a.queue[sent:]; len(a.queue) == 0 {
		a.queue = nil
	}
	a.calls = w.calls
}

// makeLate makes the bucket's units in the calls of a late: the calls have the levels instead.
func (b *Backend) makeLate(a *aggregator, now int64) {
	for i := range a.calls {
		for k := range a.calls[i].about {
			e := &a.calls[i].about[k]
			s := b.stripeFor(e.c)
			s.mu.Lock()
			n := e.c.countOf(e.view, a.index)
			if n < 0 || e.c.limits[n].kind == bucket && e.units >= 0 {
				e.units = 0
				x, bound := 0.0, 0.0
				if n >= 0 {
					x, bound = e.c.counts[n].level(&e.c.limits[n], a.index, now)
				}
				values := a.calls[i].entries[(k+1)*entrySize-24:][:0]
				appendDouble(appendDouble(appendDouble(values, 0), x), bound)
			}
			s.mu.Unlock()
		}
	}
}

// writer makes calls.
type writer struct {
	b      *Backend
	a      *aggregator
	key    string
	now    int64
	calls  []call
	limits map[spanOf]uint16 // of the last call: their indexes in its header
}

// spanOf is a limit in the header of a call.
type spanOf struct {
	span
	length int64
	bound  float64
	reset  float64
}

func newWriter(b *Backend, a *aggregator, key string, now int64) *writer {
	return &writer{b: b, a: a, key: key, now: now, limits: make(map[spanOf]uint16)}
}

// isFull reports whether w has so many calls with all their counters.
func (w *writer) isFull(calls int) bool {
	return len(w.calls) >= calls && len(w.calls[len(w.calls)-1].about) >= w.b.perCall
}

// begin begins a call.
func (w *writer) begin() {
	clear(w.limits)
	number := 0.0
	if w.key == w.a.process {
		w.a.number++
		number = w.a.number
	}
	w.calls = append(w.calls, call{key: w.key, header: appendDouble(appendDouble(nil, number), float64(w.now))})
}

func (c *call) isResend() bool { return double(c.header) == 0 }

// write adds the counts of c, whose stripe is locked, with the units that the root lacks. If the
// root has lost its memory, they have its last totals first, and the units one sync later: by then,
// it has the latest total of any process.
func (w *writer) write(c *counter) {
	c.forgetFormer(w.now)
	for k := range c.counts {
		count, l := &c.counts[k], &c.limits[k]
		count.roll(l, w.now)
		v := &count.views[w.a.index]
		e := entry{c, v, count.part, count.pending(w.a.index), count.window, c.resetAt}
		total, raise := count.rootTotal(l, w.a.index, w.a.epoch, w.now)
		x, bound := count.base(l), boundOf(total, raise)
		if l.kind == window {
			x = count.window
		}
		switch {
		case l.kind == bucket && w.a.lateness != inTime && e.units >= 0:
			e.units = 0
			x, bound = count.level(l, w.a.index, w.now)
		case v.answered() && raise:
			w.writeTotal(c, k, total)
			continue
		}
		w.append(c, k, e, x, bound)
	}
}

// writeTotal adds an entry of count k of c with the total that the root had before it lost its
// memory.
func (w *writer) writeTotal(c *counter, k int, total float64) {
	count := &c.counts[k]
	v := &count.views[w.a.index]
	w.append(c, k, entry{c, v, v.acked, 0, count.window, c.resetAt}, count.window, boundOf(total, true))
}

// append adds an entry for count k of c.
func (w *writer) append(c *counter, k int, e entry, x, bound float64) {
	if len(w.calls) == 0 || len(w.calls[len(w.calls)-1].about) >= w.b.perCall {
		w.begin()
	}
	call, l := &w.calls[len(w.calls)-1], &c.limits[k]
	s := spanOf{l.span, l.length, 2 * float64(l.capacity) * l.ms, 0}
	if l.kind == window && l.windowAt(c.resetAt) == e.window || l.kind == bucket && float64(c.resetAt)+s.bound > float64(w.now) {
		s.reset = float64(c.resetAt)
	}
	i, ok := w.limits[s]
	if !ok {
		i = uint16(len(w.limits))
		w.limits[s] = i
		call.header = append(call.header, byte(s.kind))
		call.header = appendDouble(appendDouble(appendDouble(appendDouble(call.header, s.ms), float64(s.length)), s.bound), s.reset)
	}
	call.entries = binary.BigEndian.AppendUint16(append(call.entries, c.root[:]...), i)
	call.entries = appendDouble(appendDouble(appendDouble(call.entries, float64(e.units)), x), bound)
	call.about = append(call.about, e)
}

func appendDouble(b []byte, f float64) []byte {
	return binary.BigEndian.AppendUint64(b, math.Float64bits(f))
}

func double(b []byte) float64 { return math.Float64frombits(binary.BigEndian.Uint64(b)) }

// learn processes the reply to c. It reports whether the root did what c says.
func (b *Backend) learn(a *aggregator, c *call, reply []byte, now int64) bool {
	resets := 1 + 16*len(c.about)
	if len(reply) < resets || (len(reply)-resets)%resetSize != 0 || reply[0] != 'o' {
		return false
	}
	totals := reply[1:]
	for i := 0; i < len(c.about); {
		s, begin := b.stripeFor(c.about[i].c), i
		s.mu.Lock()
		for ; i < len(c.about) && int(c.about[i].c.stripe) == s.index && i-begin < keyed.AtOnce; i++ {
			b.learnTotal(a, &c.about[i], totals[16*i:], now)
		}
		s.mu.Unlock()
	}
	if c.isResend() {
		b.resent(a, c)
	}
	b.resets.add(reply[resets:])
	return true
}

// learnTotal processes the root's total of e's count. Its caller holds the stripe's lock.
func (b *Backend) learnTotal(a *aggregator, e *entry, total []byte, now int64) {
	x, y := double(total), double(total[8:])
	e.c.forgetFormer(now)
	k := e.c.countOf(e.view, a.index)
	if math.IsInf(y, -1) && sane(x) && e.c.hear(int64(x), a, b.opts.late().Milliseconds(), now) || e.reset != e.c.resetAt {
		for i := range e.c.group.servers { // the reset goes to all roots, and they have the count since
			b.stripeFor(e.c).markDirty(e.c, i)
		}
		return
	}
	if k < 0 || !sane(x) || !sane(y) { // or its policy no longer has the limit
		return
	}
	e.c.isReset = false
	count, l := &e.c.counts[k], &e.c.limits[k]
	count.roll(l, now)
	if count.learn(l, a.index, a.epoch, e, x, y, now, b.opts.Sync.Milliseconds()/2) {
		e.c.watched = max(e.c.watched, min(now+3*b.opts.Sync.Milliseconds(), e.c.lastAsk+watchMost))
	}
	// A counter with room for all needs no polls: its next charge brings its total.
	switch c := e.c; {
	case count.pending(a.index) != 0: // units since, or after the total of a root that lost it
		b.stripeFor(c).markDirty(c, a.index)
	case c.Removed() || !c.isContested(now):
	case c.watched > now:
		b.stripeFor(c).markDirty(c, a.index)
	case c.dirty == 0:
		c.unwatch()
	}
}

// countOf returns the index of the count with v as its view of root i, or -1.
func (c *counter) countOf(v *view, i int) int {
	return slices.IndexFunc(c.counts, func(c count) bool { return &c.views[i] == v })
}

// sane reports whether f can be in a root's reply.
func sane(f float64) bool { return f > -1<<60 && f < 1<<60 } // and is a number
