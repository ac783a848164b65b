package memcachedbackend

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/algorithm"
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
	stored algorithm.Stored
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
		s, err := algorithm.ParseStored(stored)
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

// found is a count that a decision is about.
type found struct {
	algorithm.Found
	before int64 // its life before the decision
	is     bool  // it is in the item
}

// find returns the counts that charges decide about.
func (it *item) find(charges []throttler.Charge, home *throttler.Home, now time.Time) ([]found, error) {
	stored := it.stored(charges)
	counts, err := algorithm.FindAll(stored, home, now.UnixMilli(), it.now)
	if err != nil {
		return nil, err
	}
	all := make([]found, len(charges))
	for i := range all {
		all[i] = found{counts[i], counts[i].Life(now.UnixMilli(), it.now), stored[i] != nil}
	}
	return all, nil
}

func (it *item) stored(charges []throttler.Charge) []*algorithm.Stored {
	all := make([]*algorithm.Stored, len(charges))
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

// put makes f, as the decision left it, the count of c.
func (it *item) put(c *throttler.Charge, f found, now time.Time) {
	expiry := int64(0) // it stays
	if life := f.Life(now.UnixMilli(), it.now); !f.is || f.Arrived || life > f.before {
		expiry = it.now + life + it.margin
	}
	it.putStored(c, f.Stored, expiry)
}

// putStored makes stored the count of c. An expiry of 0 is that which it has.
func (it *item) putStored(c *throttler.Charge, stored *algorithm.Stored, expiry int64) {
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

func (it *item) take(r throttler.Request) (d throttler.Decision, changed bool, err error) {
	found, err := it.find(r.Charges, r.Home, r.Now)
	if err != nil {
		return d, false, err
	}
	d = look(r, found)
	if d.Allowed {
		d.Limits = d.Limits[:0]
	}
	for i := range r.Charges {
		c := &r.Charges[i]
		if d.Allowed {
			results := make([]algorithm.Result, len(c.Policy.Limits))
			found[i].State.Charge(c.Policy.Limits, c.Cost, r.Now.UnixMilli(), results)
			d.Limits = algorithm.Statuses(d.Limits, c, results)
		}
		if d.Allowed && c.Cost > 0 || found[i].Arrived {
			it.put(c, found[i], r.Now)
			changed = true
		}
	}
	return d, changed, nil
}

func (it *item) peek(r throttler.Request) (throttler.Decision, error) {
	found, err := it.find(r.Charges, r.Home, r.Now)
	if err != nil {
		return throttler.Decision{}, err
	}
	return look(r, found), nil
}

func look(r throttler.Request, found []found) throttler.Decision {
	return algorithm.Look(r, func(i int) *algorithm.State { return &found[i].State })
}

func (it *item) settle(s throttler.Settlement) (d throttler.Decision, changed bool, err error) {
	charges := s.Charged.Charges
	found, err := it.find(charges, s.Home, s.Now)
	if err != nil {
		return d, false, err
	}
	d = throttler.Decision{Allowed: true, At: s.Now, Charges: charges}
	limits := s.Charged.Limits
	for i := range charges {
		c := &charges[i]
		n := len(c.Policy.Limits)
		var marks [throttler.MaxLimits]throttler.Mark
		for j := range n {
			marks[j] = limits[j].Mark
		}
		limits = limits[n:]
		results := make([]algorithm.Result, n)
		found[i].State.Settle(c.Policy.Limits, marks[:n], c.Cost, s.Costs[i], s.Now.UnixMilli(), results)
		d.Limits = algorithm.Statuses(d.Limits, c, results)
		if found[i].is || found[i].Arrived || s.Costs[i] > c.Cost {
			it.put(c, found[i], s.Now)
			changed = true
		}
	}
	return d, changed, nil
}

func (it *item) release(r throttler.Release) (all []throttler.Released, changed bool) {
	all = make([]throttler.Released, len(r.Charges))
	for i, stored := range it.stored(r.Charges) {
		released, left := algorithm.Release(&r, stored, it.now)
		all[i] = released
		if left != nil {
			it.putStored(&r.Charges[i], left, left.Claim.VoidAt+it.margin)
			changed = true
		}
	}
	return all, changed
}
