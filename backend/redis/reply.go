package redisbackend

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// The first byte of the reply to a decision, unless it is digits alone.
const (
	repliesRefused   = 0 // then the states, not charged
	repliesAllowed   = 1 // then the charged states
	repliesUndecided = 2
)

// digits is the length of a reply that is digits alone: one charge is allowed, and these were
// the digits of its state before.
const digits = 19

// errForeign reports that neither this nor an earlier version of weir wrote a key's value.
var errForeign = errors.New("the key holds something other than a count, or a count of a newer version")

// errReply reports a reply that no script gives.
var errReply = errors.New("the script's reply has an unknown form")

// readTake reads the reply to a take, r, as splitReply returns it. It fails if the script can't
// have given that reply.
func readTake(r driver.Request, reply []byte) (driver.Decision, error) {
	charges := r.Charges()
	if reply[0] <= repliesUndecided {
		return readTakes(r, reply)
	}
	w, err := algorithm.ReadDigits(reply)
	if err != nil {
		return driver.Decision{}, fmt.Errorf("%w: %w", errForeign, err)
	}
	limits := charges[0].Policy.Limits
	if len(limits) > 1 || !w.IsOf(&limits[0]) || w.ResetAt <= r.Now || w.Take(limits[0].Quota, charges[0].Cost) != 0 {
		return driver.Decision{}, contradiction(reply)
	}
	d := driver.NewDecision(r)
	d.SetWindow(w.Used, w.ResetAt, 0)
	return d, nil
}

// readTakes reads a reply with states to a take, r.
func readTakes(r driver.Request, reply []byte) (d driver.Decision, err error) {
	if reply[0] == repliesUndecided {
		return d, errReply
	}
	granted, states, err := readCosts(r.Charges(), reply[1:])
	if err != nil {
		return d, err
	}
	charges, allowed := r.Charges(), reply[0] == repliesAllowed
	d, fit, err := readStates(r, reply[0], states, func(i int) (cost int64, charged bool) {
		switch c := &charges[i]; {
		case !allowed:
			return c.Mode.Asks(c.Cost), false
		case c.Mode == quota.Check:
			return c.Cost, false
		default:
			return granted[i], granted[i] > 0
		}
	})
	if err != nil || d.Allowed != fit {
		return d, cmp.Or(err, contradiction(reply))
	}
	for i := range charges {
		switch c := &charges[i]; {
		case c.Mode == quota.Record:
			results := d.ResultsOf(i)
			for k := range results {
				results[k].RetryAt, results[k].StartAt = 0, 0
			}
		case allowed && c.Mode == quota.Check:
			d.SetCost(i, 0)
		case allowed:
			d.SetCost(i, granted[i])
		}
	}
	return d, nil
}

// readCosts returns the costs that charges have if they fit, and the states. In parts, the
// costs of charges in mode AtMost precede the states.
func readCosts(charges []quota.Charge, parts []byte) (costs [quota.MaxCharges]int64, states []byte, err error) {
	for i := range charges {
		costs[i] = charges[i].Cost
		if charges[i].Mode != quota.AtMost {
			continue
		}
		if binary.BigEndian.Uint16(parts) != costBytes {
			return costs, nil, errReply
		}
		cost := int64(binary.BigEndian.Uint64(parts[1:]) & (1<<(8*costBytes) - 1))
		if cost < min(costs[i], 1) || cost > costs[i] {
			return costs, nil, errReply
		}
		costs[i], parts = cost, parts[2+costBytes:]
	}
	return costs, parts, nil
}

// costBytes is the number of bytes of a cost in a reply.
const costBytes = 7

// readSettlement reads the reply to a settlement, s.
func readSettlement(s *driver.Settlement, reply []byte) (driver.Decision, error) {
	r := s.Charged.Request
	r.Now = s.Now
	if reply[0] != repliesAllowed && (!s.Renews || reply[0] != repliesRefused) {
		return driver.Decision{}, errReply
	}
	d, _, err := readStates(r, reply[0], reply[1:], func(i int) (cost int64, charged bool) {
		c := &r.Charges()[i]
		if s.Renews {
			return min(c.Cost, 1), false // a charge of cost 0 has no unit to renew
		}
		added := s.Costs[i] - c.Cost
		if c.Policy.HoldsOnly() {
			added = 0
		}
		return max(added, 0), added > 0 // otherwise it charges nothing, and only looks
	})
	for i, c := range d.Charges() {
		results := d.ResultsOf(i)
		for k := range results {
			held := c.Policy.Limits[k].Algorithm.Holds()
			if d.Allowed || !held || c.Cost == 0 {
				results[k].RetryAt = 0 // even if a debt is left
			}
			switch {
			case !held:
			case s.Renews && d.Allowed && c.Cost > 0: // the unit is the newest
				results[k].Mark.At = results[k].ResetAt - c.Policy.Limits[k].Window.Milliseconds()
			default:
				results[k].Mark.At = 0
			}
		}
	}
	return d, err
}

// readStates reads the states of the charges of r, and reports whether all costs fit. cost
// returns the cost of a charge, and whether it was charged.
func readStates(r driver.Request, answer byte, states []byte, cost func(i int) (int64, bool)) (d driver.Decision, fit bool, err error) {
	d, fit = driver.NewDecision(r), true
	d.Allowed = answer == repliesAllowed
	charges := r.Charges()
	for i := range charges {
		generation, state := handoff.CutFront(states)
		size := 2 + int(binary.BigEndian.Uint16(state))
		cost, charged := cost(i)
		results := d.ResultsOf(i)
		fits, err := algorithm.ReadReply(state[2:size], charged, charges[i].Policy.Limits, cost, r.Now, results)
		if err != nil {
			return driver.Decision{}, false, fmt.Errorf("%w: charge %d: %w", errForeign, i, err)
		}
		for k := range results {
			results[k].Mark.Generation = generation
		}
		fit = fit && (fits || charges[i].Mode == quota.Record)
		states = state[size:]
	}
	return d, fit, nil
}

func contradiction(reply []byte) error {
	return fmt.Errorf("the script's reply contradicts itself: %x", reply)
}
