package memorybackend

import (
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/quota"
)

// step is a decision in progress. It holds the locks of the stripes of all its counts, so
// that a decision about several keys, whatever their partitions, is one atomic step.
type step struct {
	moment  moment
	counts  []count // one for each charge
	stripes []*stripe
	states  []*algorithm.State
}

// count is the count of a charge during a step.
type count struct {
	policy *quota.Policy
	takes  bool // a take changes it
	stripe *stripe
	name   name
	hash   uint32
	place  uint32 // of its entry, or nowhere

	// stored is the count to decide about, or nil: its entry's large count, packed, a count
	// that arrived, or the outcome of a decision about one of these.
	stored *handoff.Stored
	large  *large
	packed handoff.Stored // unpacked; its memory is reused by each step

	arrived bool // from another backend
	pooled  bool // new keys are counted here together
	isNew   bool // has no entry, and needs one if the decision is made
}

// moment is when a decision is made.
type moment struct {
	now    int64 // ms since the epoch, the decision's
	read   bool
	cached int64
}

// clock returns clockBase plus the ms that this process has run, by a clock that can't be set.
// It reads the clock once, because reading it takes a good part of a take's time.
func (m *moment) clock() int64 {
	if !m.read {
		m.read, m.cached = true, clockBase+time.Since(start).Milliseconds()
	}
	return m.cached
}

var start = time.Now()

// clockBase keeps the clock positive where time began before start, as in a bubble
// of testing/synctest: claims are stored with their expiry, in six unsigned bytes.
const clockBase = 1 << 46

// margin is how many ms, by the process' own clock, a count stays beyond its window while the
// decision's clock says that it is live: clocks step back.
const margin = int64(algorithm.Margin / time.Millisecond)

var steps = sync.Pool{New: func() any { return new(step) }}

// begin locks the stripes of the charges' counts, and finds these. The caller ends the step.
func (b *Backend) begin(now int64, charges []quota.Charge) *step {
	st := steps.Get().(*step)
	st.moment = moment{now: now}
	st.counts = slices.Grow(st.counts, len(charges))[:len(charges)]
	var numbers [quota.MaxCharges]uint64
	for i := range charges {
		c := &st.counts[i]
		c.policy, c.name = charges[i].Policy, name{}
		hash := c.name.set(b.seed, &charges[i])
		c.hash = uint32(hash >> 32)
		c.takes = charges[i].Cost > 0 && charges[i].Mode != quota.Check
		c.arrived, c.pooled, c.isNew = false, false, false
		numbers[i] = b.numberOf(hash)
		c.stripe = &b.stripes[numbers[i]]
	}
	indices := numbers[:len(charges)]
	slices.Sort(indices) // so that no two steps deadlock
	for _, n := range slices.Compact(indices) {
		s := &b.stripes[n]
		s.mu.Lock()
		st.stripes = append(st.stripes, s)
	}
	for i := range st.counts {
		c := &st.counts[i]
		c.stripe.counts = append(c.stripe.counts, c)
		c.stripe.find(c, &st.moment)
	}
	return st
}

// end unlocks the stripes. The step's results remain the caller's.
func (st *step) end() {
	for _, s := range st.stripes {
		clear(s.counts)
		s.counts = s.counts[:0]
		s.mu.Unlock()
	}
	for i := range st.counts {
		c := &st.counts[i]
		c.policy, c.stored, c.large, c.stripe = nil, nil, nil, nil
	}
	clear(st.states)
	clear(st.stripes)
	st.stripes = st.stripes[:0]
	steps.Put(st)
}

// admit finds room for the new counts. If there is too little in a stripe, it makes that
// stripe's new counts pooled, and reports true.
func (st *step) admit() (pooled bool) {
	for _, s := range st.stripes {
		pooled = s.admit(&st.moment) || pooled
	}
	return pooled
}

// make makes the room that admit found.
func (st *step) make() {
	for _, s := range st.stripes {
		s.make(&st.moment)
	}
}

// trim brings the stripes back within their bounds.
func (st *step) trim() {
	for _, s := range st.stripes {
		s.trim(&st.moment)
	}
}

// statesOf returns the states of the step's counts, an empty one for a count that is not stored.
func (st *step) statesOf() []*algorithm.State {
	st.states = st.states[:0]
	for i := range st.counts {
		c := &st.counts[i]
		if c.stored == nil {
			_ = c.packed.Load(nil) // and keep its memory
			c.stored = &c.packed
		}
		st.states = append(st.states, &c.stored.State)
	}
	return st.states
}
