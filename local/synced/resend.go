package synced

import (
	"math"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"
)

// A root that has lost its memory gets the totals that it had from the processes that know them:
// by the entries of counters that are charged again, and by a resend of all of them between the
// syncs. A resend has a part for contested counters, and then parts by their names. The first
// few processes to claim a part resend it. The root bounds how many it takes in a time.
const (
	parts       = 9                     // of a resend; the first is of contested counters
	resendCalls = 8                     // in one round trip
	resendPause = 16 * time.Microsecond // for each counter, of which a root needs some 4
)

// resend is the resend to a root.
type resend struct {
	part    int // index of the part; parts when there is none
	turn    int // offset of this process's order of parts
	claimed bool
	stripe  int       // from here on, counters of the part have not been looked at:
	end     int       // in that stripe, up to this index
	next    time.Time // no call before
	backoff int       // how often the root postponed calls, since it took some
	parked  []call    // that it postponed
	sizes   [parts]int64
	unsent  atomic.Int64
}

// resends reports whether there is a resend.
func (r *resend) resends() bool { return r.part < parts }

// current returns the part in this process's order.
func (r *resend) current() int {
	if r.part == 0 {
		return 0
	}
	return 1 + (r.part-1+r.turn)%(parts-1)
}

// partOf returns the part that c is in.
func (c *counter) partOf(now int64) int {
	if c.isContested(now) {
		return 0
	}
	return 1 + int(c.root[0])%(parts-1)
}

// beginResend begins a resend to the root of a, which has lost its memory.
func (b *Backend) beginResend(a *aggregator, clock time.Time) {
	r := &a.resend
	r.part, r.turn, r.claimed, r.backoff, r.parked = 0, rand.IntN(parts-1), false, 0, nil
	r.next = clock.Add(b.opts.Sync) // after the units that are to be added
	r.sizes = [parts]int64{}
	now, total := b.opts.Clock.Now().UnixMilli(), int64(0)
	for i := range b.stripes {
		s := &b.stripes[i]
		for end := math.MaxInt; end > 0; {
			s.mu.Lock()
			end = s.Sweep(end, func(c *counter) bool {
				if c.group == a.group {
					r.sizes[c.partOf(now)]++
					total++
				}
				return false
			})
			s.mu.Unlock()
		}
	}
	r.unsent.Store(total)
}

// writeResend makes the next calls of the resend to the root of a, if it is time for them.
func (b *Backend) writeResend(a *aggregator, clock time.Time, now int64) {
	r := &a.resend
	if !r.resends() || clock.Before(r.next) {
		return
	}
	if !r.claimed {
		w := newWriter(b, a, b.opts.Prefix+"claims:"+strconv.Itoa(r.current()), now)
		w.begin()
		a.calls = w.calls
		return
	}
	if len(r.parked) > 0 {
		a.calls, r.parked = r.parked[:1:1], r.parked[1:]
		return
	}
	w := newWriter(b, a, b.opts.Prefix+"resent", now)
	for ; r.stripe < len(b.stripes) && !w.isFull(resendCalls); r.stripe++ {
		s := &b.stripes[r.stripe]
		for r.end > 0 && !w.isFull(resendCalls) {
			s.mu.Lock()
			r.end = s.Sweep(r.end, func(c *counter) bool {
				if c.group == a.group && c.partOf(now) == r.current() {
					w.writeTotals(c)
				}
				return false
			})
			s.mu.Unlock()
		}
		if r.end > 0 {
			break
		}
		r.end = math.MaxInt
	}
	if a.calls = w.calls; len(a.calls) == 0 {
		b.endPart(a)
	}
	sent := 0
	for i := range a.calls {
		sent += len(a.calls[i].about)
	}
	r.next = clock.Add(time.Duration(sent) * resendPause)
}

// writeTotals adds the counts of c with the totals that the root had before it lost its memory.
func (w *writer) writeTotals(c *counter) {
	w.b.resets.apply(c, w.now)
	for k := range c.counts {
		count, l := &c.counts[k], &c.limits[k]
		count.roll(l, w.now)
		total, raise := count.rootTotal(l, w.a.index, w.a.epoch, w.now)
		if count.views[w.a.index].answered() && raise {
			w.writeTotal(c, k, total)
		}
	}
}

// resent processes a reply to a call of the resend: the root has its counters, or lets this
// process resend a part.
func (b *Backend) resent(a *aggregator, c *call) {
	r := &a.resend
	if len(c.about) == 0 {
		r.claimed, r.stripe, r.end = true, 0, math.MaxInt
		return
	}
	r.backoff = 0
	r.unsent.Add(-int64(len(c.about)))
	r.sizes[r.current()] -= int64(len(c.about))
}

// postpone processes a reply to a call of the resend that did nothing: the root has the part
// from others, or wants its time for others now.
func (b *Backend) postpone(a *aggregator, claimed bool, clock time.Time) {
	r := &a.resend
	if claimed {
		a.calls = nil
		b.endPart(a)
		return
	}
	a.calls, r.parked = nil, append(a.calls, r.parked...)
	r.backoff++
	r.next = clock.Add(rand.N(min(50*time.Millisecond<<min(r.backoff, 10), 4*b.opts.Sync)))
}

// endPart ends a part of the resend.
func (b *Backend) endPart(a *aggregator) {
	r := &a.resend
	r.unsent.Add(-r.sizes[r.current()])
	r.part, r.claimed = r.part+1, false
	if !r.resends() {
		r.unsent.Store(0)
	}
}
