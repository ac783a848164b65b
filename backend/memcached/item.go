package memcachedbackend

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
)

// item is what one partition keeps. Its stored form is
//
//	1  the form's version, 1
//	8  a number drawn for this writing: by it, whoever lost the server's answer
//	   finds out whether the item is as they wrote it
//	for each count, with lengths as uvarints:
//	   length, name; 6 expiry; length, claim and state as package algorithm
//	   stores them
//
// A count's expiry is what a key's is in Redis: it is set when the reset-at
// moves forward, and only then, and only takes out what is dead. It goes by the
// hosts' clocks, for a decision's now may step back, or stand still.
type item struct {
	draw   uint64
	now    int64 // Unix ms, of this host
	margin int64 // ms
	counts []count
}

type count struct {
	name   string
	expiry int64 // Unix ms
	stored handoff.Stored
}

const itemVersion = 1

var errForeign = errors.New("the item is not in weir's form: something else wrote it")

// newItem returns the item that is stored as value, without what has expired;
// an empty one if value is nil.
func newItem(value []byte, margin int64) (*item, error) {
	it := &item{now: time.Now().UnixMilli(), margin: margin}
	if value == nil {
		return it, nil
	}
	if len(value) < 9 || value[0] != itemVersion {
		return nil, errForeign
	}
	it.draw = binary.BigEndian.Uint64(value[1:])
	for rest := value[9:]; len(rest) > 0; {
		name, rest1, ok1 := cutField(rest)
		if !ok1 || len(rest1) < 6 {
			return nil, errForeign
		}
		expiry := int64(binary.BigEndian.Uint64(append([]byte{0, 0}, rest1[:6]...)))
		stored, rest2, ok2 := cutField(rest1[6:])
		if !ok2 {
			return nil, errForeign
		}
		rest = rest2
		if expiry <= it.now {
			continue
		}
		s, err := handoff.Parse(stored)
		if err != nil {
			return nil, err
		}
		it.counts = append(it.counts, count{string(name), expiry, s})
	}
	return it, nil
}

func cutField(b []byte) (field, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, false
	}
	return b[size : size+int(n)], b[size+int(n):], true
}

// encode returns the stored form, with a new draw, and for how many ms it is
// needed.
func (it *item) encode() (value []byte, life int64) {
	it.draw = rand.Uint64()
	value = binary.BigEndian.AppendUint64(append(make([]byte, 0, 64), itemVersion), it.draw)
	var state []byte
	for i := range it.counts {
		c := &it.counts[i]
		life = max(life, c.expiry-it.now)
		state = c.stored.Append(state[:0])
		value = append(binary.AppendUvarint(value, uint64(len(c.name))), c.name...)
		value = algorithm.AppendUint(value, 6, c.expiry)
		value = append(binary.AppendUvarint(value, uint64(len(state))), state...)
	}
	return value, life
}

// found are the counts of a decision's charges, in their order.
type found struct {
	counts []handoff.Found
	states []*algorithm.State
	was    []before
}

// before is what a count was before the decision.
type before struct {
	life  int64 // ms
	found bool  // it is in the item
}

// find returns the counts of charges under p, nil if counts do not move.
func (it *item) find(charges []throttler.Charge, p *handoff.Placement, now int64) (found, error) {
	stored := it.stored(charges)
	counts, err := handoff.FindAll(stored, p, now, it.now)
	if err != nil {
		return found{}, err
	}
	f := found{counts, make([]*algorithm.State, len(charges)), make([]before, len(charges))}
	for i := range charges {
		f.states[i] = &counts[i].State
		f.was[i] = before{counts[i].Life(now, it.now), stored[i] != nil}
	}
	return f, nil
}

func (it *item) stored(charges []throttler.Charge) []*handoff.Stored {
	all := make([]*handoff.Stored, len(charges))
	for i := range charges {
		name := nameOf(&charges[i])
		for j := range it.counts {
			if it.counts[j].name == name {
				all[i] = &it.counts[j].stored
			}
		}
	}
	return all
}

// put makes the count of f at i, as the decision left it, the count of c.
func (it *item) put(c *throttler.Charge, f found, i int, now int64) {
	expiry := int64(0) // it stays
	if life := f.counts[i].Life(now, it.now); !f.was[i].found || f.counts[i].Arrived || life > f.was[i].life {
		expiry = it.now + life + it.margin
	}
	it.putStored(c, f.counts[i].Stored, expiry)
}

// putStored makes stored the count of c. An expiry of 0 is that which it has.
func (it *item) putStored(c *throttler.Charge, stored *handoff.Stored, expiry int64) {
	name := nameOf(c)
	for j := range it.counts {
		if it.counts[j].name == name {
			it.counts[j].stored = *stored
			if expiry != 0 {
				it.counts[j].expiry = expiry
			}
			return
		}
	}
	it.counts = append(it.counts, count{name, expiry, *stored})
}

func (it *item) take(r throttler.Request, p *handoff.Placement) (d throttler.Decision, changed bool, err error) {
	found, err := it.find(r.Charges(), p, r.Now)
	if err != nil {
		return d, false, err
	}
	d = algorithm.Take(r, found.states)
	for i := range r.Charges() {
		if c := &r.Charges()[i]; d.Allowed && c.Cost > 0 || found.counts[i].Arrived {
			it.put(c, found, i, r.Now)
			changed = true
		}
	}
	return d, changed, nil
}

func (it *item) peek(r throttler.Request, p *handoff.Placement) (throttler.Decision, error) {
	found, err := it.find(r.Charges(), p, r.Now)
	if err != nil {
		return throttler.Decision{}, err
	}
	return algorithm.Look(r, found.states), nil
}

func (it *item) settle(s throttler.Settlement, p *handoff.Placement) (d throttler.Decision, changed bool, err error) {
	charges := s.Charged.Charges()
	found, err := it.find(charges, p, s.Now)
	if err != nil {
		return d, false, err
	}
	d = algorithm.Settle(s, found.states)
	for i := range charges {
		c := &charges[i]
		if found.was[i].found || found.counts[i].Arrived || s.Costs[i] > c.Cost {
			it.put(c, found, i, s.Now)
			changed = true
		}
	}
	return d, changed, nil
}

func (it *item) release(r handoff.ReleaseRequest) (all []handoff.Released, changed bool) {
	all = make([]handoff.Released, len(r.Charges))
	for i, stored := range it.stored(r.Charges) {
		released, left := handoff.Release(&r, stored, it.now)
		all[i] = released
		if left != nil {
			it.putStored(&r.Charges[i], left, left.Claim.ExpiresAt+it.margin)
			changed = true
		}
	}
	return all, changed
}
