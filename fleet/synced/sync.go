package synced

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/observe"
)

// Bounds of a sync.
const (
	perCall     = 1000 // counters in one call: a root does nothing else for a millisecond or two
	maxLimits   = 1 << 16
	perCallTime = 20 * time.Millisecond // that a call may add to a sync, on a root that is busy
	minTimeout  = 100 * time.Millisecond
	staleAfter  = 10 // syncs after which a lost batch is replaced by the state
)

// root is a root, as its goroutine knows it.
type root struct {
	server server
	index  int

	number float64 // of the last call
	known  bool    // the root has this process's number
	batch  *batch  // that was sent and has no reply
	spare  []*counter

	up atomic.Bool
}

// batch is the counters of one sync. Additions are sent again, the same bytes, until they
// are answered or too old. A state is made again.
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
	quotas  []byte
	about   []entry
}

// entry is one counter in a call.
type entry struct {
	s      *shard
	c      *counter
	limit  int
	part   int64   // of this process, with this call
	window float64 // at the time of the call
}

func (b *Backend) syncUntilClosed(r *root) {
	// Processes that start together must not sync together.
	timer := time.NewTimer(rand.N(b.sync))
	defer timer.Stop()
	for {
		select {
		case <-b.closed.Done():
			ctx, cancel := context.WithTimeout(context.Background(), max(2*b.sync, minTimeout))
			if r.batch != nil { // it is sent again, and has not all
				b.syncOnce(ctx, r)
			}
			b.syncOnce(ctx, r)
			cancel()
			return
		case <-timer.C:
		}
		began := time.Now()
		b.syncOnce(b.closed, r)
		timer.Reset(max(b.sync-time.Since(began), b.sync/10))
	}
}

// syncOnce sends what root r does not know, and takes in what it says.
func (b *Backend) syncOnce(ctx context.Context, r *root) {
	if !b.prepare(ctx, r) {
		return
	}
	start := time.Now()
	replies, err := r.server.call(ctx, r.batch.calls)
	b.observe(r, start, len(r.batch.calls), err)
	b.conclude(r, replies, err)
}

// prepare makes the batch that root r is to have next, if it has none. It reports whether
// there is one.
func (b *Backend) prepare(ctx context.Context, r *root) bool {
	now := b.clock.Now().UnixMilli()
	if r.batch != nil && (r.batch.mode == state || r.batch.tries >= staleAfter) {
		r.batch, r.known = nil, false
	}
	if r.batch == nil {
		switch {
		case r.known:
			r.batch = b.additions(r, add, now)
		case r.number == 0: // what it knows is what it added
			r.batch = b.additions(r, first, now)
		case !r.up.Load() && !b.answers(ctx, r, now):
			return false // the state would be old when r is back
		default:
			r.batch = b.state(r, now)
		}
	}
	r.batch.tries++
	return true
}

// conclude takes in what root r replied to its batch.
func (b *Backend) conclude(r *root, replies [][]byte, err error) {
	if err != nil {
		r.up.Store(false)
		b.stats.failed.Add(1)
		return
	}
	r.up.Store(true)
	b.stats.syncs.Add(1)
	done := r.batch
	r.batch = nil
	now := b.clock.Now().UnixMilli()
	for i, reply := range replies {
		known, ok := b.learn(r, &done.calls[i], reply, now)
		if !ok || !known {
			r.known = false // it lost what this process sent, or is no root: it gets the state
			return
		}
	}
	r.known = true
}

// answers asks a root that did not answer whether it does again.
func (b *Backend) answers(ctx context.Context, r *root, now int64) bool {
	start, probe := time.Now(), newBatchWriter(b, r, add, now).finish()
	_, err := r.server.call(ctx, probe.calls)
	b.observe(r, start, len(probe.calls), err)
	if err != nil {
		b.stats.failed.Add(1)
	}
	return err == nil
}

func (b *Backend) observe(r *root, start time.Time, calls int, err error) {
	if b.observer != nil {
		b.observer.Sent(observe.Sent{Backend: "synced", Shard: r.server.name(), Decisions: calls, Start: start, Duration: time.Since(start), Err: err})
	}
}

// additions returns the batch that adds what root r lacks of the counters that are
// watched.
func (b *Backend) additions(r *root, m mode, now int64) *batch {
	w := newBatchWriter(b, r, m, now)
	for i := range b.shards {
		s := &b.shards[i]
		all := s.takeDirty(r.index, r.spare)
		for at := 0; at < len(all); at += atOnce {
			s.mu.Lock()
			for _, c := range all[at:min(at+atOnce, len(all))] {
				if w.write(s, c); c.watched > now {
					s.dirty[r.index] = append(s.dirty[r.index], c)
				} else if c.dirty &^= 1 << r.index; c.dirty == 0 {
					c.unwatch()
				}
			}
			s.mu.Unlock()
		}
		clear(all)
		r.spare = all
	}
	return w.finish()
}

// state returns the batch that tells root r all that this process knows of counters in
// use. Of others, what r was not sent has drained: it must not come with the next units.
func (b *Backend) state(r *root, now int64) *batch {
	w := newBatchWriter(b, r, state, now)
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		s.forgetRemoved(r.index)
		end := len(s.all)
		s.mu.Unlock()
		for end > 0 { // from the end: the last takes the place of one that is removed meanwhile
			s.mu.Lock()
			end = min(end, len(s.all))
			begin := max(end-atOnce, 0)
			for _, c := range s.all[begin:end] {
				if c.fill(now) > 0 || c.hasPending(r.index) {
					w.write(s, c)
				}
			}
			s.mu.Unlock()
			end = begin
		}
	}
	return w.finish()
}

// mode is what a call does: see sync.lua.
type mode byte

const (
	add   mode = 1
	state mode = 2
	first mode = 3
)

// batchWriter makes a batch.
type batchWriter struct {
	b        *Backend
	r        *root
	mode     mode
	now      int64
	policies *policies
	batch    *batch
	call     *call
}

func newBatchWriter(b *Backend, r *root, m mode, now int64) *batchWriter {
	return &batchWriter{b: b, r: r, mode: m, now: now, policies: b.policies.Load(), batch: &batch{mode: m}}
}

// write adds the counts of c, whose shard is locked.
func (w *batchWriter) write(s *shard, c *counter) {
	if in := w.policies.byName[c.policy.Name]; in.Policy != c.policy {
		c.use(in, s.roots)
	}
	for k := range c.counts {
		count, l := &c.counts[k], &c.limits[k]
		count.roll(l, w.now)
		if w.call == nil || len(w.call.about) == w.b.perCall {
			w.begin()
		}
		units, x, said := float64(count.pending(w.r.index)), count.least(l), count.said(l, w.r.index, w.now)
		switch {
		case l.kind == window && w.mode == state:
			units, x = count.known(l, w.now), count.window
		case l.kind == window:
			x = count.window
		case w.mode == state:
			units, x = 0, count.known(l, w.now)
		}
		w.call.keys = append(w.call.keys, w.b.key(c, k))
		w.call.entries = binary.BigEndian.AppendUint16(w.call.entries, uint16(l.index))
		w.call.entries = appendDouble(appendDouble(appendDouble(w.call.entries, units), x), said)
		w.call.about = append(w.call.about, entry{s, c, k, count.part, count.window})
	}
}

// begin begins a call.
func (w *batchWriter) begin() {
	w.r.number++
	how := w.mode
	if how == first && w.r.number > 1 {
		how = add // the first call of the batch begins the process, and the others follow it
	}
	header := append([]byte(nil), byte(how))
	header = appendDouble(header, w.r.number)
	header = appendDouble(header, float64(w.now))
	header = appendDouble(header, float64(w.policies.epoch))
	for _, s := range w.policies.spans {
		header = appendDouble(append(header, byte(s.kind)), s.ms)
	}
	c := call{header: header}
	if len(w.batch.calls) == 0 {
		c.quotas = w.policies.quotas
	}
	w.batch.calls = append(w.batch.calls, c)
	w.call = &w.batch.calls[len(w.batch.calls)-1]
}

// finish returns the batch. It has one call at least, which says that the process is
// there and brings the quotas.
func (w *batchWriter) finish() *batch {
	if w.call == nil {
		w.begin()
	}
	return w.batch
}

func appendDouble(b []byte, f float64) []byte {
	return binary.BigEndian.AppendUint64(b, math.Float64bits(f))
}

// learn takes in the reply to c. It reports whether the root knew this process, and
// whether the reply is one.
func (b *Backend) learn(r *root, c *call, reply []byte, now int64) (known, ok bool) {
	if len(reply) < 5 || reply[0] != 'o' && reply[0] != 'u' {
		return false, false
	}
	quotas := int(binary.BigEndian.Uint32(reply[1:]))
	rest := reply[5:]
	if quotas > len(rest) {
		return false, false
	}
	if quotas > 0 {
		b.learnQuotas(rest[:quotas])
	}
	if rest = rest[quotas:]; reply[0] == 'u' {
		return false, true
	}
	if len(rest) != 16*len(c.about) {
		return false, false
	}
	var locked *shard
	for i := range c.about {
		e := &c.about[i]
		if e.s != locked || i%atOnce == 0 {
			if locked != nil {
				locked.mu.Unlock()
			}
			locked = e.s
			locked.mu.Lock()
		}
		if e.limit >= len(e.c.counts) {
			continue // its policy has changed
		}
		x := math.Float64frombits(binary.BigEndian.Uint64(rest[16*i:]))
		y := math.Float64frombits(binary.BigEndian.Uint64(rest[16*i+8:]))
		if l := &e.c.limits[e.limit]; sane(x) && sane(y) {
			count := &e.c.counts[e.limit]
			count.roll(l, now)
			if count.learn(l, r.index, e.part, e.window, x, y, now, b.sync.Milliseconds()/2) {
				e.c.watched = max(e.c.watched, min(now+3*b.sync.Milliseconds(), e.c.lastAsk+watchMost))
			}
		}
	}
	if locked != nil {
		locked.mu.Unlock()
	}
	return true, true
}

// sane reports whether a root can have said f.
func sane(f float64) bool { return f > -1<<60 && f < 1<<60 } // and is a number

// Stats has counts since New.
type Stats struct {
	Keys    int             `json:"keys" metric:"gauge"` // counted in memory
	Syncs   int64           `json:"syncs"`               // that a root answered
	Failed  int64           `json:"failed"`              // that none did
	Answers map[string]bool `json:"answers"`             // by root: whether it answered its last sync
}

type counters struct{ syncs, failed atomic.Int64 }

// Stats returns the counts so far.
func (b *Backend) Stats() Stats {
	st := Stats{Syncs: b.stats.syncs.Load(), Failed: b.stats.failed.Load(), Answers: make(map[string]bool)}
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		st.Keys += len(s.all)
		s.mu.Unlock()
	}
	for _, r := range b.roots {
		st.Answers[r.server.name()] = r.up.Load()
	}
	return st
}
