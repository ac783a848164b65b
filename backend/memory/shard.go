package memorybackend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/throttler"
)

// shard is a part of the keys under one lock. All keys of a partition are in
// one, so a take of several charges needs one lock.
type shard struct {
	mu    sync.Mutex
	bound int
	keys  map[string]*entry
	name  []byte   // scratch for the name of a key
	_     [64]byte // keeps the next lock off this one's cache line
}

// entry is what one key keeps.
type entry struct {
	algorithm.Stored
	arrived bool // from another backend, and is not in the map yet

	// usedPart is the largest used / capacity of the limits when last charged.
	usedPart float64

	// When the state's reset-at last moved forward: how many ms it then had
	// to go, and what the monotonic clock showed.
	lifetime int64
	movedAt  int64
}

// life returns for how many ms e counts. Reading the clock is a good part of a
// take, and needed only for a count that is being moved.
func (e *entry) life(now int64) int64 {
	if e.Claim == nil {
		return e.Life(now, 0)
	}
	return e.Life(now, monotonic())
}

// locate finds the charges' entries, those that arrive among them. It fails if
// one is elsewhere.
func (s *shard) locate(charges []throttler.Charge, home *throttler.Home, now int64, found *[throttler.MaxCharges]*entry) error {
	var stored [throttler.MaxCharges]*algorithm.Stored
	moves := home != nil
	for i := range charges {
		if e := s.find(&charges[i], now); e != nil {
			found[i], stored[i] = e, &e.Stored
			moves = moves || e.Claim != nil
		}
	}
	if !moves {
		return nil
	}
	counts, err := algorithm.FindAll(stored[:len(charges)], home, now, monotonic())
	if elsewhere := (*throttler.ElsewhereError)(nil); err != nil && !errors.As(err, &elsewhere) {
		err = fmt.Errorf("memorybackend: %w: %w", throttler.ErrUnavailable, err)
	}
	for i, count := range counts {
		switch {
		case count.Arrived:
			found[i] = &entry{Stored: *count.Stored, arrived: true}
		case count.Stored != stored[i]:
			found[i] = nil // it left so long ago that another begins
		}
	}
	return err
}

// keepArrivals puts what arrived into the map.
func (s *shard) keepArrivals(charges []throttler.Charge, found *[throttler.MaxCharges]*entry, now int64) {
	for i := range charges {
		if e := found[i]; e != nil && e.arrived {
			e.arrived = false
			e.lifetime, e.movedAt = e.life(now), monotonic()
			s.keys[string(s.nameOf(&charges[i]))] = e
		}
	}
}

// release carries out r for its charge i.
func (s *shard) release(r *throttler.Release, i int) throttler.Released {
	now := r.Now.UnixMilli()
	e := s.find(&r.Charges[i], now)
	var stored *algorithm.Stored
	if e != nil {
		stored = &e.Stored
	}
	released, left := algorithm.Release(r, stored, monotonic())
	if left != nil {
		e = &entry{Stored: *left, movedAt: monotonic()}
		e.lifetime = e.life(now)
		s.keys[string(s.nameOf(&r.Charges[i]))] = e
	}
	return released
}

// look fills d with the limits as they stand.
func (s *shard) look(d *throttler.Decision, now int64, found *[throttler.MaxCharges]*entry) bool {
	fits := true
	for i := range d.Charges {
		c := &d.Charges[i]
		state := new(algorithm.State)
		if e := found[i]; e != nil {
			state = &e.State
		}
		var buf [throttler.MaxLimits]algorithm.Result
		results := buf[:len(c.Policy.Limits)]
		fits = state.Look(c.Policy.Limits, c.Cost, now, results) && fits
		d.Limits = algorithm.Statuses(d.Limits, c, results)
	}
	return fits
}

// charge charges d.Charges[i] and appends to d.Limits. e is nil if the key is new.
func (s *shard) charge(d *throttler.Decision, i int, e *entry, now int64) {
	c := &d.Charges[i]
	if e == nil {
		e = new(entry)
		if c.Cost > 0 {
			s.keys[string(s.nameOf(c))] = e
		}
	}
	var buf [throttler.MaxLimits]algorithm.Result
	results := buf[:len(c.Policy.Limits)]
	before := e.State.ResetAt(now)
	e.State.Charge(c.Policy.Limits, c.Cost, now, results)
	e.written(c, results, before, now)
	d.Limits = algorithm.Statuses(d.Limits, c, results)
}

// settle settles d.Charges[i], whose limits were charged as charged says. e is
// nil if there is no such key.
func (s *shard) settle(d *throttler.Decision, i int, e *entry, charged []throttler.Status, cost, now int64) {
	c := &d.Charges[i]
	if e == nil {
		// Lost or over. What was charged too little is charged all the same;
		// it makes no room for its key, so that it can not fail.
		e = new(entry)
		if cost > c.Cost {
			s.keys[string(s.nameOf(c))] = e
		}
	}
	var buf [throttler.MaxLimits]algorithm.Result
	results := buf[:len(c.Policy.Limits)]
	var marks [throttler.MaxLimits]throttler.Mark
	for j := range charged {
		marks[j] = charged[j].Mark
	}
	before := e.State.ResetAt(now)
	e.State.Settle(c.Policy.Limits, marks[:len(charged)], c.Cost, cost, now, results)
	e.written(c, results, before, now)
	d.Limits = algorithm.Statuses(d.Limits, c, results)
}

// find returns the entry of c, or nil. It drops one that only a clock that
// stepped back keeps alive: by the monotonic clock its time was long over.
func (s *shard) find(c *throttler.Charge, now int64) *entry {
	e := s.keys[string(s.nameOf(c))]
	if e == nil {
		return nil
	}
	if e.life(now) > e.lifetime && monotonic()-e.movedAt > e.lifetime+margin {
		delete(s.keys, string(s.nameOf(c)))
		return nil
	}
	return e
}

// nameOf returns what names c's count: its parts with their lengths, so that
// no two triples share a name. It is valid until the next call.
func (s *shard) nameOf(c *throttler.Charge) []byte {
	name := binary.AppendUvarint(s.name[:0], uint64(len(c.Policy.Name)))
	name = append(name, c.Policy.Name...)
	if c.Key == c.Partition { // the common case, half as long
		name = append(name, 0)
	} else {
		name = append(name, 1)
		name = binary.AppendUvarint(name, uint64(len(c.Partition)))
		name = append(name, c.Partition...)
	}
	s.name = append(name, c.Key...)
	return s.name
}

// written notes what sweeping and the clock's watch need to know.
func (e *entry) written(c *throttler.Charge, results []algorithm.Result, before, now int64) {
	e.usedPart = 0
	for i := range results {
		e.usedPart = max(e.usedPart, float64(results[i].Used)/float64(c.Policy.Limits[i].Capacity()))
	}
	if after := e.State.ResetAt(now); after > before {
		e.movedAt = monotonic()
		e.lifetime = e.life(now)
	}
}

// margin is how many ms a state stays, by a clock that can not be set, after
// its window was opened or has passed: wall clocks step, also back.
const margin = 5000

var start = time.Now()

// monotonic returns the ms that this process has run, by a clock that nobody sets.
func monotonic() int64 { return time.Since(start).Milliseconds() }

const (
	sweepNext  = 4 // keys looked at in passing for each new one: more than one, so that the dead lose
	sweepBound = 16
)

// makeRoom sweeps in passing and sees that the new keys among charges, those
// that have no entry and will be charged and those that arrive, fit under the
// bound.
func (s *shard) makeRoom(charges []throttler.Charge, found *[throttler.MaxCharges]*entry, charged bool, now int64) error {
	missing := 0
	for i := range charges {
		if found[i] == nil && charged && charges[i].Cost > 0 || found[i] != nil && found[i].arrived {
			missing++
		}
	}
	if missing == 0 {
		return nil
	}
	s.sweep(sweepNext, margin, found, now)
	for len(s.keys)+missing > s.bound {
		least, ok := s.sweep(sweepBound, 0, found, now)
		if len(s.keys)+missing <= s.bound {
			break
		}
		if !ok {
			return fmt.Errorf("memorybackend: %d keys are kept, the most that MaxKeys allows to this part of them, and those looked at have used up their quotas: %w", len(s.keys), throttler.ErrUnavailable)
		}
		delete(s.keys, least)
	}
	return nil
}

// sweep looks at n keys, at random places of the map, and removes those whose
// windows are over and were opened at least age ms ago. Of the others it names
// the one that has used the least, if it has not used up a quota and is not
// one of keep.
func (s *shard) sweep(n int, age int64, keep *[throttler.MaxCharges]*entry, now int64) (least string, ok bool) {
	usedPart, youngest := 1.0, monotonic()-age
	for name, e := range s.keys {
		if n--; n < 0 {
			break
		}
		over := e.life(now) <= 0
		switch {
		case kept(keep, e):
		case over && e.movedAt <= youngest:
			delete(s.keys, name)
		case over:
			least, usedPart, ok = name, 0, true
		case e.usedPart < usedPart:
			least, usedPart, ok = name, e.usedPart, true
		}
	}
	return least, ok
}

func kept(keep *[throttler.MaxCharges]*entry, e *entry) bool {
	for _, k := range keep {
		if k == e {
			return true
		}
	}
	return false
}
