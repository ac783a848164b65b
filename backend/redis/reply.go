package redisbackend

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

// What the scripts that decide reply; lua/decide.lua describes it.

// How the reply to a decision begins, if it is not digits alone.
const (
	repliesRefused   = 0 // then the states that refused
	repliesAllowed   = 1 // then the states as they were charged
	repliesUndecided = 2
)

// digits are the bytes of the reply that one charge is allowed, whose state was these
// digits before.
const digits = 19

// isDigits reports whether a reply begins with digits.
func isDigits(reply []byte) bool { return '0' <= reply[0] && reply[0] <= '9' }

// errForeign reports that a key holds what no version of weir wrote, or a newer one.
var errForeign = errors.New("something else than a count is stored under the key, or one of a newer version")

// errReply reports a reply that no script can give.
var errReply = errors.New("the script's reply has an unknown form")

// splitReply returns the reply to the first decision, which is about so many charges,
// and the rest. A call's reply is the concatenation of its decisions' replies.
func splitReply(reply []byte, charges int) (first, rest []byte, err error) {
	if len(reply) == 0 {
		return nil, nil, errReply
	}
	size := 1
	switch {
	case isDigits(reply):
		if charges != 1 {
			return nil, nil, errReply
		}
		size = digits
	case reply[0] == repliesUndecided:
	case reply[0] > repliesUndecided:
		return nil, nil, errReply
	default:
		for range charges {
			if len(reply) < size+2 {
				return nil, nil, errReply
			}
			size += 2 + int(binary.BigEndian.Uint16(reply[size:]))
		}
	}
	if len(reply) < size {
		return nil, nil, errReply
	}
	return reply[:size], reply[size:], nil
}

// readTake reads the reply to a take, r. It fails if the script cannot have given it.
func readTake(r driver.Request, reply []byte) (driver.Decision, error) {
	if isDigits(reply) {
		return readDigits(r, reply)
	}
	d, fit, err := readStates(r, reply, func(i int) (cost int64, charged bool) {
		cost = r.Charges()[i].Cost
		return cost, reply[0] == repliesAllowed && cost > 0
	})
	if err == nil && d.Allowed != fit {
		err = contradiction(reply)
	}
	return d, err
}

// readSettlement does so with the reply to a settlement.
func readSettlement(s *driver.Settlement, reply []byte) (driver.Decision, error) {
	r := s.Charged.Request
	r.Now = s.Now
	if isDigits(reply) || reply[0] != repliesAllowed {
		return driver.Decision{}, errReply
	}
	d, _, err := readStates(r, reply, func(i int) (cost int64, charged bool) {
		more := s.Costs[i] - r.Charges()[i].Cost
		return max(more, 0), more > 0 // else it looks at what is left, and asks for nothing
	})
	results := d.Results()
	for i := range results {
		results[i].RetryAt = 0 // also where a debt is left
	}
	return d, err
}

// readStates reads the states that the charges of r have, each with what it cost and
// whether it was charged; and whether all costs fit.
func readStates(r driver.Request, reply []byte, cost func(i int) (int64, bool)) (d driver.Decision, fit bool, err error) {
	if reply[0] == repliesUndecided {
		return d, false, errReply
	}
	d, fit = driver.NewDecision(r), true
	d.Allowed = reply[0] == repliesAllowed
	charges := r.Charges()
	for i, states := 0, reply[1:]; i < len(charges); i++ {
		size := 2 + int(binary.BigEndian.Uint16(states))
		cost, charged := cost(i)
		fits, err := algorithm.ReadReply(states[2:size], charged, charges[i].Policy.Limits, cost, r.Now, d.ResultsOf(i))
		if err != nil {
			return driver.Decision{}, false, fmt.Errorf("%w: charge %d: %w", errForeign, i, err)
		}
		fit = fit && fits
		states = states[size:]
	}
	return d, fit, nil
}

// readDigits reads the reply that the one charge of r is allowed.
func readDigits(r driver.Request, reply []byte) (driver.Decision, error) {
	w, err := algorithm.ReadDigits(reply)
	if err != nil {
		return driver.Decision{}, fmt.Errorf("%w: %w", errForeign, err)
	}
	c := &r.Charges()[0]
	l := &c.Policy.Limits[0]
	if len(c.Policy.Limits) > 1 || !w.IsOf(l) || w.ResetAt <= r.Now || w.Take(l.Quota, c.Cost) != 0 {
		return driver.Decision{}, contradiction(reply)
	}
	d := driver.NewDecision(r)
	d.SetWindow(w.Used, w.ResetAt, 0)
	return d, nil
}

func contradiction(reply []byte) error {
	return fmt.Errorf("the script's reply contradicts itself: %x", reply)
}
