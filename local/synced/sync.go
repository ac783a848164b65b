package synced

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/observe"
)

// Bounds of a sync.
const (
	perCall     = 1000                  // counters in one call: a root does nothing else for a millisecond or two
	perCallTime = 20 * time.Millisecond // additional time of a sync for each call, on a busy root
	minTimeout  = 100 * time.Millisecond
	staleAfter  = 10 // syncs after which a lost batch is replaced by the state
)

// aggregator is what this process knows about one root. One goroutine syncs with it.
type aggregator struct {
	server server
	group  *group
	index  int // in the group
	list   int // index in stripes' dirty

	number float64 // of the last call
	known  bool    // the root has this process's number
	batch  *batch  // the batch without a reply, or nil
	spare  []*counter

	up atomic.Bool
}

// batch contains the calls of one sync. Additions are sent again, the same bytes, until they
// are answered or too old. A state is built each time.
type batch struct {
	mode  mode
	calls []call
	tries int
}

// call is one call of the script.
type call struct {
	keys    [][]byte
	header  []byte
	entries []byte
	about   []entry
}

// entry is one counter in a call.
type entry struct {
	s      *stripe
	c      *counter
	view   *view   // of the root: identifies the count
	part   int64   // units of this process, including this call
	window float64 // at the time of the call
}

func (b *Backend) syncUntilClosed(a *aggregator) {
	// Processes that start together must not sync together.
	timer := time.NewTimer(rand.N(b.opts.Sync))
	defer timer.Stop()
	for {
		select {
		case <-b.closed.Done():
			ctx, cancel := context.WithTimeout(context.Background(), max(2*b.opts.Sync, minTimeout))
			if a.batch != nil { // it is sent again, without the latest units
				b.syncOnce(ctx, a)
			}
			b.syncOnce(ctx, a)
			cancel()
			return
		case <-timer.C:
		}
		began := time.Now()
		b.syncOnce(b.closed, a)
		timer.Reset(max(b.opts.Sync-time.Since(began), b.opts.Sync/10))
	}
}

// syncOnce sends a batch to the root of a, and processes the replies.
func (b *Backend) syncOnce(ctx context.Context, a *aggregator) {
	if !b.prepare(ctx, a) {
		return
	}
	replies, err := b.call(ctx, a, a.batch.calls)
	b.conclude(a, replies, err)
}

// call makes calls to the root of a.
func (b *Backend) call(ctx context.Context, a *aggregator, calls []call) ([][]byte, error) {
	start := time.Now()
	replies, err := a.server.call(ctx, calls)
	b.opts.Observer.Sent(observe.Sent{Backend: "synced", Shard: a.server.name(), Decisions: len(calls), Start: start, Duration: time.Since(start), Err: err})
	if b.closed.Err() == nil { // a call that Close ends says nothing
		b.opts.Observer.Checked(observe.Checked{Backend: "synced", Shard: a.server.name(), Server: "root", Open: err != nil, Err: err})
	}
	return replies, err
}

// prepare makes the next batch for the root of a, unless there is one to send again. It reports
// whether there is a batch.
func (b *Backend) prepare(ctx context.Context, a *aggregator) bool {
	now := b.opts.Clock.Now().UnixMilli()
	if a.batch != nil && (a.batch.mode == state || a.batch.tries >= staleAfter) {
		a.batch, a.known = nil, false
	}
	if a.batch == nil {
		switch {
		case a.known, a.number == 0: // at first, this process knows only its own additions
			a.batch = b.additions(a, now)
		case !a.up.Load(): // first find out whether it answers
			if _, err := b.call(ctx, a, newBatchWriter(b, a, add, now).finish().calls); err != nil {
				b.stats.failed.Add(1)
				return false // the state would be outdated by the time the root answers
			}
			fallthrough
		default:
			a.batch = b.state(a, now)
		}
	}
	a.batch.tries++
	return true
}

// conclude processes the root's replies to a's batch, or the error.
func (b *Backend) conclude(a *aggregator, replies [][]byte, err error) {
	if err != nil {
		a.up.Store(false)
		b.stats.failed.Add(1)
		return
	}
	a.up.Store(true)
	b.stats.syncs.Add(1)
	done := a.batch
	a.batch = nil
	now := b.opts.Clock.Now().UnixMilli()
	for i, reply := range replies {
		if !b.learn(a, &done.calls[i], reply, now) {
			a.known = false // it lost this process's units, or is not a root: it gets the state
			return
		}
	}
	a.known = true
}

// additions returns the batch that adds the units that the root of a lacks to the counters in
// its lists.
func (b *Backend) additions(a *aggregator, now int64) *batch {
	w := newBatchWriter(b, a, add, now)
	for i := range b.stripes {
		s := &b.stripes[i]
		all := s.takeDirty(a.list, a.spare)
		for at := 0; at < len(all); at += keyed.AtOnce {
			s.mu.Lock()
			for _, c := range all[at:min(at+keyed.AtOnce, len(all))] {
				if w.write(s, c); c.watched > now {
					s.dirty[a.list] = append(s.dirty[a.list], c)
				} else if c.dirty &^= 1 << a.index; c.dirty == 0 {
					c.unwatch()
				}
			}
			s.mu.Unlock()
		}
		clear(all)
		a.spare = all
	}
	return w.finish()
}

// state returns the batch that sends the root of a all totals that this process knows of
// counters in use. It includes drained counters with pending units, so that these don't go with
// later units.
func (b *Backend) state(a *aggregator, now int64) *batch {
	w := newBatchWriter(b, a, state, now)
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		s.forgetRemoved(a.list)
		s.mu.Unlock()
		for end := math.MaxInt; end > 0; {
			s.mu.Lock()
			end = s.Sweep(end, func(c *counter) bool {
				if c.group == a.group && (c.fill(now) > 0 || c.hasPending(a.index)) {
					w.write(s, c)
				}
				return false
			})
			s.mu.Unlock()
		}
	}
	return w.finish()
}

// mode is the mode of a call: see sync.lua.
type mode byte

const (
	add   mode = 1
	state mode = 2
)

// batchWriter makes a batch.
type batchWriter struct {
	b     *Backend
	a     *aggregator
	mode  mode
	now   int64
	batch *batch
	call  *call
	spans map[span]uint16 // of the call: their indexes in its header
}

func newBatchWriter(b *Backend, a *aggregator, m mode, now int64) *batchWriter {
	return &batchWriter{b: b, a: a, mode: m, now: now, batch: &batch{mode: m}, spans: make(map[span]uint16)}
}

// write adds the counts of c, whose stripe is locked.
func (w *batchWriter) write(s *stripe, c *counter) {
	c.forgetFormer(w.now)
	for k := range c.counts {
		count, l := &c.counts[k], &c.limits[k]
		count.roll(l, w.now)
		if w.call == nil || len(w.call.about) == w.b.perCall {
			w.begin()
		}
		units, x, said := float64(count.pending(w.a.index)), count.least(l), count.said(l, w.a.index, w.now)
		switch {
		case l.kind == window && w.mode == state:
			units, x = count.known(l, w.now), count.window
		case l.kind == window:
			x = count.window
		case w.mode == state:
			units, x = 0, count.known(l, w.now)
		}
		w.call.keys = append(w.call.keys, w.b.key(c, l))
		w.call.entries = binary.BigEndian.AppendUint16(w.call.entries, w.span(l.span))
		w.call.entries = appendDouble(appendDouble(appendDouble(w.call.entries, units), x), said)
		w.call.about = append(w.call.about, entry{s, c, &count.views[w.a.index], count.part, count.window})
	}
}

// span returns the index of s in the header of the call, and adds s if necessary.
func (w *batchWriter) span(s span) uint16 {
	i, ok := w.spans[s]
	if !ok {
		i = uint16(len(w.spans))
		w.spans[s] = i
		w.call.header = appendDouble(append(w.call.header, byte(s.kind)), s.ms)
	}
	return i
}

// begin begins a call.
func (w *batchWriter) begin() {
	w.a.number++
	clear(w.spans)
	header := appendDouble(append([]byte(nil), byte(w.mode)), w.a.number)
	w.batch.calls = append(w.batch.calls, call{header: appendDouble(header, float64(w.now))})
	w.call = &w.batch.calls[len(w.batch.calls)-1]
}

// finish returns the batch. It has at least one call, which makes the process known.
func (w *batchWriter) finish() *batch {
	if w.call == nil {
		w.begin()
	}
	return w.batch
}

func appendDouble(b []byte, f float64) []byte {
	return binary.BigEndian.AppendUint64(b, math.Float64bits(f))
}

// learn processes the reply to c. It reports whether the reply is from a root that knew this
// process.
func (b *Backend) learn(a *aggregator, c *call, reply []byte, now int64) bool {
	if len(reply) != 1+16*len(c.about) || reply[0] != 'o' {
		return false
	}
	totals := reply[1:]
	for i := 0; i < len(c.about); {
		s, begin := c.about[i].s, i
		s.mu.Lock()
		for ; i < len(c.about) && c.about[i].s == s && i-begin < keyed.AtOnce; i++ {
			b.learnTotal(a, &c.about[i], totals[16*i:], now)
		}
		s.mu.Unlock()
	}
	return true
}

// learnTotal processes the root's total of e's count. Its caller holds the stripe's lock.
func (b *Backend) learnTotal(a *aggregator, e *entry, total []byte, now int64) {
	x := math.Float64frombits(binary.BigEndian.Uint64(total))
	y := math.Float64frombits(binary.BigEndian.Uint64(total[8:]))
	e.c.forgetFormer(now)
	k := slices.IndexFunc(e.c.counts, func(c count) bool { return &c.views[a.index] == e.view })
	if k < 0 || !sane(x) || !sane(y) { // or its policy no longer has the limit
		return
	}
	count, l := &e.c.counts[k], &e.c.limits[k]
	count.roll(l, now)
	if count.learn(l, a.index, e.part, e.window, x, y, now, b.opts.Sync.Milliseconds()/2) {
		e.c.watched = max(e.c.watched, min(now+3*b.opts.Sync.Milliseconds(), e.c.lastAsk+watchMost))
	}
}

// sane reports whether f can be in a root's reply.
func sane(f float64) bool { return f > -1<<60 && f < 1<<60 } // and is a number

// Stats contains counts since New.
type Stats struct {
	Keys    int             `json:"keys" metric:"gauge"` // counted in memory
	Syncs   int64           `json:"syncs"`               // that a root answered
	Failed  int64           `json:"failed"`              // that a root did not answer
	Answers map[string]bool `json:"answers"`             // by root: whether it answered its last sync
}

type counters struct{ syncs, failed atomic.Int64 }

// Stats returns the counts so far.
func (b *Backend) Stats() Stats {
	st := Stats{Syncs: b.stats.syncs.Load(), Failed: b.stats.failed.Load(), Answers: make(map[string]bool)}
	for i := range b.stripes {
		s := &b.stripes[i]
		s.mu.Lock()
		st.Keys += len(s.Values())
		s.mu.Unlock()
	}
	for _, a := range b.aggregators {
		st.Answers[a.server.name()] = a.up.Load()
	}
	return st
}
